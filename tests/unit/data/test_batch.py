import numpy as np
import pytest

from jaxformer.data.batch import make_batch

A = 10
B = 11
C = 12
D = 13


def test_pairs_in_one_row_by_hand():
    first = [([A, B], [C]), ([D], [A, A])]
    second = [([C], [B])]
    batch = make_batch([first, second], (3, 6, 5))

    assert batch.src.tolist() == [
        [A, B, 1, D, 1, 0],
        [C, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]
    assert batch.src_segments.tolist() == [
        [1, 1, 1, 2, 2, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]
    assert batch.src_positions.tolist() == [
        [0, 1, 2, 0, 1, 0],
        [0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]

    assert batch.tgt_in.tolist() == [
        [2, C, 2, A, A],
        [2, B, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    assert batch.tgt_out.tolist() == [
        [C, 1, A, A, 1],
        [B, 1, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    assert batch.tgt_segments.tolist() == [
        [1, 1, 2, 2, 2],
        [1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    assert batch.tgt_positions.tolist() == [
        [0, 1, 0, 1, 2],
        [0, 1, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]

    assert {array.dtype for array in batch} == {np.dtype(np.int32)}


def test_refuses_rows_that_do_not_fit():
    short = ([A], [B])
    long = ([A, B], [B])

    with pytest.raises(ValueError, match=r"at most 1 rows in a batch of shape .*: 2"):
        make_batch([[short], [short]], (1, 4, 4))
    with pytest.raises(ValueError, match="rows of at most 2 tokens: got 3"):
        make_batch([[long]], (1, 2, 4))
    with pytest.raises(ValueError, match="rows of at most 3 tokens: got 4"):
        make_batch([[short, short]], (1, 4, 3))
