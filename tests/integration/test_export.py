"""Exports against the models that they came from, and against the systems that they are for.

``benchmarks/exports.py`` compares translations of real text with transformers and CTranslate2.
"""

import ast
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import flax.traverse_util
import jax
import numpy as np
import pytest
import safetensors.numpy
import sentencepiece

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
    sizes = {
        "vocab_size": tokenizer.vocab_size,
        "d_model": 16,
        "d_ff": 24,
        "num_heads": 2,
        "num_layers": 2,
        "max_length": 40,
    }
    data = dataclasses.replace(Config().data, max_length=32)
    config = Config(model=ModelConfig(**sizes | model), data=data)
    random = np.random.default_rng(0)

    def leaf(path, like):
        center = 1.0 if path[-1].key == "scale" else 0.0
        return np.float32(center + 0.3 * random.standard_normal(like.shape))

    params = jax.tree_util.tree_map_with_path(leaf, abstract_params(config.model))
    write_model(
        Workdir(workdir),
        "a test",
        {"tokenizer": tokenizer.sha256},
        tokenizer=tokenizer.serialized,
        config=config,
        params=params,
    )
    return workdir


def run_card(folder):
    """Runs the code of a model card where there is no jaxformer; returns what it prints."""
    card = (folder / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert code is not None

    absent = "import sys; sys.modules['jaxformer'] = None\n"
    of_our_text = code[1].replace("A dog runs.", TEXTS[0])
    done = subprocess.run(
        [sys.executable, "-c", absent + of_our_text],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_safetensors_keep_every_bit(learned_workdir, tmp_path):
    folder = tmp_path / "numerals"
    export_model("safetensors", learned_workdir, folder)

    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    assert "encoder.layers.self_attention.query" in arrays
    found = flax.traverse_util.unflatten_dict(arrays, sep=".")
    model, params = load_model(learned_workdir)
    jax.tree.map(np.testing.assert_array_equal, found, jax.device_get(params))

    config = Config.from_dict(json.loads((folder / "config.json").read_bytes()))
    assert config.model == model.config

    tokenizer = Tokenizer.load(folder / "tokenizer.model").sha256
    identity = json.loads((learned_workdir / "identity.json").read_bytes())
    assert tokenizer == identity["tokenizer"]

    card = (folder / "README.md").read_text(encoding="utf-8")
    count = sum(array.size for array in arrays.values())
    assert card.startswith("# numerals\n")
    for fact in ("en to de", "license | (please fill in)", f"{count:,}", "step 1200", tokenizer):
        assert f"| {fact}" in card


@pytest.mark.parametrize("name", ["swish_tied", "silu_tied_target"])
def test_marian_is_the_inverse_of_the_import(name, tmp_path):
    """The files of transformers come back: weights bit for bit, vocabulary and settings."""
    original = MARIAN / name
    out = tmp_path / "out"
    import_marian(original, tmp_path / "run")
    export_model("marian", tmp_path / "run", out)

    found = safetensors.numpy.load_file(out / "model.safetensors")
    expected = safetensors.numpy.load_file(original / "model.safetensors")
    expected["final_logits_bias"][0, -1] = 0  # Padding, which cannot be generated.
    if name == "silu_tied_target":  # The output is a copy here.
        expected["lm_head.weight"] = expected["model.decoder.embed_tokens.weight"]
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)

    not_ours = {
        "max_length",
        "model_max_length",
        "share_encoder_decoder_embeddings",
        "tie_word_embeddings",
    }
    for file in ("vocab.json", "config.json", "generation_config.json", "tokenizer_config.json"):
        theirs = json.loads((original / file).read_text().replace('"silu"', '"swish"'))
        ours = json.loads((out / file).read_bytes())
        common = (ours.keys() & theirs.keys()) - not_ours
        assert len(common) >= 2
        assert {key: ours[key] for key in common} == {key: theirs[key] for key in common}

    for side in ("source.spm", "target.spm"):
        assert (out / side).read_bytes() == (original / side).read_bytes()


@pytest.mark.ci
@pytest.mark.parametrize("embeddings", by_profile(["separate"], nightly=["tied", "separate"]))
def test_marian_export_of_our_own_model(embeddings, learned_workdir, tmp_path):
    """Our import, which equals transformers, computes the same from the export."""
    tokenizer = Tokenizer.load(learned_workdir / "tokenizer.model")
    run = random_workdir(tmp_path / "run", tokenizer, embeddings=embeddings, norm_epsilon=1e-5)
    export_model("marian", run, tmp_path / "marian")
    import_marian(tmp_path / "marian", tmp_path / "back")
    ours = Translator.load(run)
    theirs = Translator.load(tmp_path / "back")
    src = np.array([ours.source_ids(TEXTS[0])])  # [1, S]
    tgt_in = np.array([[BOS, *ours.target_ids("zwei")]])  # [1, T]

    def logits_of(translator):
        _, params = translator.models[0]
        apply = jax.jit(Transformer(translator.config.model).apply)
        return np.asarray(apply({"params": params}, src, tgt_in))  # [1, T, V]

    pieces = [EOS, *range(UNK, tokenizer.vocab_size)]
    found = logits_of(theirs)[..., pieces]
    expected = logits_of(ours)[..., pieces]
    np.testing.assert_allclose(found, expected, atol=1e-5)

    assert theirs.tokenizer.encode(TEXTS[0]) == ours.tokenizer.encode(TEXTS[0])
    assert theirs.detokenize(range(3, 250)) == ours.detokenize(range(3, 250))


@pytest.mark.ci
@pytest.mark.parametrize("beam_size", by_profile([4], nightly=[1, 4]))
def test_stablehlo_translates_as_the_model(beam_size, learned_workdir, tmp_path):
    search = BeamSearch(beam_size=beam_size)
    export_model("stablehlo", learned_workdir, tmp_path / "out", search=search)

    program = bytearray((tmp_path / "out" / "translate.jax").read_bytes())
    exported = jax.export.deserialize(program)
    assert exported.platforms == ("cpu", "cuda", "tpu")

    translator = Translator.load(learned_workdir, search=search)
    src = np.zeros((len(TEXTS), 64), np.int32)
    for row, text in zip(src, TEXTS, strict=True):
        ids = translator.source_ids(text)
        row[: len(ids)] = ids
    arrays = dict(np.load(tmp_path / "out" / "parameters.npz"))
    # [B, N, T] and [B, N]
    tokens, scores = jax.device_get(jax.jit(exported.call)(arrays, src))

    for n, hypotheses in enumerate(translator.hypotheses(TEXTS)):
        for i, hypothesis in enumerate(hypotheses):
            length = len(hypothesis.tokens)
            assert tokens[n, i, :length].tolist() == hypothesis.tokens
            assert (tokens[n, i, length:] == PAD).all()
            assert float(scores[n, i]) == pytest.approx(hypothesis.score, abs=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize(("format", "kind"), [("stablehlo", "ours"), ("ctranslate2", "marian")])
def test_card_runs_without_jaxformer(format, kind, learned_workdir, tmp_path):
    if format == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    workdir = learned_workdir
    if kind == "marian":
        workdir = tmp_path / "run"
        import_marian(MARIAN / "swish_tied", workdir)

    search = BeamSearch(beam_size=1)
    export_model(format, workdir, tmp_path / "out", search=search)
    printed = run_card(tmp_path / "out")

    [expected] = Translator.load(workdir, search=search).translate(TEXTS[:1])
    # Our tokenizer also replaces the symbol in pieces that only the source side knows.
    assert printed.replace("▁", " ") == f"{expected}\n"


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(["epsilon"], nightly=ARCHITECTURES))
def test_ctranslate2_computes_the_same_scores(name, learned_workdir, tmp_path):
    engine = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    tokenizer = Tokenizer.load(learned_workdir / "tokenizer.model")
    run = random_workdir(tmp_path / "run", tokenizer, **ARCHITECTURES[name])
    export_model("ctranslate2", run, tmp_path / "out")
    source = tokenizer.encode(TEXTS[0])
    target = tokenizer.encode("zwei hundert")

    model, params = load_model(run)
    log_probs_of = jax.jit(lambda *given: jax.nn.log_softmax(model.apply(*given)))
    src = np.array([[*source, EOS]])
    tgt_in = np.array([[BOS, *target]])
    [log_probs] = np.asarray(log_probs_of({"params": params}, src, tgt_in))  # [T, V]
    tgt_out = [*target, EOS]
    expected = log_probs[range(len(tgt_out)), tgt_out]

    translator = engine.Translator(str(tmp_path / "out"), compute_type="float32")
    source_pieces = [tokenizer.piece(token) for token in source]
    target_pieces = [tokenizer.piece(token) for token in target]
    [found] = translator.score_batch([source_pieces], [target_pieces])
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
    search = BeamSearch(
        penalty="power",
        length_penalty=1.0,
        ends_within="N",
        early_stop="full",
        unfinished="compete",
        **limits,
    )
    export_model("ctranslate2", learned_workdir, tmp_path / "out", search=search)
    ours = Translator.load(learned_workdir, search=search)
    texts = [source for source, _ in NumeralsCorpus().pairs("held_out")]
    assert len(texts) == 500

    def pieces(ids):
        return [ours.tokenizer.piece(token) for token in ids]

    card = (tmp_path / "out" / "README.md").read_text()
    _, _, after = card.partition("\noptions = ")
    options = ast.literal_eval(after.partition("\n")[0])
    options["return_end_token"] = True
    sources = [pieces(ours.tokenizer.encode(text)) for text in texts]
    translator = engine.Translator(str(tmp_path / "out"), compute_type="float32")
    theirs = translator.translate_batch(sources, num_hypotheses=search.beam_size, **options)

    for hypotheses, result in zip(ours.hypotheses(texts), theirs, strict=True):
        assert result.hypotheses == [pieces(each.tokens) for each in hypotheses]


@pytest.mark.ci
def test_a_package_of_argos_has_the_model_and_its_languages(learned_workdir, tmp_path):
    """CTranslate2 loads the model in it, and SentencePiece the tokenizer."""
    engine = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    export_model("argos", learned_workdir, tmp_path / "out")
    export_model("argos", learned_workdir, tmp_path / "again")

    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["README.md", "translate-en_de.argosmodel"]
    package = tmp_path / "out" / names[1]
    assert package.read_bytes() == (tmp_path / "again" / names[1]).read_bytes()

    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / "translate-en_de-jaxformer"
    metadata = json.loads((folder / "metadata.json").read_bytes())
    assert metadata["from_code"] == "en"
    assert metadata["from_name"] == "English"
    assert metadata["to_code"] == "de"
    assert metadata["to_name"] == "German"
    # LibreTranslate replaces a package by a newer one of the index, whose versions are up to 1.9.6.
    assert float(metadata["package_version"]) > 1.9

    # As argostranslate 1.11 does.
    spm = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    translator = engine.Translator(str(folder / "model"), compute_type="float32")
    sources = [spm.encode(text, out_type=str) for text in TEXTS[2:]]
    results = translator.translate_batch(sources, beam_size=4, length_penalty=0.2)
    found = ["".join(result.hypotheses[0]).replace("▁", " ").lstrip() for result in results]

    search = BeamSearch(
        penalty="power",
        length_penalty=0.2,
        ends_within="N",
        early_stop="full",
        unfinished="compete",
        min_length=1,
    )
    assert found == Translator.load(learned_workdir, search=search).translate(TEXTS[2:])


def test_what_a_package_of_argos_cannot_have(learned_workdir, tmp_path):
    import_marian(MARIAN / "swish_tied", tmp_path / "marian")
    with pytest.raises(UserError, match="one vocabulary for both languages, got one for each"):
        export_model("argos", tmp_path / "marian", tmp_path / "out")

    config = json.loads((learned_workdir / "config.json").read_bytes())
    run = tmp_path / "run"
    shutil.copytree(learned_workdir, run)
    config["data"]["source_language"] = "../en"
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"codes of languages such as en, got '\.\./en'"):
        export_model("argos", run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@dataclasses.dataclass(frozen=True)
class WithDepth(ModelConfig):
    """A model with a setting that no format knows."""

    depth: int = 0


UNKNOWN = [
    ("depth", 8),
    ("window", 8),
    ("positions", "alibi"),
    ("activation", "swiglu"),
    ("norm_position", "both"),
    ("embeddings", "other"),
    ("target_vocab_size", 99),
    ("d_v", 4),
    ("qk_norm", True),
]


@pytest.mark.parametrize("write", [ctranslate2.write, marian.write])
def test_features_that_a_format_does_not_know_are_refused(write, learned_workdir, tmp_path):
    model = TrainedModel.load(learned_workdir)

    for name, value in UNKNOWN:
        changed = WithDepth(**vars(model.config.model))
        vars(changed)[name] = value  # Its own checks would refuse some values.
        config = dataclasses.replace(model.config, model=changed)
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
    student = dataclasses.replace(model, config=config)
    with pytest.raises(UserError, match="paper's model, a ModelConfig, got a StudentConfig; expo"):
        write(student, tmp_path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithBonus(BeamSearch):
    """A search with a setting that no format knows."""

    bonus: float = 0.0


def test_searches_and_options_that_a_format_lacks_are_refused(learned_workdir, tmp_path):
    bonus = {"search": WithBonus(bonus=0.5)}
    groups = {"search": BeamSearch(beam_size=2, diversity_groups=2, diversity_penalty=0.5)}
    longer = {"search": BeamSearch(max_extra_length=90, max_length=91)}
    sampling = {"search": Sampling()}

    refused = "expected search.{}, got {}; give --{}, or export stablehlo instead"
    no_bonus = refused.format("bonus=0.0", 0.5, "bonus 0.0")
    one_group = refused.format("diversity_groups=1", 2, "diversity-groups 1")
    shorter = refused.format("max_extra_length=50", 90, "max-extra-length 50")
    beam = "expected beam search, got sampling; in Python"
    for format, options, message in (
        ("stablehlo", sampling, beam),
        ("ctranslate2", sampling, beam),
        ("ctranslate2", bonus, f"CTranslate2: {no_bonus}"),
        ("ctranslate2", groups, f"CTranslate2: {one_group}"),
        ("marian", bonus, f"Marian: {no_bonus}"),
        ("marian", groups, f"Marian: {one_group}"),
        ("marian", longer, shorter),
        ("marian", {"compute_dtype": "bfloat16"}, "--dtype is for stablehlo only: marian stores"),
    ):
        with pytest.raises(UserError, match=message):
            export_model(format, learned_workdir, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()


def test_marian_keeps_the_settings_of_a_search(learned_workdir, tmp_path):
    search = BeamSearch(min_length=7, no_repeat_ngram=3, max_extra_length=90, max_length=90)
    export_model("marian", learned_workdir, tmp_path / "out", search=search)
    assert "this model's 1e-06" in (tmp_path / "out" / "README.md").read_text()

    import_marian(tmp_path / "out", tmp_path / "again")
    found = read_config(Workdir(tmp_path / "again")).search
    assert found.min_length == 7
    assert found.no_repeat_ngram == 3
    assert found.beam_size == 4


def test_a_folder_of_others_is_not_overwritten(learned_workdir, tmp_path, capsys):
    folder = tmp_path / "empty"
    folder.mkdir()
    command = ["export", "safetensors", "--workdir", str(learned_workdir), "--output", str(folder)]

    assert main(command) == 0
    assert "safetensors, step 1200, 0.1 MB; README.md says how" in capsys.readouterr().out

    before = (folder / "model.safetensors").read_bytes()
    assert main(command) == 2
    assert "expected a new or empty folder, but it holds 'README.md'" in capsys.readouterr().err
    assert (folder / "model.safetensors").read_bytes() == before
