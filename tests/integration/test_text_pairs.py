"""Classes and numbers of pairs of texts: of imported models, and of models that learn."""

import dataclasses
import pathlib
import tempfile
from typing import Any

import numpy as np
import pytest

from jaxformer import AnnotatedConfig, Classifier, Config, Regressor, TrainingConfig, train
from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.evaluation.correlations import correlations
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.huggingface.importer import import_huggingface

from ..runs import reports
from .families import imported

pytest.importorskip("tokenizers")

CLASSIFIER = pathlib.Path(__file__).parents[1] / "fixtures" / "bert" / "classifier"
# The rows of the fixtures.
TEXTS = ["the old house", "a dog runs!", "two books"]
PAIRS = [("the man sees", "a cat"), ("", "dog"), ("he has it", "the house is red.")]
LABELS = ["good", "not bad", "bad"]
WORDS = ["house", "dog", "man", "cat"]


@pytest.fixture(scope="module")
def classifier():
    workdir = pathlib.Path(tempfile.mkdtemp()) / "run"
    import_huggingface(CLASSIFIER, workdir)
    return workdir


def test_the_classes_of_pairs_are_those_of_transformers(classifier, capsys, tmp_path):
    logits = np.load(CLASSIFIER / "outputs.npz")["classes"]
    odds = np.exp(logits)
    expected = odds / odds.sum(axis=1, keepdims=True)
    model = Classifier.load(classifier)
    mixed = model.probabilities([*TEXTS, *PAIRS])
    np.testing.assert_allclose(mixed, expected, rtol=1e-4)
    np.testing.assert_allclose(model.probabilities(PAIRS[2:]), expected[5:], rtol=1e-4)

    source = tmp_path / "pairs"
    source.write_text("".join(f"{first}\t{second}\n" for first, second in PAIRS) + "a dog\n")
    command = ["classify", "--workdir", str(classifier), "--pairs", "--input", str(source)]
    assert main([*command, "--probabilities"]) == 3
    out = capsys.readouterr()
    lines = [f"{row.max():.4f}\t{LABELS[row.argmax()]}\n" for row in expected[3:]]
    assert out.out == "".join([*lines, "\n"])
    assert "pairs:4: expected two texts with a tab between, got 0 tabs" in out.err


def test_the_numbers_of_texts_and_pairs_are_those_of_transformers(capsys, tmp_path):
    family = imported("bert_score")
    expected = family.outputs["score"]
    found = Regressor.load(family.workdir).predict([*TEXTS, *PAIRS])
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    alone = Regressor.load(family.workdir).predict(PAIRS[2:])
    np.testing.assert_allclose(alone, expected[5:], rtol=1e-5)

    source = tmp_path / "texts"
    source.write_text("".join(f"{text}\n" for text in TEXTS) + "dog " * 40 + "\n")
    command = ["predict", "--workdir", str(family.workdir), "--input", str(source)]
    assert main(command) == 3
    assert capsys.readouterr().out == "".join([*(f"{x:.4f}\n" for x in expected[:3]), "\n"])

    labeled = tmp_path / "labeled"
    numbers = [0.5, 1, -2]
    rows = zip(numbers, PAIRS, strict=True)
    labeled.write_text("".join(f"{number}\t{one}\t{two}\n" for number, (one, two) in rows))
    assert main([*command[:3], "--labeled", str(labeled)]) == 0
    scores = correlations(expected[3:].tolist(), numbers)
    values = f"Pearson {scores.pearson:.4f}  Spearman {scores.spearman:.4f}  3 texts\n"
    assert capsys.readouterr().out == values


def pairs(seed, count):
    """Yields pairs, and whether the second text has the first one's word."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        one, other = map(str, rng.permutation(WORDS)[:2])
        is_same = number % 2 == 0
        yield (f"the {one}", f"a {one if is_same else other} runs"), is_same


def write(path, seed, count, labels):
    lines = [
        f"{labels[is_same]}\t{first}\t{second}\n" for (first, second), is_same in pairs(seed, count)
    ]
    path.write_text("".join(lines))
    return str(path)


def learn(workdir, folder, corpus, labels, **model):
    """Trains on pairs, and returns the run."""
    section = dataclasses.replace(
        TrainedModel.load(workdir).config.model,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        **model,
    )
    config = Config(
        model=section,
        data=AnnotatedConfig(
            corpus=corpus,
            train=write(folder / "train.tsv", 0, 400, labels),
            valid=write(folder / "valid.tsv", 1, 40, labels),
            tokens_per_batch=512,
            max_length=24,
        ),
        training=TrainingConfig(
            init_from=str(workdir),
            steps=200,
            warmup_steps=20,
            learning_rate=1e-2,
            schedule="linear",
            label_smoothing=0.0,
            eval_every=200,
            checkpoint_every=200,
            log_every=200,
        ),
    )
    train(config, folder / "run")
    return folder / "run"


def test_it_learns_classes_of_pairs(classifier, tmp_path, capsys):
    labels = {True: "same", False: "other"}
    run = learn(classifier, tmp_path, "labeled_pairs", labels, num_classes=2)
    assert reports(run, "valid")[-1]["accuracy"] > 0.9

    # The run knows that its lines are pairs.
    command = ["classify", "--workdir", str(run), "--labeled", str(tmp_path / "valid.tsv")]
    capsys.readouterr()
    assert main(command) == 0
    accuracy = 100 * reports(run, "valid")[-1]["accuracy"]
    assert f"  accuracy {accuracy:.2f} (" in capsys.readouterr().out
    assert main([*command, "--baselines"]) == 2
    message = "error: --baselines are of single texts: leave it out with pairs\n"
    assert capsys.readouterr().err == message


def test_it_learns_numbers_of_pairs(tmp_path):
    run = learn(imported("bert_score").workdir, tmp_path, "scored", {True: 1.5, False: -0.5})
    last = reports(run, "valid")[-1]
    assert last["pearson"] > 0.8
    assert last["spearman"] > 0.7
    assert last["loss"] < 0.5


@pytest.mark.parametrize(
    ("corpus", "line", "model", "message"),
    [
        ("labeled_pairs", "a\tb\n", {}, ":1: expected a label, a text and another text, with ta"),
        ("labeled_pairs", "\tb\tc\n", {}, ":1: expected a label before the first tab, got none"),
        ("labeled_pairs", "a\tb\tc\nb\tb\tc\n", {}, "num_classes must be 2, for the labels a, b"),
        ("labeled_pairs", "a\tb\tc\n", {"num_classes": 0}, "needs model.num_classes above 0"),
        ("scored", "x\tb\tc\n", {}, ":1: expected a number before the first tab, got 'x'"),
        ("scored", "1\tb\n1\tb\tc\n", {}, ":2: expected a number and a text, with tabs betw"),
        ("scored", "nan\tb\n", {}, ":1: expected a number before the first tab, got 'nan'"),
        ("scored", "1\tb\n", {"heads": "pooler"}, "needs score among model.heads: got 'pooler'"),
    ],
)
def test_other_data_and_models_are_refused(corpus, line, model, message, classifier, tmp_path):
    (tmp_path / "data").write_text(line)
    workdir = classifier if corpus == "labeled_pairs" else imported("bert_score").workdir
    data = AnnotatedConfig(
        corpus=corpus,
        tokenizer=str(workdir),
        train=str(tmp_path / "data"),
        valid=str(tmp_path / "data"),
        max_length=24,
    )
    section = dataclasses.replace(TrainedModel.load(workdir).config.model, **model)
    training = TrainingConfig(label_smoothing=0.0)
    with pytest.raises(UserError, match=message):
        train(Config(model=section, data=data, training=training), tmp_path / "run")


def test_other_inputs_are_refused(classifier):
    model: Any = Classifier.load(classifier)
    with pytest.raises(UserError, match="texts:1: expected a text or a pair of texts, got 3 texts"):
        model.classify([("a", "b", "c")])
    with pytest.raises(UserError, match="texts: expected a list of texts, got one string"):
        model.classify("a dog")
    with pytest.raises(UserError, match="texts:1: expected text, got bytes"):
        model.classify([b"a dog"])
