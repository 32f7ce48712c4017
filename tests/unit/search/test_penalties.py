"""Length penalties against values computed by hand."""

import jax
import numpy as np
import pytest

from jaxformer.search import gnmt_penalty
from jaxformer.search.penalties import length_penalties


# ((5 + length) / 6)^alpha: (6/6)^0.6, (12/6)^0.5, (24/6)^0.5, (54/6)^1.5 and no penalty.
@pytest.mark.parametrize(
    ("length", "alpha", "penalty"),
    [
        (1, 0.6, 1.0),
        (7, 0.5, 2**0.5),
        (19, 0.5, 2.0),
        (49, 1.5, 27.0),
        (49, 0.0, 1.0),
    ],
)
def test_values_by_hand(length, alpha, penalty):
    assert gnmt_penalty(length, alpha) == pytest.approx(penalty, rel=1e-12)

    # Arrays, elementwise.
    found = jax.jit(gnmt_penalty)(np.float32([1, length]), alpha)
    assert found.tolist() == pytest.approx([1.0, penalty])


def test_penalties_by_name():
    # n^alpha for 0 to 4 tokens, but 1 for 0.
    assert length_penalties("power", 2.0, 4).tolist() == [1.0, 1.0, 4.0, 9.0, 16.0]
    assert length_penalties("power", 0.0, 3).tolist() == [1.0] * 4
    # ((5 + 4) / 6)^2
    assert length_penalties("gnmt", 2.0, 4)[-1] == 2.25
    # 1 for any alpha.
    assert length_penalties("none", 2.0, 3).tolist() == [1.0] * 4


@pytest.mark.parametrize("penalty", ["gnmt", "power", "none"])
def test_no_penalty_decreases_with_length(penalty):
    for alpha in (0.0, 1e-9, 1e-3, 0.6, 1.0, 10.0):
        penalties = length_penalties(penalty, alpha, 5000)
        assert penalties.dtype == np.float32
        assert np.isfinite(penalties).all()
        assert (penalties > 0).all()
        assert (np.diff(penalties) >= 0).all()
