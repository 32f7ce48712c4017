"""The command ``transcribe``: writes down what recordings say, and counts errors."""

import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from jaxformer.cli.command import Command
from jaxformer.cli.options import (
    DecoderOptions,
    File,
    InputFile,
    ModelDir,
    OutputFile,
    SearchOptions,
)
from jaxformer.cli.outputs import check_outputs, open_output
from jaxformer.cli.signatures import Fields
from jaxformer.cli.source_fields import searches
from jaxformer.cli.text import progress_bar
from jaxformer.cli.timed_texts import FORMATS, SUBTITLES, TimedFormat, TimedText
from jaxformer.data.characters import replace_controls
from jaxformer.data.text_files import read_file
from jaxformer.errors import UserError
from jaxformer.files import STDOUT

if TYPE_CHECKING:
    from jaxformer.data.speech import Recording
    from jaxformer.tasks.transcriber import Transcriber


def transcribe(
    sounds: Sequence[File],
    *,
    workdir: ModelDir,
    output: OutputFile | None = None,
    format: TimedFormat | None = None,
    language: str | None = None,
    task: str | None = None,
    reference: InputFile | None = None,
    model: DecoderOptions,
    changes: Annotated[dict[str, Any], Fields(searches, "search", without=("max_extra_length",))],
    sampling: bool = False,
) -> None:
    """Print the text of each recording, one per line.

    Recordings:
      sounds (SOUND): recordings: WAV files, folders of them, .npz files, or text files whose lines
        are the path of a WAV file, a tab and perhaps its transcript
      output: file for the texts (default: standard output)
      format: write when each segment of a recording is said, too, with a Whisper: a tab-separated
        line for each segment, with the recording and the seconds, or a line of JSON for each
        recording, or the subtitles of one recording (default: texts without times)

    Models of many languages:
      language (CODE): code of the spoken language, such as de (default: the run's, or the model
        detects it)
      task (NAME): transcribe, or translate to English (default: the run's)

    Scores:
      reference: texts of the recordings, one per line (default: transcripts beside the recordings,
        if all have one); the error rates of words and characters are printed to standard error

    Search: Defaults come from the run's config. A model that writes letters has none.

    Beam search: The default, unless the run's config samples.

    Sampling: Instead of beam search.
      sampling: sample instead of searching; --samples implies it

    Example:
      jaxformer transcribe --workdir runs/speech a.wav b.wav

      jaxformer transcribe --workdir runs/speech recordings/ --reference texts.txt

      jaxformer transcribe --workdir runs/whisper a.wav --language de --task translate --beam-size 1

      jaxformer transcribe --workdir runs/whisper talk.wav --format srt --output talk.srt
    """
    from jaxformer.data.speech import list_recordings
    from jaxformer.evaluation.word_error_rate import error_rates

    check_outputs([*sounds, reference], {"--output": output or STDOUT})
    recordings = [each for path in sounds for each in list_recordings(str(path))]
    references = [each.transcript for each in recordings]
    if reference is not None:
        references = _read_references(reference, len(recordings))
    if format in SUBTITLES and len(recordings) != 1:
        raise UserError(
            f"--format {format} has the subtitles of one recording: got {len(recordings):,}; give "
            "them one by one, or --format jsonl"
        )

    options = SearchOptions(changes=changes, sampling=sampling)
    transcriber = _load(workdir, model, options)
    with progress_bar(len(recordings)) as bar:
        texts, lines = _transcribe_all(
            transcriber,
            recordings,
            format,
            language=language,
            task=task,
            report=bar.update,
        )
    with open_output(output or STDOUT) as write:
        write(lines)

    known = [text for text in references if text is not None]
    if len(known) == len(texts):
        rates = error_rates(texts, known)
        print(
            f"word error rate {rates.words:.2f} %, of characters {rates.characters:.2f} %, "
            f"{len(texts):,} recordings",
            file=sys.stderr,
        )


COMMAND = Command("transcribe", transcribe, place=109)


def _load(
    workdir: pathlib.Path,
    model: DecoderOptions,
    options: SearchOptions,
) -> "Transcriber":
    """Loads the model, and refuses the options of a decoder if it has none."""
    from jaxformer.inference.autoregressive import AutoregressivePredictor
    from jaxformer.tasks.predictor_classes import predictor_class
    from jaxformer.tasks.transcriber import Transcriber

    kind: Any = predictor_class(workdir, Transcriber)
    if issubclass(kind, AutoregressivePredictor):
        predictor: Any = model.load_as(kind, workdir, options.settings(workdir))
        return predictor

    [own] = kind.kinds
    reason = f"{own.description} has no decoder"
    model.check_only("weights", reason=reason)
    options.check_none(reason=reason)
    return kind.load(workdir, weights=model.weights)


class _Transcripts(NamedTuple):
    """Texts of recordings, without times, and the lines of the output."""

    texts: list[str]
    lines: Iterable[str]


def _transcribe_all(
    transcriber: "Transcriber",
    recordings: "Sequence[Recording]",
    format: TimedFormat | None,
    **options: Any,
) -> _Transcripts:
    """Transcribes recordings, given the format of the output and options of the model."""
    sounds = [each.read() for each in recordings]
    if format is None:
        texts = transcriber.transcribe(sounds, **options)
        return _Transcripts(texts, map(replace_controls, texts))

    found = transcriber.transcribe_segments(sounds, **options)
    texts = ["".join(each.text for each in segments).strip() for segments in found]
    names = [each.name for each in recordings]
    timed = list(map(TimedText, names, found))
    return _Transcripts(texts, FORMATS[format](timed))


def _read_references(path: pathlib.Path, count: int) -> list[str | None]:
    lines: list[str | None] = list(read_file(path))
    if len(lines) != count:
        raise UserError(f"{path}: expected a line for each of {count} recordings, got {len(lines)}")
    return lines
