"""The cache convention: which arrays move with the hypotheses, and which are shared."""

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.search.beam_cache import check_cache, reorder_cache

PARENTS = np.int32([[2, 0, 0], [1, 1, 2]])


def test_reorder_moves_only_arrays_of_hypotheses():
    own, shared, scalar = np.arange(12).reshape(2, 3, 2), np.arange(2).reshape(2, 1), np.array(7)
    cache = {"own": own, "shared": shared, "scalar": scalar}

    def reorder(own, parents):
        moved = reorder_cache(cache | {"own": own}, parents)
        assert moved["shared"] is shared
        assert moved["scalar"] is scalar
        return moved["own"]

    expected = [[own[b, p].tolist() for p in PARENTS[b]] for b in range(2)]
    assert jax.jit(reorder)(own, PARENTS).tolist() == expected


def test_nothing_is_gathered_for_greedy_search():
    cache = {"own": np.ones((2, 1, 5)), "position": np.array(0)}
    assert jax.make_jaxpr(reorder_cache)(cache, np.zeros((2, 1), np.int32)).eqns == []


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 4, 5), (6, 5)])
def test_other_leading_axes_are_refused(shape):
    message = r"cache\['keys'\]\[0\] must lead with axes \[batch, beams\] = \[2, 3\].*got shape"
    with pytest.raises(UserError, match=message):
        check_cache({"keys": [np.zeros(shape)]}, batch_size=2, beam_size=3)
