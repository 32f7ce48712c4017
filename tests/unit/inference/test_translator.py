"""How sentences are grouped: every one once, in few shapes, of bounded size."""

import pytest

from jaxformer.inference.translator import _TOKENS_PER_BATCH, _batches


def sources(lengths):
    return [[3] * length for length in lengths]


@pytest.mark.parametrize(
    "lengths", [[], [0, 0], [1], [5, 0, 900, 17, 16, 64, 65], list(range(1, 1000)), [3] * 200]
)
def test_every_sentence_is_in_one_batch_that_it_fits(lengths):
    seen = []
    for numbers, (rows, length) in _batches(sources(lengths), max_length=1024):
        assert 1 <= len(numbers) <= rows
        assert max(lengths[n] for n in numbers) <= length <= 1024
        assert rows == 1 or rows * length <= _TOKENS_PER_BATCH
        seen += numbers
    assert sorted(seen) == [n for n, length in enumerate(lengths) if length]


def test_shapes_are_few_whatever_the_input():
    shapes = set()
    for size in (1, 2, 7, 9, 64, 70, 999):
        batches = _batches(sources(range(1, size + 1)), max_length=1000)
        shapes |= {shape for _, shape in batches}
    assert len(shapes) <= 21  # at most three numbers of rows for each of seven lengths
    assert {length for _, length in shapes} <= {16, 32, 64, 128, 256, 512, 1000}


def test_longest_come_first():
    batches = _batches(sources([2, 500, 30]), max_length=1024)
    assert [n for numbers, _ in batches for n in numbers] == [1, 2, 0]
