import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data.packing import length_class, pack

from ...profiles import by_profile

LENGTHS = st.integers(1, 20)


@settings(max_examples=by_profile(40, nightly=100))
@given(st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=80), st.integers(20, 40))
def test_every_pair_has_a_slot_and_every_row_fits(pairs, row_length):
    src, tgt = np.array(pairs).T
    slots, row_starts = pack(src, tgt, row_length)
    assert sorted(slots) == sorted(length_class(src, tgt, row_length))
    assert row_starts[0] == 0
    assert row_starts[-1] == len(slots)
    rows = np.split(slots, row_starts[1:-1])
    for row in rows:
        assert len(row) > 0
        assert (row // (row_length + 1)).sum() <= row_length
        assert (row % (row_length + 1)).sum() <= row_length


@settings(max_examples=by_profile(40, nightly=100))
@given(st.lists(st.tuples(LENGTHS, LENGTHS), min_size=2, max_size=80))
def test_no_two_rows_could_be_merged(pairs):
    src, tgt = np.array(pairs).T
    slots, row_starts = pack(src, tgt, 20)
    rows = np.split(slots, row_starts[1:-1])
    sizes = sorted((int((row // 21).sum()), int((row % 21).sum())) for row in rows)
    for i, (a, b) in enumerate(sizes):
        for c, d in sizes[:i]:
            assert a + c > 20 or b + d > 20


def test_rows_come_close_to_the_lower_bound():
    src = np.random.default_rng(0).integers(2, 60, 3000)
    tgt = np.random.default_rng(1).integers(2, 60, 3000)
    _, row_starts = pack(src, tgt, 128)
    least = max(src.sum(), tgt.sum()) / 128
    assert len(row_starts) - 1 <= 1.03 * least
