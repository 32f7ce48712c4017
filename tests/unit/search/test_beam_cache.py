"""The cache convention: which arrays move with the hypotheses, and which are shared."""

import jax
import jax.numpy as jnp
import pytest

from jaxformer.errors import UserError
from jaxformer.search.beam_cache import check_cache, gather_beams, reorder_cache

PARENTS = jnp.array([[2, 0, 0], [1, 1, 2]], jnp.int32)


def test_gather_beams_takes_rows_by_sentence():
    rows = jnp.arange(2 * 3 * 4).reshape(2, 3, 4)
    expected = [[rows[b, p].tolist() for p in PARENTS[b]] for b in range(2)]
    assert gather_beams(rows, PARENTS).tolist() == expected


def test_gather_beams_may_take_fewer_or_more():
    rows = jnp.arange(6).reshape(2, 3)
    assert gather_beams(rows, jnp.array([[2], [0]])).tolist() == [[2], [3]]
    assert gather_beams(rows, jnp.array([[2, 2, 1, 0], [0, 0, 1, 2]])).tolist() == [
        [2, 2, 1, 0],
        [3, 3, 4, 5],
    ]


def test_reorder_moves_only_arrays_of_hypotheses():
    own, shared, scalar = jnp.arange(12).reshape(2, 3, 2), jnp.arange(2).reshape(2, 1), jnp.array(7)
    moved = reorder_cache({"own": own, "shared": shared, "scalar": scalar}, PARENTS)
    assert moved["own"].tolist() == gather_beams(own, PARENTS).tolist()
    assert moved["shared"] is shared
    assert moved["scalar"] is scalar


def test_nothing_is_gathered_for_greedy_search():
    cache = {"own": jnp.ones((2, 1, 5)), "position": jnp.array(0)}
    program = jax.make_jaxpr(reorder_cache)(cache, jnp.zeros((2, 1), jnp.int32))
    assert program.eqns == []


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 4, 5), (6, 5)])
def test_other_leading_axes_are_refused(shape: tuple[int, ...]):
    message = r"cache\['keys'\]\[0\] must lead with axes \[batch, beams\] = \[2, 3\].*got shape"
    with pytest.raises(UserError, match=message):
        check_cache({"keys": [jnp.zeros(shape)]}, batch_size=2, beam_size=3)
