"""Settings that no search could obey are refused, in words."""

import pytest

from jaxformer.errors import UserError
from jaxformer.search import SamplingRules

from .oracles import BOS, EOS, PAD, rules


def sampling_rules(**changes) -> SamplingRules:
    settings = {"num_samples": 2, "length_penalty": 0.0, "bos_id": BOS, "eos_id": EOS}
    return SamplingRules(**{**settings, "pad_id": PAD, **changes})


def test_equal_settings_are_one_static_argument():
    assert rules(penalty="power") == rules(penalty="power")
    assert len({rules(), rules(), rules(beam_size=3), sampling_rules(), sampling_rules()}) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 0}, "beam_size must be at least 1: got 0"),
        ({"length_penalty": -0.1}, "length_penalty must be 0 or more: got -0.1"),
        ({"length_penalty": float("nan")}, "length_penalty must be 0 or more: got nan"),
        ({"min_length": -1}, "min_length must be 0 or more: got -1"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram must be 0 or more: got -1"),
        ({"diversity_groups": 0}, "diversity_groups must be at least 1: got 0"),
        ({"diversity_groups": 3}, "diversity_groups must divide beam_size: got 3 and 2"),
        ({"diversity_penalty": 1.0}, "diversity_penalty needs diversity_groups of 2 .*: got 1.0"),
        (
            {"diversity_groups": 2, "diversity_penalty": float("inf")},
            "diversity_penalty must be 0 or more: got inf",
        ),
    ],
)
def test_wrong_rules_of_a_beam_are_refused(changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        rules(**changes)


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("penalty", "gnnt", "gnmt, power, none"),
        ("ends_within", "3N", "2N, N"),
        ("unfinished", "drop", "fallback, compete"),
        ("early_stop", True, "proven, likely, full, never"),
    ],
)
def test_choices_that_there_are_not_are_refused(name: str, value: object, choices: str):
    wrong = rules()
    # Not by calling it: the type checks that our tests run under would refuse it first.
    object.__setattr__(wrong, name, value)
    with pytest.raises(UserError, match=f"{name} must be one of {choices}: got {value}"):
        wrong.__post_init__()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": 0}, "num_samples must be at least 1: got 0"),
        ({"temperature": 0.0}, "temperature must be above 0: got 0.0; .* beam_size 1"),
        ({"top_k": -1}, "top_k must be 0 or more: got -1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1: got 0.0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1: got 1.1"),
    ],
)
def test_wrong_rules_of_sampling_are_refused(changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        sampling_rules(**changes)
