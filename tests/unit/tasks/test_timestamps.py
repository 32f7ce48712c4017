"""Segments of an output of Whisper: the rules of OpenAI's decoder, by hand."""

import numpy as np
import pytest

from jaxformer.tasks.transcription.timestamps import read_window

# Tokens 100 to 150 stand for 0 to 1 second.
STEPS = np.full(151, -1, np.int32)
STEPS[100:] = np.arange(51)
FRAMES = 80


@pytest.mark.parametrize(
    ("tokens", "segments", "read"),
    [
        # Two segments, and one that the window cuts.
        ([100, 5, 6, 110, 110, 7, 120, 125, 8], [(0, 10, 4), (10, 20, 3)], 40),
        # The same, with an end instead of the text that is cut.
        ([100, 5, 6, 110, 110, 7, 120, 125], [(0, 10, 4), (10, 20, 3)], 40),
        # A single time at the end: nothing is said after it.
        ([103, 5, 6, 110, 112, 7, 120], [(3, 10, 4), (12, 20, 3)], FRAMES),
        # One segment with its end, and without.
        ([103, 5, 6, 120], [(0, 20, 4)], FRAMES),
        ([100, 5, 6], [(0, 40, 3)], FRAMES),
        ([103, 5, 6], [(0, 3, 3)], FRAMES),
        ([], [(0, 40, 0)], FRAMES),
    ],
)
def test_an_output_is_divided_where_two_times_meet(tokens, segments, read):
    found = read_window(tokens, STEPS, FRAMES)
    assert [(start, end, len(own)) for start, end, own in found.segments] == segments
    assert found.num_frames == read
