"""Exports against the models that they came from, and against the systems that they are for.

``benchmarks/exports.py`` compares translations of real text with transformers and CTranslate2.
"""

import ast
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

import flax.traverse_util
import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer.cli import main
from jaxformer.config import Config, ModelConfig, read_config
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from jaxformer.errors import UserError
from jaxformer.inference.conversions import write_model
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import TrainedModel, load_model
from jaxformer.interop import ctranslate2
from jaxformer.interop.export import export_model
from jaxformer.interop.marian import exporter as marian
from jaxformer.interop.marian.importer import import_marian
from jaxformer.models.student import StudentConfig
from jaxformer.models.transformer import Transformer
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch, Sampling

from ..profiles import by_profile

MARIAN = pathlib.Path(__file__).parents[1] / "fixtures" / "marian"
TEXTS = ["two hundred and forty-seven", "", "six thousand and one", "ninety-nine", "four"]
# Everything that our models can differ in, for systems that can express it.
ARCHITECTURES = {
    "post": {},
    "pre": {"norm_position": "pre", "activation": "gelu", "embeddings": "separate"},
    "learned": {"positions": "learned", "activation": "swish", "biases": True},
    "epsilon": {"norm_epsilon": 0.01, "embeddings": "separate", "biases": True},
}


def random_workdir(workdir, tokenizer, **model):
    """Writes a workdir of a random model in which no parameter is 0 or 1."""
    sizes = {"d_model": 16, "d_ff": 24, "num_heads": 2, "num_layers": 2, "max_length": 40}
    values = sizes | {"vocab_size": tokenizer.vocab_size} | model
    default = Config()
    config = Config(
        model=ModelConfig(**values), data=dataclasses.replace(default.data, max_length=32)
    )
    random = np.random.default_rng(0)

    def leaf(path, like):
        return np.float32(0.3 * random.standard_normal(like.shape) + (path[-1].key == "scale"))

    params = jax.tree_util.tree_map_with_path(leaf, abstract_params(config.model))
    identity = {"tokenizer": tokenizer.sha256}
    write_model(Workdir(workdir), "a test", identity, tokenizer.serialized, config, params)
    return workdir


def run_card(folder):
    """Runs the code of a model card where there is no jaxformer; returns what it prints."""
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert code is not None
    absent = "import sys; sys.modules['jaxformer'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", absent + code[1].replace("A dog runs.", TEXTS[0])],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_safetensors_keep_every_bit(learned_workdir, tmp_path):
    export_model("safetensors", learned_workdir, tmp_path / "numerals")
    arrays = safetensors.numpy.load_file(tmp_path / "numerals" / "model.safetensors")
    assert "encoder.layers.self_attention.query" in arrays
    found = flax.traverse_util.unflatten_dict(arrays, sep=".")
    model, params = load_model(learned_workdir)
    jax.tree.map(np.testing.assert_array_equal, found, jax.device_get(params))
    config = Config.from_dict(json.loads((tmp_path / "numerals" / "config.json").read_bytes()))
    assert config.model == model.config
    tokenizer = Tokenizer.load(tmp_path / "numerals" / "tokenizer.model").sha256
    assert tokenizer == json.loads((learned_workdir / "identity.json").read_bytes())["tokenizer"]
    card = (tmp_path / "numerals" / "README.md").read_text(encoding="utf-8")
    count = sum(array.size for array in arrays.values())
    assert card.startswith("# numerals\n")
    for fact in ("en to de", "license | (please fill in)", f"{count:,}", "step 1200", tokenizer):
        assert f"| {fact}" in card


@pytest.mark.parametrize("name", ["swish_tied", "silu_tied_target"])
def test_marian_is_the_inverse_of_the_import(name, tmp_path):
    """The files of transformers come back: weights bit for bit, vocabulary and settings."""
    import_marian(MARIAN / name, tmp_path / "run")
    export_model("marian", tmp_path / "run", tmp_path / "out")
    found, expected = (
        safetensors.numpy.load_file(folder / "model.safetensors")
        for folder in (tmp_path / "out", MARIAN / name)
    )
    expected["final_logits_bias"][0, -1] = 0  # Padding, which cannot be generated.
    if name == "silu_tied_target":  # The output is a copy here.
        expected["lm_head.weight"] = expected["model.decoder.embed_tokens.weight"]
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)
    tied = {"tie_word_embeddings", "share_encoder_decoder_embeddings"}
    for file in ("vocab.json", "config.json", "generation_config.json", "tokenizer_config.json"):
        theirs = json.loads((MARIAN / name / file).read_text().replace('"silu"', '"swish"'))
        ours = json.loads((tmp_path / "out" / file).read_bytes())
        skipped = {"forced_eos_token_id", "max_length", "model_max_length"} | tied
        common = (ours.keys() & theirs.keys()) - skipped
        assert len(common) >= 2
        assert {key: ours[key] for key in common} == {key: theirs[key] for key in common}
    for side in ("source.spm", "target.spm"):
        assert (tmp_path / "out" / side).read_bytes() == (MARIAN / name / side).read_bytes()


@pytest.mark.ci
@pytest.mark.parametrize("embeddings", by_profile(["separate"], nightly=["tied", "separate"]))
def test_marian_export_of_our_own_model(embeddings, learned_workdir, tmp_path):
    """Our import, which equals transformers, computes the same from the export."""
    tokenizer = Tokenizer.load(learned_workdir / "tokenizer.model")
    run = random_workdir(tmp_path / "run", tokenizer, embeddings=embeddings, norm_epsilon=1e-5)
    export_model("marian", run, tmp_path / "marian")
    import_marian(tmp_path / "marian", tmp_path / "back")
    ours, theirs = Translator.load(run), Translator.load(tmp_path / "back")
    src, tgt_in = ours.source_ids(TEXTS[0]), [BOS, *ours.target_ids("zwei")]
    found, expected = (
        np.asarray(
            jax.jit(Transformer(model.config.model).apply)(
                {"params": model.models[0][1]}, np.array([src]), np.array([tgt_in])
            )
        )
        for model in (theirs, ours)
    )
    pieces = [EOS, *range(UNK, tokenizer.vocab_size)]
    np.testing.assert_allclose(found[..., pieces], expected[..., pieces], atol=1e-5)
    assert theirs.tokenizer.encode(TEXTS[0]) == ours.tokenizer.encode(TEXTS[0])
    assert theirs.detokenize(range(3, 250)) == ours.detokenize(range(3, 250))


@pytest.mark.ci
@pytest.mark.parametrize("beam_size", by_profile([4], nightly=[1, 4]))
def test_stablehlo_translates_as_the_model(beam_size, learned_workdir, tmp_path):
    search = BeamSearch(beam_size=beam_size)
    export_model("stablehlo", learned_workdir, tmp_path / "out", search=search)
    translator = Translator.load(learned_workdir, search=search)
    program = bytearray((tmp_path / "out" / "translate.jax").read_bytes())
    exported = jax.export.deserialize(program)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    src = np.zeros((len(TEXTS), 64), np.int32)
    for row, text in zip(src, TEXTS, strict=True):
        ids = translator.source_ids(text)
        row[: len(ids)] = ids
    arrays = dict(np.load(tmp_path / "out" / "parameters.npz"))
    tokens, scores = jax.device_get(jax.jit(exported.call)(arrays, src))
    for n, hypotheses in enumerate(translator.hypotheses(TEXTS)):
        for i, hypothesis in enumerate(hypotheses):
            assert tokens[n, i, : len(hypothesis.tokens)].tolist() == hypothesis.tokens
            assert (tokens[n, i, len(hypothesis.tokens) :] == PAD).all()
            assert float(scores[n, i]) == pytest.approx(hypothesis.score, abs=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize(("format", "kind"), [("stablehlo", "ours"), ("ctranslate2", "marian")])
def test_card_runs_without_jaxformer(format, kind, learned_workdir, tmp_path):
    if format == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    if kind == "marian":
        learned_workdir = tmp_path / "run"
        import_marian(MARIAN / "swish_tied", learned_workdir)
    search = BeamSearch(beam_size=1)
    export_model(format, learned_workdir, tmp_path / "out", search=search)
    [expected] = Translator.load(learned_workdir, search=search).translate(TEXTS[:1])
    # Our tokenizer also replaces the symbol in pieces that only the source side knows.
    assert run_card(tmp_path / "out").replace("▁", " ") == f"{expected}\n"


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(["epsilon"], nightly=ARCHITECTURES))
def test_ctranslate2_computes_the_same_scores(name, learned_workdir, tmp_path):
    engine = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    tokenizer = Tokenizer.load(learned_workdir / "tokenizer.model")
    run = random_workdir(tmp_path / "run", tokenizer, **ARCHITECTURES[name])
    export_model("ctranslate2", run, tmp_path / "out")
    model, params = load_model(run)
    src, tgt = [[*tokenizer.encode(text), EOS] for text in (TEXTS[0], "zwei hundert")]
    log_probs = jax.jit(lambda *given: jax.nn.log_softmax(model.apply(*given)))(
        {"params": params}, np.array([src]), np.array([[BOS, *tgt[:-1]]])
    )
    expected = np.asarray(log_probs)[0, range(len(tgt)), tgt]
    translator = engine.Translator(str(tmp_path / "out"), compute_type="float32")
    pieces = [[tokenizer.piece(token) for token in ids[:-1]] for ids in (src, tgt)]
    [found] = translator.score_batch([pieces[0]], [pieces[1]])
    np.testing.assert_allclose(found.log_probs, expected, atol=2e-4)


@pytest.mark.ci
@pytest.mark.parametrize(
    "limits",
    [
        {"beam_size": 4, "max_length": 63, "min_length": 1},
        {"beam_size": 1, "max_length": 14, "min_length": 8, "no_repeat_ngram": 2},
    ],
)
def test_ctranslate2_finds_the_same_translations(limits, learned_workdir, tmp_path):
    """All 500 numbers of the test split, with the settings of docs/export.md and of the card."""
    engine = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    rules = {"ends_within": "N", "early_stop": "full", "unfinished": "compete"}
    search = BeamSearch(penalty="power", length_penalty=1.0, **rules, **limits)
    export_model("ctranslate2", learned_workdir, tmp_path / "out", search=search)
    ours = Translator.load(learned_workdir, search=search)
    texts = [source for source, _ in NumeralsCorpus().pairs("held_out")]
    pieces = [[*map(ours.tokenizer.piece, ours.tokenizer.encode(text))] for text in texts]
    card = (tmp_path / "out" / "README.md").read_text().partition("\noptions = ")[2]
    options = ast.literal_eval(card.partition("\n")[0]) | {"return_end_token": True}
    found = engine.Translator(str(tmp_path / "out"), compute_type="float32").translate_batch(
        pieces, num_hypotheses=search.beam_size, **options
    )
    expected = [[[*map(ours.tokenizer.piece, h.tokens)] for h in n] for n in ours.hypotheses(texts)]
    assert sum(f.hypotheses == e for f, e in zip(found, expected, strict=True)) == len(texts) == 500


@pytest.mark.parametrize("write", [ctranslate2.write, marian.write])
def test_features_that_a_format_does_not_know_are_refused(write, learned_workdir, tmp_path):
    depth = ("depth", int, dataclasses.field(default=0))
    new = dataclasses.make_dataclass("New", [depth], bases=(ModelConfig,), frozen=True)
    model = TrainedModel.load(learned_workdir)
    for change in (
        *({"depth": 8}, {"window": 8}, {"positions": "alibi"}, {"activation": "swiglu"}),
        *({"norm_position": "both"}, {"embeddings": "other"}, {"target_vocab_size": 99}),
        *({"d_v": 4}, {"qk_norm": True}),
    ):
        changed = new(**vars(model.config.model))
        vars(changed).update(change)  # Its own checks would refuse some values.
        config = dataclasses.replace(model.config, model=changed)
        [(name, value)] = change.items()
        with pytest.raises(UserError, match=rf": expected model\.{name}=.*, got {value}; export"):
            write(dataclasses.replace(model, config=config), tmp_path)
    if write is marian.write:
        section = dataclasses.replace(model.config.model, norm_epsilon=1e-3)
        config = dataclasses.replace(model.config, model=section)
        reason = "at most 1e-05, got 0.001: Marian's layer norms add 1e-05, which the first one of"
        with pytest.raises(UserError, match=reason):
            write(dataclasses.replace(model, config=config), tmp_path)
    more = dataclasses.replace(model, params=model.params | {"adapter": np.zeros(3)})
    with pytest.raises(UserError, match="parameters of a ModelConfig, got also adapter; export"):
        write(more, tmp_path)
    config = dataclasses.replace(model.config, model=StudentConfig(vocab_size=300))
    with pytest.raises(UserError, match="paper's model, a ModelConfig, got a StudentConfig; expo"):
        write(dataclasses.replace(model, config=config), tmp_path)


def test_searches_and_options_that_a_format_lacks_are_refused(learned_workdir, tmp_path):
    groups = BeamSearch(beam_size=2, diversity_groups=2, diversity_penalty=0.5)
    new = dataclasses.make_dataclass(
        "New", [("bonus", float, 0.0)], bases=(BeamSearch,), frozen=True, kw_only=True
    )
    refused = "expected search.{0}, got {1}; give --{2}, or export stablehlo instead"
    bonus = refused.format("bonus=0.0", 0.5, "bonus 0.0")
    diverse = refused.format("diversity_groups=1", 2, "diversity-groups 1")
    longer = refused.format("max_extra_length=50", 90, "max-extra-length 50")
    for format, options, message in (
        ("stablehlo", {"search": Sampling()}, "expected beam search, got sampling; in Python"),
        ("ctranslate2", {"search": Sampling()}, "expected beam search, got sampling; in Python"),
        ("ctranslate2", {"search": new(bonus=0.5)}, f"CTranslate2: {bonus}"),
        ("ctranslate2", {"search": groups}, f"CTranslate2: {diverse}"),
        ("marian", {"search": new(bonus=0.5)}, f"Marian: {bonus}"),
        ("marian", {"search": groups}, f"Marian: {diverse}"),
        ("marian", {"search": BeamSearch(max_extra_length=90, max_length=91)}, longer),
        ("marian", {"compute_dtype": "bfloat16"}, "--dtype is for stablehlo only: marian stores"),
    ):
        with pytest.raises(UserError, match=message):
            export_model(format, learned_workdir, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
    search = BeamSearch(min_length=7, no_repeat_ngram=3, max_extra_length=90, max_length=90)
    export_model("marian", learned_workdir, tmp_path / "out", search=search)
    assert "this model's 1e-06" in (tmp_path / "out" / "README.md").read_text()
    import_marian(tmp_path / "out", tmp_path / "again")
    found = read_config(Workdir(tmp_path / "again")).search
    assert (found.min_length, found.no_repeat_ngram, found.beam_size) == (7, 3, 4)


def test_a_folder_of_others_is_not_overwritten(learned_workdir, tmp_path, capsys):
    command = ["export", "safetensors", "--workdir", str(learned_workdir)]
    (tmp_path / "empty").mkdir()
    assert main([*command, "--output", str(tmp_path / "empty")]) == 0
    assert "safetensors, step 1200, 0.1 MB; README.md says how" in capsys.readouterr().out
    before = (tmp_path / "empty" / "model.safetensors").read_bytes()
    assert main([*command, "--output", str(tmp_path / "empty")]) == 2
    assert "expected a new or empty folder, but it holds 'README.md'" in capsys.readouterr().err
    assert (tmp_path / "empty" / "model.safetensors").read_bytes() == before
