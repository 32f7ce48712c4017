"""Batches of sentences: each sentence in one batch, with few shapes of bounded size."""

import itertools

import numpy as np
import pytest

from jaxformer.inference.stages import all_shapes, plan_batches
from jaxformer.search import BeamSearch

from ...profiles import by_profile

SETTINGS = BeamSearch()


@pytest.mark.parametrize(
    "lengths",
    [
        [],
        [0, 0],
        [1],
        [5, 0, 900, 17, 16, 64, 65],
        list(range(1, 1000)),
        [3] * 200,
    ],
)
def test_every_sentence_is_in_one_batch_that_it_fits(lengths):
    seen = []
    used = set()
    for numbers, shape in plan_batches(lengths, 1024, SETTINGS):
        assert 1 <= len(numbers) <= shape.rows
        longest = max(lengths[n] for n in numbers)
        assert longest <= shape.source <= 1024
        if shape.rows > 1:
            assert shape.rows * shape.source <= 4096
        seen += numbers
        used.add(shape)

    not_empty = [n for n, length in enumerate(lengths) if length]
    assert sorted(seen) == not_empty
    assert len(used) <= 6


def up_to(limit, numbers):
    """Returns the limit and the numbers below it."""
    below = {number for number in numbers if number < limit}
    return below | {limit}


@pytest.mark.parametrize("beam_size", by_profile([4], nightly=[1, 4, 30]))
@pytest.mark.parametrize("longest", by_profile([10, 100], nightly=[10, 100, 1024]))
@pytest.mark.parametrize("sentences", [1, 9, 100])
def test_shapes_lists_all_shapes_of_smaller_calls(beam_size, longest, sentences):
    settings = BeamSearch(beam_size=beam_size)
    random = np.random.default_rng(sentences)

    # The largest, and those around a size of a batch or of a row.
    totals = up_to(longest, {1, 16, 33, 900})
    counts = up_to(sentences, {1, 2, 4, 5, 8, 9, 50})
    for tokens in totals:
        known = set(all_shapes(sentences, tokens, longest, settings))

        needed = set()
        maxima = up_to(tokens, {1, 16, 17, 33, 65, 257})
        for count, most in itertools.product(counts, maxima):
            others = random.integers(1, most + 1, count - 1)
            lengths = [most, *others.tolist()]
            for _, shape in plan_batches(lengths, longest, settings):
                needed.add(shape)

        assert needed == known  # No shape is missing, and none is superfluous.


@pytest.mark.parametrize(("beam_size", "rows"), [(1, 2), (2, 1), (3, 1), (4, 1)])
def test_a_lone_sentence_has_the_fewest_rows_of_two_hypotheses(beam_size, rows):
    """XLA's kernels for CPUs take no matmul of one row."""
    settings = BeamSearch(beam_size=beam_size)
    ((numbers, shape),) = plan_batches([7], 1024, settings)
    assert numbers == [0]
    assert shape.rows == rows
