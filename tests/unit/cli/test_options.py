"""Decoding options override the run's search settings, or are refused."""

import dataclasses
from typing import Annotated

import pytest

from jaxformer import config as config_lib
from jaxformer.cli.arguments import parse_arguments
from jaxformer.cli.signatures import Fields, command_parser, keyword_arguments
from jaxformer.config import Config
from jaxformer.errors import UserError
from jaxformer.search import BeamSearch, Sampling, serialization

RUN = BeamSearch(beam_size=5, length_penalty=1.0)


@pytest.fixture
def settings(tmp_path):
    """Returns the search settings for flags of a command, and the settings of the run."""

    def ask(flags, run=RUN, **defaults):
        config_lib.save_config(Config(search=run), tmp_path / "config.json")
        call = parse_arguments(["translate", "--workdir", str(tmp_path), *flags.split()])
        return call.keywords["search"].settings(tmp_path, **defaults)

    return ask


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ("--penalty none --max-length 9", {"penalty": "none", "max_length": 9}),
        ("--beam-size 6 --early-stop never", {"beam_size": 6, "early_stop": "never"}),
        (
            "--samples 9 --temperature 0.7 --top-k 10 --top-p 0.9",
            {"method": "sampling", "num_samples": 9, "temperature": 0.7, "top_k": 10, "top_p": 0.9},
        ),
    ],
)
def test_flags_change_the_settings_of_the_run(flags, changes, settings):
    assert settings(flags) == serialization.from_dict(serialization.to_dict(RUN) | changes)


def test_a_run_can_be_used_with_the_other_method(settings):
    """Settings that only one method has are left out."""
    groups = {"diversity_groups": 3, "diversity_penalty": 0.5}
    searched = BeamSearch(beam_size=3, ends_within="N", early_stop="full", **groups)
    assert settings("--sampling", run=searched) == Sampling(num_samples=3)

    sampled = Sampling(num_samples=3, top_k=5, no_repeat_ngram=2)
    found = settings("--beam-size 1", run=sampled)
    assert found == BeamSearch(beam_size=1, no_repeat_ngram=2)

    one = Sampling(num_samples=1)  # the default of generate
    found = settings("--top-k 5", run=BeamSearch(no_repeat_ngram=3), default=one)
    assert found == Sampling(num_samples=1, no_repeat_ngram=3, top_k=5)
    assert settings("--seed 1", run=sampled, default=one).num_samples == 3


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--temperature 0.5", "--temperature 0.5 works with --sampling only; add it"),
        ("--penalty none --length-penalty 0.6", "0.6 has no effect with --penalty none; leave one"),
        ("--sampling --beam-size 3", "--beam-size 3 works with beam search only, not --sampling"),
        ("--diversity-groups 2", "--diversity-groups must divide --beam-size=5: got 2"),
        ("--samples 3 --beam-size 3", "--samples and --beam-size exclude each other; leave one of"),
    ],
)
def test_contradictory_options_are_refused(flags, words, settings):
    with pytest.raises(UserError) as error:
        settings(flags)
    assert words in str(error.value)


def test_a_new_field_of_a_search_is_an_option():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class New(Sampling):
        """New.\n\nAttributes:\n  min_p: At least 1 % of :func:`max`."""

        min_p: float = 0.0
        mirrored: bool = False

    def sample(
        *, steps: int = 5, search: Annotated[dict, Fields(lambda: (BeamSearch, New), "search")]
    ):
        """Sample."""

    parser = command_parser("jaxformer sample", sample)
    options = parser.parse_args(["--min-p", "0.5", "--no-mirrored", "--samples", "3"])
    found = {"min_p": 0.5, "mirrored": False, "num_samples": 3}
    assert keyword_arguments(sample, vars(options)) == {"steps": 5, "search": found}
    text = " ".join(parser.format_help().split())
    assert "--steps N (default: 5) search: --length-penalty X alpha of" in text
    assert "new: --samples N number of samples" in text
    assert "--min-p X at least 1 % of max" in text
