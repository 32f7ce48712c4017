"""Settings that no search could use are refused with a clear message."""

import numpy as np
import pytest

from jaxformer.data import tokenizer
from jaxformer.errors import UserError
from jaxformer.search import BeamSearch, Sampling

from .oracles import BOS, EOS, PAD, beam


def sampling(**changes) -> Sampling:
    settings = {"num_samples": 2, "length_penalty": 0.0, "bos_id": BOS, "eos_id": EOS}
    return Sampling(**{**settings, "pad_id": PAD, **changes})


def changed(algorithm: type, name: str, value: object):
    """Returns changed settings after their own checks.

    In a call, the runtime type checks of the tests would refuse a value of another type first.
    """
    settings = algorithm()
    object.__setattr__(settings, name, value)
    settings.__post_init__()
    return settings


def test_equal_settings_have_one_hash():
    assert beam(penalty="power") == beam(penalty="power")
    assert len({beam(), beam(), beam(beam_size=3), sampling(), sampling()}) == 3


@pytest.mark.parametrize("algorithm", [BeamSearch, Sampling])
def test_default_ids_match_our_vocabularies(algorithm: type):
    search = algorithm()
    ids = (search.bos_id, search.eos_id, search.pad_id)
    assert ids == (tokenizer.BOS, tokenizer.EOS, tokenizer.PAD)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 0}, "beam_size must be greater than 0: got 0"),
        ({"beam_size": 1001}, "beam_size must be at most 1000: got 1001"),
        ({"length_penalty": -0.1}, "length_penalty must be 0 to 10: got -0.1"),
        ({"length_penalty": 10.5}, "length_penalty must be 0 to 10: got 10.5"),
        ({"length_penalty": float("nan")}, "length_penalty must be 0 to 10: got nan"),
        ({"min_length": -1}, "min_length must be 0 or more: got -1"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram must be 0 or more: got -1"),
        ({"diversity_groups": 0}, "diversity_groups must be greater than 0: got 0"),
        ({"diversity_groups": 3}, "diversity_groups must divide beam_size: got 3 and 2"),
        ({"diversity_penalty": 1.0}, "diversity_groups above 1 and .* together: got 1 and 1.0"),
        (
            {"diversity_groups": 2, "diversity_penalty": float("inf")},
            "diversity_penalty must be 0 or more: got inf",
        ),
    ],
)
def test_wrong_settings_of_a_beam_are_refused(changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        beam(**changes)


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("penalty", "gnnt", "gnmt, power, none"),
        ("ends_within", "3N", "2N, N"),
        ("unfinished", "drop", "fallback, compete"),
        ("early_stop", True, "proven, likely, full, never"),
    ],
)
def test_unknown_choices_are_refused(name: str, value: object, choices: str):
    with pytest.raises(UserError, match=f"{name} must be one of {choices}: got {value}"):
        changed(BeamSearch, name, value)


WHOLE = ["max_length", "max_extra_length", "min_length", "no_repeat_ngram", "eos_id"]
WHOLE_OF = {BeamSearch: ["beam_size", "diversity_groups"], Sampling: ["top_k", "seed"]}
NUMBERS_OF = {BeamSearch: ["diversity_penalty"], Sampling: ["temperature", "top_p"]}


@pytest.mark.parametrize("algorithm", WHOLE_OF)
def test_only_whole_numbers_are_accepted_and_kept_as_integers(algorithm: type):
    for name in WHOLE + WHOLE_OF[algorithm]:
        for wrong in ("2", 2.0, True):
            with pytest.raises(UserError, match=f"{name} must be a whole number: got {wrong!r}"):
                changed(algorithm, name, wrong)
        assert type(getattr(changed(algorithm, name, np.int32(1)), name)) is int


@pytest.mark.parametrize("algorithm", NUMBERS_OF)
def test_only_numbers_are_accepted_and_kept_as_floats(algorithm: type):
    for name in ["length_penalty", *NUMBERS_OF[algorithm]]:
        for wrong in ("0.5", None, True):
            with pytest.raises(UserError, match=f"{name} must be a number: got {wrong!r}"):
                changed(algorithm, name, wrong)
        valid = np.int32(0 if name == "diversity_penalty" else 1)
        assert type(getattr(changed(algorithm, name, valid), name)) is float


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": 0}, "num_samples must be greater than 0: got 0"),
        ({"temperature": 0.0}, "temperature must be greater than 0: got 0.0; .* beam_size 1"),
        ({"top_k": -1}, "top_k must be 0 or more: got -1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1: got 0.0"),
        ({"seed": 2**31}, "seed must be from 0 to 2147483647: got 2147483648"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1: got 1.1"),
    ],
)
def test_wrong_settings_of_sampling_are_refused(changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        sampling(**changes)
