"""The length penalty against values worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.search import gnmt_penalty


# ((5 + length) / 6)^alpha: (6/6)^0.6, (12/6)^0.5, (24/6)^0.5, (54/6)^1.5 and no penalty.
@pytest.mark.parametrize(
    ("length", "alpha", "penalty"),
    [(1, 0.6, 1.0), (7, 0.5, 2**0.5), (19, 0.5, 2.0), (49, 1.5, 27.0), (49, 0.0, 1.0)],
)
def test_values_by_hand(length: int, alpha: float, penalty: float):
    assert gnmt_penalty(length, alpha) == pytest.approx(penalty, rel=1e-12)


def test_arrays_give_arrays_of_their_kind():
    expected = [1.0, 2.0, 3.0]  # lengths 1, 19, 49: the square roots of 1, 4, 9
    assert gnmt_penalty(np.array([1, 19, 49]), 0.5).tolist() == pytest.approx(expected)
    assert gnmt_penalty(jnp.array([1.0, 19.0, 49.0]), 0.5).tolist() == pytest.approx(expected)
