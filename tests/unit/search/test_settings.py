"""Settings and arguments that no search could use are refused with a clear message."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.search.state import initial_fields

from .oracles import beam, sampling

NAN = float("nan")


def check(make, **changes):
    """Returns changed settings after their own checks, without the type checks of night runs."""
    settings = make()
    for name, value in changes.items():
        object.__setattr__(settings, name, value)
    settings.__post_init__()
    return settings


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (beam, {"beam_size": 1001}, "beam_size must be at most 1000: got 1001"),
        (beam, {"length_penalty": NAN}, "length_penalty must be 0 to 10: got nan"),
        (beam, {"min_length": -1}, "min_length must be 0 or more: got -1"),
        (beam, {"diversity_groups": 3}, "diversity_groups must divide beam_size=2: got 3"),
        (beam, {"diversity_penalty": 1.0}, "diversity_penalty must be 0 unless .*: got 1.0"),
        (beam, {"penalty": "gnnt"}, "penalty must be one of 'gnmt', 'power', 'none': got 'gnnt'"),
        (beam, {"early_stop": True}, "early_stop must be one of 'proven', .*, 'never': got True"),
        (beam, {"early_stop": "full"}, "early_stop=full needs ends_within=N, .*: got 2N"),
        (sampling, {"temperature": 0.0}, "temperature must be greater than 0 .* beam_size 1"),
        (sampling, {"top_p": 0.0}, "top_p must be above 0 and at most 1: got 0.0"),
        (sampling, {"min_p": 1.1}, "min_p must be from 0 to 1: got 1.1"),
        (sampling, {"typical_p": NAN}, "typical_p must be above 0 and at most 1: got nan"),
        (sampling, {"seed": 2**31}, "seed must be from 0 to 2147483647: got 2147483648"),
    ],
)
def test_wrong_settings_are_refused(make, changes, message):
    with pytest.raises(UserError, match=message):
        check(make, **changes)


@pytest.mark.parametrize(
    ("make", "name", "kind"),
    [
        (beam, "beam_size", int),
        (sampling, "top_k", int),
        (beam, "length_penalty", float),
    ],
)
def test_only_numbers_are_accepted_and_kept_as_those_of_python(make, name, kind):
    for wrong in ("2", True):
        message = f"^{name} must be of type {kind.__name__}: got {wrong!r}"
        with pytest.raises(UserError, match=message):
            check(make, **{name: wrong})

    settings = check(make, **{name: np.int32(1)})
    assert type(getattr(settings, name)) is kind


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
    given = right | arguments
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: initial_fields(**given, hypotheses=2))
