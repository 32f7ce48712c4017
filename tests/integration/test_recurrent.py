"""Bahdanau's model, from its run to its commands; resumed, on meshes and in int8."""

import numpy as np
import pytest

from jaxformer import BeamSearch, Translator, load_config, score_pairs, train
from jaxformer.errors import UserError
from jaxformer.inference.alignment import align
from jaxformer.inference.attention_view import record_attention
from jaxformer.inference.conversions import quantize
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.systems import known_formats

from ..runs import changed
from .equal_runs import check_other_mesh, check_resumed

# A program of the model itself, and a file of its parameters.
EXPORTS = {"safetensors", "stablehlo"}


def small_config():
    config = load_config("recurrent:numerals")
    return changed(
        config,
        model={"vocab_size": 300, "d_model": 16, "hidden_size": 24},
        data={"tokens_per_batch": 512},
        training={
            "steps": 12,
            "warmup_steps": 2,
            "log_every": 6,
            "checkpoint_every": 6,
            "eval_every": 12,
            "eval_sentences": 8,
        },
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("recurrent") / "run"
    train(small_config(), workdir)
    return workdir


def test_it_resumes_exactly_and_is_the_same_on_one_device(run, tmp_path):
    check_resumed(small_config(), run, tmp_path, cut=8)
    check_other_mesh(small_config(), run, tmp_path)


def test_searches_and_scores_agree_and_attention_aligns(run):
    search = BeamSearch(beam_size=3, max_extra_length=6)
    translator = Translator.load(run, search=search)
    sources = ["seven", "two hundred and forty-seven"]
    ids = [translator.source_ids(source) for source in sources]
    found = translator.translate_ids(ids)

    best = [decoded.tokens[0] for decoded in found]
    scores = score_pairs(translator, list(zip(ids, best, strict=True)))
    for score, decoded in zip(scores, found, strict=True):
        np.testing.assert_allclose(score.log_prob, decoded.log_probs[0], rtol=1e-4)

    targets = [("sieben", translator.target_ids("sieben"))]
    assert align(translator, ["seven"], targets) == [[(0, 0)]]


def test_int8_translates_alike(run, tmp_path):
    quantize(run, tmp_path / "int8")
    exact = Translator.load(run)
    rounded = Translator.load(tmp_path / "int8")
    assert rounded.config.model.compute_dtype == "int8"

    pair = (exact.source_ids("seven"), exact.target_ids("sieben"))
    [expected] = score_pairs(exact, [pair])
    [found] = score_pairs(rounded, [pair])
    assert found.log_prob == pytest.approx(expected.log_prob, rel=0.02)


def test_what_needs_a_stack_is_refused(run, tmp_path):
    translator = Translator.load(run)
    with pytest.raises(UserError, match=r"encoder/self_attention .*: Recurrent records none"):
        record_attention(translator, "seven")

    trained = TrainedModel.load(run)
    refusing = known_formats().keys() - EXPORTS
    assert refusing == {"argos", "bergamot", "ctranslate2", "marian"}
    for name in refusing:
        (tmp_path / name).mkdir()
        with pytest.raises(UserError, match="got a RecurrentConfig"):
            known_formats()[name].write(trained, tmp_path / name)
