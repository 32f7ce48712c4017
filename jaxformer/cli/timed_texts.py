"""Formats of texts with times: subtitles and lines of JSON or of tables."""

import html
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from jaxformer.data.characters import replace_controls

if TYPE_CHECKING:
    from jaxformer.tasks.transcriber import Segment

TimedFormat: TypeAlias = Literal["tsv", "jsonl", "srt", "vtt"]


class TimedText(NamedTuple):
    """The segments of a recording, with its name."""

    name: str
    segments: "list[Segment]"


def _tsv(texts: Sequence[TimedText]) -> Iterator[str]:
    for name, segments in texts:
        for segment in segments:
            fields = (replace_controls(name), f"{segment.start:.2f}", f"{segment.end:.2f}")
            yield "\t".join((*fields, segment.text.strip()))


def _jsonl(texts: Sequence[TimedText]) -> Iterator[str]:
    for name, segments in texts:
        rows = [{"start": each.start, "end": each.end, "text": each.text} for each in segments]
        yield json.dumps({"sound": name, "segments": rows}, ensure_ascii=False)


def _srt(texts: Sequence[TimedText]) -> Iterator[str]:
    [(_, segments)] = texts
    for number, segment in enumerate(segments, start=1):
        if number > 1:
            yield ""
        yield str(number)
        yield f"{_clock(segment.start, ',')} --> {_clock(segment.end, ',')}"
        # The format has no escapes, and takes an arrow for a line of times.
        yield segment.text.strip().replace("-->", "->")


def _vtt(texts: Sequence[TimedText]) -> Iterator[str]:
    [(_, segments)] = texts
    yield "WEBVTT"
    for segment in segments:
        yield ""
        yield f"{_clock(segment.start, '.')} --> {_clock(segment.end, '.')}"
        yield html.escape(segment.text.strip(), quote=False)


def _clock(seconds: float, separator: str) -> str:
    """Returns hours, minutes, seconds and milliseconds.

    >>> _clock(3723.04, ",")
    '01:02:03,040'
    """
    total = round(1000 * seconds)
    minutes, milliseconds = divmod(total, 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, thousandths = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{whole:02}{separator}{thousandths:03}"


FORMATS: dict[TimedFormat, Callable[[Sequence[TimedText]], Iterator[str]]] = {
    "tsv": _tsv,
    "jsonl": _jsonl,
    "srt": _srt,
    "vtt": _vtt,
}
# Formats of one recording.
SUBTITLES = ("srt", "vtt")
