"""Settings that no search could use are refused with a clear message."""

import pytest

from jaxformer.data import tokenizer
from jaxformer.errors import UserError
from jaxformer.search import BeamSearch, Sampling

from .oracles import BOS, EOS, PAD, beam


def sampling(**changes) -> Sampling:
    settings = {"num_samples": 2, "length_penalty": 0.0, "bos_id": BOS, "eos_id": EOS}
    return Sampling(**{**settings, "pad_id": PAD, **changes})


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
    wrong = beam()
    # In a call, the runtime type checks of the tests would refuse the value first.
    object.__setattr__(wrong, name, value)
    with pytest.raises(UserError, match=f"{name} must be one of {choices}: got {value}"):
        wrong.__post_init__()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": 0}, "num_samples must be greater than 0: got 0"),
        ({"temperature": 0.0}, "temperature must be greater than 0: got 0.0; .* beam_size 1"),
        ({"top_k": -1}, "top_k must be 0 or more: got -1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1: got 0.0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1: got 1.1"),
    ],
)
def test_wrong_settings_of_sampling_are_refused(changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        sampling(**changes)
