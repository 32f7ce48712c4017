"""States: their contents are checked, and sentences can be selected from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.search.state import prepare


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 0}, "capacity must be at least 1: got 0"),
        ({"max_lengths": jnp.array([[1]])}, r"max_lengths must hold one number .* shape \(1, 1\)"),
        ({"prefix": jnp.ones((2, 3), int)}, r"prefix must hold .* \[1, tokens\]: got \(2, 3\)"),
        ({"cache": {"keys": [np.ones((1, 3))]}}, r"cache\['keys'\]\[0\] must lead .*= \[1, 2\]"),
    ],
)
def test_mismatched_arguments_are_refused(arguments, message):
    right = {"cache": (), "max_lengths": jnp.array([3]), "capacity": 6, "prefix": None}
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: prepare(**{**right, **arguments}, hypotheses=2))
