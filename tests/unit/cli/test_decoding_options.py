"""Decoding options override the run's search settings, or are refused."""

import pytest

from jaxformer import config as config_lib
from jaxformer.cli.arguments import parse
from jaxformer.cli.decoding_options import search_settings
from jaxformer.config import Config
from jaxformer.errors import UserError
from jaxformer.search import BeamSearch, Sampling, plain

RUN = BeamSearch(beam_size=5, length_penalty=1.0)


@pytest.fixture
def settings(tmp_path):
    """Returns the search settings for flags of a command, and the settings of the run."""

    def ask(flags, command="translate", run=RUN):
        config_lib.save(Config(search=run), tmp_path / "config.json")
        return search_settings(parse([command, "--workdir", str(tmp_path), *flags.split()]))

    return ask


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ("", {}),
        (
            "--penalty none --min-length 3 --max-length 9 --no-repeat-ngram 2",
            {"penalty": "none", "min_length": 3, "max_length": 9, "no_repeat_ngram": 2},
        ),
        (
            "--beam-size 6 --diversity-groups 3 --diversity-penalty 0.5",
            {"beam_size": 6, "diversity_groups": 3, "diversity_penalty": 0.5},
        ),
        ("--sampling --seed 0", {"method": "sampling"}),
        ("--samples 9", {"method": "sampling", "num_samples": 9}),
        (
            "--sampling --temperature 0.7 --top-k 10 --top-p 0.9 --seed 3",
            {"method": "sampling", "temperature": 0.7, "top_k": 10, "top_p": 0.9, "seed": 3},
        ),
    ],
)
def test_flags_change_the_settings_of_the_run(flags, changes, settings):
    assert settings(flags) == plain.from_dict(plain.to_dict(RUN) | changes)


def test_a_run_can_be_used_with_the_other_method(settings):
    """Settings that only one method has are left out."""
    groups = {"diversity_groups": 3, "diversity_penalty": 0.5}
    searched = BeamSearch(beam_size=3, ends_within="N", early_stop="full", **groups)
    assert settings("--sampling", run=searched) == Sampling(num_samples=3)
    sampled = Sampling(num_samples=3, top_k=5, no_repeat_ngram=2)
    found = settings("--beam-size 1", run=sampled)
    assert found == BeamSearch(beam_size=1, no_repeat_ngram=2)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--temperature 0.5", "--temperature 0.5 works with --sampling only; add it"),
        (
            "--sampling --diversity-groups 5 --diversity-penalty 1",
            "--diversity-groups 5 works with beam search only, not --sampling",
        ),
        (
            "--penalty none --length-penalty 0.6",
            "--length-penalty 0.6 has no effect with --penalty none; leave one of them out",
        ),
        ("--samples 3 --beam-size 3", "--samples and --beam-size exclude each other; leave one of"),
    ],
)
def test_contradictory_options_are_refused(flags, words, settings):
    with pytest.raises(UserError) as error:
        settings(flags)
    assert words in str(error.value)
