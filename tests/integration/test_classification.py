"""An encoder from labeled lines to the command, and pretrained on masked tokens."""

import collections
import functools
import itertools
import json
import pathlib
import re

import jax
import numpy as np
import pytest
from starlette.testclient import TestClient

from jaxformer import Config, EncoderConfig, LabeledConfig, TrainingConfig, train
from jaxformer.cli import main
from jaxformer.data.tokenizer import BOS, UNK
from jaxformer.errors import UserError
from jaxformer.evaluation.classification_scores import bigram_classifiers, macro_f1
from jaxformer.experiment import make_task
from jaxformer.inference.translator import Translator
from jaxformer.runs.workdir import Workdir
from jaxformer.serving.labels import make_labels
from jaxformer.serving.limits import Limits
from jaxformer.tasks.classification.classification_task import MaskedLoss
from jaxformer.tasks.classification.text_classifier import Classifier
from jaxformer.training.placement import BatchShards

from ..runs import changed, reports, write_lines

GOOD = ["great", "lovely"]
BAD = ["awful", "dull"]
OTHER = ["a", "film", "that", "is", "it", "was"]


def lines(seed, count):
    """The label of a text is the kind of its only word that is not a filler."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        label = number % 2
        words = rng.choice(OTHER, 6).tolist()
        place = rng.integers(6)
        kind = GOOD if label else BAD
        words[place] = str(rng.choice(kind))
        text = " ".join(words)
        yield f"{label} {text}"


def texts_of(lines):
    texts = []
    for line in lines:
        _, _, text = line.partition(" ")
        texts.append(text)
    return texts


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labeled")
    for name, seed, count in (("train", 0, 200), ("valid", 1, 40)):
        (folder / name).write_text("\n".join(lines(seed, count)) + "\n", encoding="utf-8")

    model = EncoderConfig(
        vocab_size=290,
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_layers=1,
        max_length=32,
        dropout_rate=0.1,
    )
    data = LabeledConfig(
        train=f"{folder}/train",
        valid=f"{folder}/valid",
        tokens_per_batch=640,
        max_length=16,
    )
    training = TrainingConfig(
        steps=60,
        warmup_steps=10,
        learning_rate=1e-2,
        log_every=30,
        eval_every=60,
        checkpoint_every=60,
        best_metric="accuracy",
    )
    return Config(model=model, data=data, training=training)


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("classifier") / "run"
    train(config, workdir)
    return workdir


def test_it_learns_the_words_and_the_command_scores_them(run, config, capsys):
    assert reports(run, "valid")[-1]["accuracy"] == 1.0

    pytest.importorskip("sklearn", reason="jaxformer[vision] is not installed")
    labeled = config.data.valid
    command = ["classify", "--workdir", str(run), "--labeled", labeled, "--baselines"]

    assert main([*command, "--input", labeled]) == 2
    message = "error: --labeled has the texts to score: leave --input out\n"
    assert capsys.readouterr().err == message
    for options in (["--output", "labels.txt"], ["--probabilities"], ["--strict"]):
        assert main([*command, *options]) == 2
        message = f"error: --labeled prints scores of all texts: leave {options[0]} out\n"
        assert capsys.readouterr().err == message

    assert main(command) == 0
    out = capsys.readouterr().out.strip()
    _, model, bayes, logistic = out.split("\n")
    assert "model                  accuracy 100.00 (100.00 to 100.00)  macro-F1 100.00" in model
    assert " 100.00 " in bayes
    assert " 100.00 " in logistic


def test_the_command_labels_lines(run, capsys, tmp_path):
    source = tmp_path / "in"
    source.write_text("it was awful\n\na great film\n" + "dull " * 40 + "\n")
    output = tmp_path / "out"
    command = ["classify", "--workdir", str(run), "--input", str(source)]

    assert main([*command, "--output", str(output)]) == 3
    assert "in:4: expected at most 32 tokens" in capsys.readouterr().err
    first, _, third, fourth, end = output.read_text().split("\n")
    assert first == "0"
    assert third == "1"
    assert fourth == ""
    assert end == ""

    assert main([*command, "--strict"]) == 2


def test_probabilities_do_not_depend_on_the_batch(run):
    classifier = Classifier.load(run)
    shown = r"<Classifier: a classifier, \S+ parameters, step \d+, labels .*>"
    assert re.fullmatch(shown, repr(classifier))

    texts = texts_of(lines(2, 70))
    together = classifier.probabilities(texts)  # [B, classes]
    np.testing.assert_allclose(together.sum(axis=1), 1.0, rtol=1e-5)
    [alone] = classifier.probabilities(texts[-1:])
    np.testing.assert_allclose(alone, together[-1], rtol=1e-4)


def test_heads_of_the_classifier_are_masked_on_labeled_texts(run, config, tmp_path, capsys):
    command = ["heads", "--workdir", str(run)]
    picture = tmp_path / "heads.png"
    labeled = ["--labeled", config.data.valid]
    assert main([*command, *labeled, "--output", str(picture)]) == 0
    title, whole, *rest, name = capsys.readouterr().out.splitlines()
    assert title.split() == ["loss", "accuracy"]
    assert name == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [line.split()[:5] for line in rest] == [
        ["encoder", "layer", "1", "head", str(number)] for number in (1, 2)
    ]

    rows = [line.partition(" ") for line in pathlib.Path(config.data.valid).read_text().split("\n")]
    rows = [(text, label) for label, _, text in rows if text]
    probabilities = Classifier.load(run).probabilities([text for text, _ in rows])
    of_true = [row[int(label)] for row, (_, label) in zip(probabilities, rows, strict=True)]
    assert float(whole.split()[2]) == pytest.approx(-np.log(of_true).mean(), abs=6e-4)
    assert float(whole.split()[3]) == 100

    for options, message in (
        ([], f"{run} is a classifier: give --labeled FILE, texts with their labels"),
        (["--source", "a.en"], f"{run} is a classifier: leave --source out"),
        ([*labeled, "--beam-size", "1"], f"{run} is a classifier: leave --beam-size out"),
    ):
        assert main([*command, *options]) == 2
        assert capsys.readouterr().err == f"error: {message}\n"


def test_heads_of_models_without_labels_are_refused(config, tmp_path, capsys):
    masked = changed(
        config,
        data={"corpus": "masked", "mask_rate": 0.15},
        training={"best_metric": None},
    )
    (tmp_path / "config.json").write_text(json.dumps(masked.to_dict()))
    labeled = ["--labeled", config.data.valid]
    assert main(["heads", "--workdir", str(tmp_path), *labeled]) == 2
    error = capsys.readouterr().err
    assert "expected a translation model or a classifier of texts, got a masked language" in error


def test_the_padding_in_the_log_is_of_the_texts_alone(run, config):
    """The labels, one token each, are not computed as a sequence."""
    task = make_task(config, Workdir(run))
    count = int(re.search(r"(\d+) batches an epoch", task.summary())[1])

    batches = task.batches(0, BatchShards(1, (0,), 1))
    epoch = itertools.islice(batches, count)
    tokens = np.concatenate([batch.tokens.ravel() for batch in epoch])
    real = tokens != 0
    assert f": {real.mean():.1%} tokens, " in task.summary()


def test_masked_tokens_are_learned_and_start_a_classifier(run, config, tmp_path):
    text = tmp_path / "text"
    text.write_text("\n".join(texts_of(lines(3, 200))))
    data = {
        "corpus": "masked",
        "train": str(text),
        "valid": str(text),
        "mask_rate": 0.15,
        "tokenizer": str(run),
    }
    settings = {"best_metric": None, "eval_every": 20, "checkpoint_every": 20}
    masked = changed(config, data=data, training=settings)
    pretrained = train(masked, tmp_path / "masked").params["embedding"]
    losses = [row["loss"] for row in reports(tmp_path / "masked", "valid")]
    assert losses[-1] < losses[0]
    assert losses[0] < np.log(290)  # of equal probabilities

    start = {"init_from": str(tmp_path / "masked"), "steps": 1, "checkpoint_every": 1}
    fine_tuned = train(changed(config, training=start), tmp_path / "fine")
    embedding = np.asarray(fine_tuned.params["embedding"])
    moved = np.abs(embedding - pretrained)
    assert moved.max() < 0.02


def test_examples_are_texts_with_their_labels_or_alone(config, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text"
    write_lines(text, texts_of(lines(3, 60)))
    data = {"corpus": "masked", "train": str(text), "valid": str(text), "mask_rate": 0.15}
    for each, pattern in (
        (config, r"pair \d+: [^|]+ \|\|\| [01]"),
        (changed(config, data=data, training={"best_metric": None}), r"pair \d+: [^|]+"),
    ):
        task = make_task(each, Workdir(tmp_path / "run"))
        batches = task.batches(0, BatchShards(1, (0,), 1))
        batch = next(batches)
        found = list(task.examples(0, batch))
        for example in found:
            assert re.fullmatch(pattern, example.text)
            rows = jax.tree.map(lambda x, n=example.row: x[n : n + 1], batch)
            np.testing.assert_equal(rows, example.batch)
        assert len(found) == len(task.example_ids(0))


def test_masks_have_the_rates_of_bert():
    config = EncoderConfig(vocab_size=1000, d_model=8, d_ff=8, num_heads=1, num_layers=1)
    loss = MaskedLoss(config, 0.0, mask_rate=0.15)
    draw = jax.jit(loss.mask_tokens, static_argnums=1)
    rng = np.random.default_rng(0)
    src = rng.integers(UNK + 1, 1000, (64, 500)).astype(np.int32)
    real = src[:, :400]
    src[:, 400:] = 0
    masked, predicted = jax.device_get(draw(src, None))

    assert not predicted[:, 400:].any()
    predicted_rate = predicted[:, :400].mean()
    assert predicted_rate == pytest.approx(0.15, abs=0.01)
    of_masked = masked[predicted]
    is_mask = of_masked == BOS
    assert is_mask.mean() == pytest.approx(0.8, abs=0.03)
    is_kept = of_masked == src[predicted]
    assert is_kept.mean() == pytest.approx(0.1, abs=0.02)

    others = ~predicted[:, :400]
    without_padding = masked[:, :400]
    np.testing.assert_array_equal(without_padding[others], real[others])

    # The masks of a row are the same whatever the other rows are.
    reversed_rows, _ = draw(src[::-1], None)
    np.testing.assert_array_equal(reversed_rows, masked[::-1])


def test_mistakes_in_labels_and_kinds_are_refused_in_one_line(run, config, tmp_path, capsys):
    text = pathlib.Path(config.data.train).read_text()
    (tmp_path / "three").write_text(text + "2 c\n")
    (tmp_path / "none").write_text("0 a\nnothing\n")
    (tmp_path / "one").write_text("0 a\n0 b\n")
    write_lines(tmp_path / "own", [f"{n} a" for n in range(20)])

    for name, message in (
        ("three", "model.num_classes must be 3, for the labels 0, 1, 2: got 2"),
        ("one", r"one: expected examples of at least two classes to train on, got 2 of one"),
        ("own", r"own: expected several examples .* a label of its own: 20 labels of 20 examples"),
        ("none", "none:2: expected a label, a space and a text, got 'nothing'"),
    ):
        data = {"train": str(tmp_path / name), "max_length": 8}
        with pytest.raises(UserError, match=message):
            train(changed(config, data=data), tmp_path / "run")

    data = {"tokenizer": str(run), "valid": str(tmp_path / "three")}
    with pytest.raises(UserError, match="three:201: expected a label of the tokenizer, 0, 1, got"):
        train(changed(config, data=data), tmp_path / "run")

    with pytest.raises(UserError, match="expected a model of sentence pairs or a parser, got a c"):
        Translator.load(run)
    command = ["score", "--workdir", str(run), "--target", config.data.train]
    assert main(command) == 2
    expected = (
        "expected a model of sentence pairs, a parser, a language model or a multi-task agent, got"
    )
    assert f"{run}: {expected}" in capsys.readouterr().err

    with pytest.raises(UserError, match=r"class EncoderConfig or BertConfig with data\.corpus=l"):
        Config(data=config.data)


def test_a_label_that_only_validation_has_is_a_class_and_named(config, tmp_path):
    text = pathlib.Path(config.data.valid).read_text()
    (tmp_path / "valid").write_text(text + "2 c\n")
    more = changed(config, data={"valid": f"{tmp_path}/valid"}, model={"num_classes": 3})
    task = make_task(more, Workdir(tmp_path / "run"))
    *_, note = task.summary().split("\n")
    assert note.startswith("note: classes without training examples: 2; they are 2.4% of the val")


def features(text):
    """Returns the words and the pairs of neighboring words of a text."""
    words = text.split()
    neighbors = map(" ".join, itertools.pairwise(words))
    return {*words, *neighbors}


def test_naive_bayes_is_the_formula():
    pytest.importorskip("sklearn", reason="jaxformer[vision] is not installed")
    examples = [
        ("good film", "1"),
        ("bad film", "0"),
        ("good good plot", "1"),
        ("bad plot", "0"),
        ("dull", "0"),
    ]
    texts = [text for text, _ in examples]
    labels = [label for _, label in examples]
    test = ["good plot", "bad", "film plot", "nothing known"]
    known = set().union(*map(features, texts))

    def score(text, label):
        """Returns log p(label) + the sum of log p(feature | label), smoothed by one."""
        own = [t for t, x in examples if x == label]
        counts = collections.Counter()
        for each in own:
            counts.update(features(each))
        total = counts.total() + len(known)

        log_prob = np.log(len(own) / len(texts))
        for each in features(text) & known:
            log_prob += np.log((counts[each] + 1) / total)
        return log_prob

    bayes, logistic = bigram_classifiers(texts, labels, [*test, *texts])
    expected = []
    for text in test:
        score_of_label = functools.partial(score, text)
        expected.append(max("01", key=score_of_label))
    assert bayes[: len(test)] == expected
    assert logistic[len(test) :] == labels


def test_macro_f1_is_the_formula():
    found = np.array(["a", "a", "b", "b", "b"])
    gold = np.array(["a", "b", "b", "b", "c"])
    # F1 is 2 * correct / (found + gold).
    of_a = 2 * 1 / (2 + 1)
    of_b = 2 * 2 / (3 + 3)
    of_c = 2 * 0 / (0 + 1)
    expected = 100 * (of_a + of_b + of_c) / 3
    assert macro_f1(found, gold) == pytest.approx(expected)


def test_a_server_gives_the_labels_of_python(run, monkeypatch):
    classifier = Classifier.load(run)
    limits = Limits(char_limit=100, batch_limit=3)
    app = make_labels(classifier, "mood", limits)
    texts = texts_of(lines(2, 3))
    expected = classifier.classify(texts)

    with TestClient(app, raise_server_exceptions=False) as client:
        encoded = []
        encode = classifier.tokenizer.encode_batch
        monkeypatch.setattr(
            classifier.tokenizer,
            "encode_batch",
            lambda texts: encoded.extend(texts) or encode(texts),
        )
        assert client.get("/labels").json() == classifier.labels
        assert "/classify" in client.get("/").text

        found = client.post("/classify", json={"q": texts}).json()
        assert encoded == texts  # each once
        assert [each["label"] for each in found] == [label.label for label in expected]
        for each, label in zip(found, expected, strict=True):
            assert each["probability"] == pytest.approx(label.probability, abs=1e-5)
            assert sum(each["probabilities"].values()) == pytest.approx(1, abs=1e-5)
            assert list(each["probabilities"]) == classifier.labels
        # A form has a list only if the field is repeated.
        assert client.post("/classify", data={"q": texts[0]}).json() == found[0]
        assert client.post("/classify", data={"q": texts}).json() == found

        for fields, message in [
            ({}, "expected one parameter q: got 0"),
            ({"q": 1}, "q must be a string or a list of strings"),
            ({"q": []}, "q must be a string or a list of strings"),
            ({"text": "a"}, "unknown parameter text; known: q"),
            ({"q": ["a"] * 4}, "q: expected at most 3 texts: got 4"),
            ({"q": "a" * 101}, "q: expected at most 100 characters in a text: got 101"),
            ({"q": "é ß" * 20}, "tokens"),
        ]:
            response = client.post("/classify", json=fields)
            assert response.status_code == 400
            assert message in response.json()["error"]
