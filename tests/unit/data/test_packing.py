import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data.packing import length_class, pack

from ...profiles import by_profile

LENGTHS = st.integers(1, 20)


def sizes_of_rows(slots, row_starts, row_length):
    """Returns the source and target tokens of each row. A slot is a pair of lengths as a number."""
    rows = np.split(slots, row_starts[1:-1])
    sizes = []
    for row in rows:
        assert len(row) > 0
        src, tgt = np.divmod(row, row_length + 1)
        size = (int(src.sum()), int(tgt.sum()))
        sizes.append(size)
    return sizes


@settings(max_examples=by_profile(40, nightly=100))
@given(
    st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=80),
    st.integers(20, 40),
)
def test_every_pair_has_a_slot_and_every_row_fits(pairs, row_length):
    src, tgt = np.array(pairs).T
    slots, row_starts = pack(src, tgt, row_length)

    expected = length_class(src, tgt, row_length)
    assert sorted(slots) == sorted(expected)
    assert row_starts[0] == 0
    assert row_starts[-1] == len(slots)

    for src_size, tgt_size in sizes_of_rows(slots, row_starts, row_length):
        assert src_size <= row_length
        assert tgt_size <= row_length


@settings(max_examples=by_profile(40, nightly=100))
@given(st.lists(st.tuples(LENGTHS, LENGTHS), min_size=2, max_size=80))
def test_no_two_rows_could_be_merged(pairs):
    src, tgt = np.array(pairs).T
    slots, row_starts = pack(src, tgt, 20)

    sizes = sizes_of_rows(slots, row_starts, 20)
    for one, other in itertools.combinations(sizes, 2):
        src_one, tgt_one = one
        src_other, tgt_other = other
        fit_in_source = src_one + src_other <= 20
        fit_in_target = tgt_one + tgt_other <= 20
        assert not (fit_in_source and fit_in_target)


def test_rows_come_close_to_the_lower_bound():
    rng = np.random.default_rng(0)
    src = rng.integers(2, 60, 3000)
    tgt = rng.integers(2, 60, 3000)

    _, row_starts = pack(src, tgt, 128)

    rows = len(row_starts) - 1
    tokens = max(src.sum(), tgt.sum())
    assert rows <= 1.03 * tokens / 128
