"""Settings that no search could use are refused with a clear message."""

import numpy as np
import pytest

from jaxformer.data import tokenizer
from jaxformer.errors import UserError
from jaxformer.search import BeamSearch, Sampling

from .oracles import beam, sampling

NAN = float("nan")


def check(make, **changes):
    """Returns changed settings after their own checks, without the type checks of night runs."""
    settings = make()
    for name, value in changes.items():
        object.__setattr__(settings, name, value)
    settings.__post_init__()
    return settings


def test_equal_settings_have_one_hash():
    assert beam(penalty="power") == beam(penalty="power")
    assert len({beam(), beam(), beam(beam_size=3), sampling(), sampling()}) == 3


@pytest.mark.parametrize("algorithm", [BeamSearch, Sampling])
def test_default_ids_match_our_vocabularies(algorithm):
    search = algorithm()
    ids = (search.bos_id, search.eos_id, search.pad_id)
    assert ids == (tokenizer.BOS, tokenizer.EOS, tokenizer.PAD)


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (beam, {"beam_size": 0}, "beam_size must be greater than 0: got 0"),
        (beam, {"beam_size": 1001}, "beam_size must be at most 1000: got 1001"),
        (beam, {"length_penalty": -0.1}, "length_penalty must be 0 to 10: got -0.1"),
        (beam, {"length_penalty": 10.5}, "length_penalty must be 0 to 10: got 10.5"),
        (beam, {"length_penalty": NAN}, "length_penalty must be 0 to 10: got nan"),
        (beam, {"min_length": -1}, "min_length must be 0 or more: got -1"),
        (beam, {"no_repeat_ngram": -1}, "no_repeat_ngram must be 0 or more: got -1"),
        (beam, {"diversity_groups": 0}, "diversity_groups must be greater than 0: got 0"),
        (beam, {"diversity_groups": 3}, "diversity_groups must divide beam_size: got 3 and 2"),
        (beam, {"diversity_penalty": 1.0}, "diversity_groups above 1 and .*: got 1 and 1.0"),
        (beam, {"diversity_penalty": NAN}, "diversity_penalty must be 0 or more: got nan"),
        (beam, {"penalty": "gnnt"}, "penalty must be one of gnmt, power, none: got gnnt"),
        (beam, {"ends_within": "3N"}, "ends_within must be one of 2N, N: got 3N"),
        (beam, {"unfinished": "drop"}, "unfinished must be one of fallback, compete: got drop"),
        (beam, {"early_stop": True}, "early_stop must be one of proven, .*, never: got True"),
        (sampling, {"num_samples": 0}, "num_samples must be greater than 0: got 0"),
        (sampling, {"temperature": 0.0}, "temperature must be greater than 0: .* beam_size 1"),
        (sampling, {"top_k": -1}, "top_k must be 0 or more: got -1"),
        (sampling, {"top_p": 0.0}, "top_p must be above 0 and at most 1: got 0.0"),
        (sampling, {"top_p": 1.1}, "top_p must be above 0 and at most 1: got 1.1"),
        (sampling, {"seed": 2**31}, "seed must be from 0 to 2147483647: got 2147483648"),
    ],
)
def test_wrong_settings_are_refused(make, changes, message):
    with pytest.raises(UserError, match=message):
        check(make, **changes)


BOTH = ["max_length", "max_extra_length", "min_length", "no_repeat_ngram", "eos_id"]
WHOLE = {beam: ["beam_size", "diversity_groups"], sampling: ["top_k", "seed"]}
NUMBERS = {beam: ["diversity_penalty"], sampling: ["temperature", "top_p"]}


@pytest.mark.parametrize("make", WHOLE)
def test_only_numbers_are_accepted_and_kept_as_those_of_python(make):
    for name in BOTH + WHOLE[make]:
        for wrong in ("2", 2.0, True):
            with pytest.raises(UserError, match=f"{name} must be a whole number: got {wrong!r}"):
                check(make, **{name: wrong})
        assert type(getattr(check(make, **{name: np.int32(1)}), name)) is int
    for name in ["length_penalty", *NUMBERS[make]]:
        for wrong in ("0.5", None, True):
            with pytest.raises(UserError, match=f"{name} must be a number: got {wrong!r}"):
                check(make, **{name: wrong})
        valid = np.int32(0 if name == "diversity_penalty" else 1)
        assert type(getattr(check(make, **{name: valid}), name)) is float
