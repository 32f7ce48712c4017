"""Batching of sentences: each in one batch, with few shapes of bounded size."""

import numpy as np
import pytest

from jaxformer.inference.batched_search import batches, shapes
from jaxformer.search import BeamSearch

from ...profiles import by_profile

SETTINGS = BeamSearch()


@pytest.mark.parametrize(
    "lengths", [[], [0, 0], [1], [5, 0, 900, 17, 16, 64, 65], list(range(1, 1000)), [3] * 200]
)
def test_every_sentence_is_in_one_batch_that_it_fits(lengths):
    seen = []
    for numbers, shape in batches(lengths, 1024, SETTINGS):
        assert 1 <= len(numbers) <= shape.rows
        assert max(lengths[n] for n in numbers) <= shape.source <= 1024
        assert shape.rows == 1 or shape.rows * shape.source <= 4096
        seen += numbers
    assert sorted(seen) == [n for n, length in enumerate(lengths) if length]


@pytest.mark.parametrize("longest", [10, 256, 1000, 2000])
def test_shapes_are_few_for_any_input(longest):
    shapes = set()
    for size in (9, 70, 999, 3000):
        lengths = [min(n, longest) for n in range(1, size + 1)]
        shapes |= {shape for _, shape in batches(lengths, longest, SETTINGS)}
    assert len(shapes) <= 6
    assert max(shape.source for shape in shapes) == min(longest, 2000)


@pytest.mark.parametrize("beam_size", by_profile([4], nightly=[1, 4, 30]))
@pytest.mark.parametrize("longest", by_profile([10, 100], nightly=[10, 100, 1024]))
@pytest.mark.parametrize("sentences", [1, 9, 100])
def test_shapes_lists_all_shapes_of_smaller_calls(beam_size, longest, sentences):
    settings, random = BeamSearch(beam_size=beam_size), np.random.default_rng(sentences)
    for tokens in {1, 16, 33, 900} & set(range(longest + 1)) | {longest}:
        known = set(shapes(sentences, tokens, longest, settings))
        needed = set()
        for count in {1, 2, 4, 5, 8, 9, 50} & set(range(sentences + 1)) | {sentences}:
            for most in {1, 16, 17, 33, 65, 257} & set(range(tokens)) | {tokens}:
                lengths = [most, *random.integers(1, most + 1, count - 1).tolist()]
                needed |= {shape for _, shape in batches(lengths, longest, settings)}
        assert needed == known  # No shape is missing, and none is superfluous.


@pytest.mark.parametrize(
    ("count", "beams", "rows"),
    [
        *((1, 4, 1), (1, 1, 4), (2, 4, 4), (5, 4, 8), (8, 1, 8), (9, 4, 64)),
        *((100, 8, 64), (100, 9, 56), (100, 21, 24), (100, 600, 1)),
    ],
)
def test_few_sentences_and_wide_beams_have_small_batches(count, beams, rows):
    _, shape = next(batches([5] * count, 1024, BeamSearch(beam_size=beams)))
    assert shape.rows == rows


def test_longest_come_first():
    grouped = batches([2, 500, 30], 1024, SETTINGS)
    assert [n for numbers, _ in grouped for n in numbers] == [1, 2, 0]


def test_capacity_is_the_maximum_length_of_the_settings():
    for search, longest, expected in (
        (BeamSearch(max_extra_length=5), 1024, (32, 32, 37)),
        (BeamSearch(max_length=9), 1024, (32, 9, 9)),
        (SETTINGS, 25, (25, 25, 25)),
    ):
        ((_, shape),) = batches([20], longest, search)
        assert (shape.source, shape.first, shape.capacity) == expected
