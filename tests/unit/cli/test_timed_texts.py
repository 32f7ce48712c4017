"""Formats of texts with times, as their specifications have them."""

from jaxformer.cli.timed_texts import FORMATS, TimedText
from jaxformer.tasks.transcriber import Segment

SEGMENTS = [Segment(0.0, 2.5, " one --> two", []), Segment(3723.04, 3725.0, " <three> & four", [])]
TEXTS = [TimedText("a.wav", SEGMENTS)]


def lines_of(name):
    return list(FORMATS[name](TEXTS))


def test_subtitles_are_numbered_and_timed():
    assert lines_of("srt") == [
        "1",
        "00:00:00,000 --> 00:00:02,500",
        "one -> two",
        "",
        "2",
        "01:02:03,040 --> 01:02:05,000",
        "<three> & four",
    ]
    assert lines_of("vtt") == [
        "WEBVTT",
        "",
        "00:00:00.000 --> 00:00:02.500",
        "one --&gt; two",
        "",
        "01:02:03.040 --> 01:02:05.000",
        "&lt;three&gt; &amp; four",
    ]


def test_lines_name_the_recording():
    assert lines_of("tsv") == [
        "a.wav\t0.00\t2.50\tone --> two",
        "a.wav\t3723.04\t3725.00\t<three> & four",
    ]
    assert lines_of("jsonl") == [
        '{"sound": "a.wav", "segments": [{"start": 0.0, "end": 2.5, "text": " one --> two"}, '
        '{"start": 3723.04, "end": 3725.0, "text": " <three> & four"}]}'
    ]
