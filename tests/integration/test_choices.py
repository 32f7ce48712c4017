"""Multiple choice: of an imported model, and of one that learns."""

import dataclasses
import json

import numpy as np
import pytest

from jaxformer import AnnotatedConfig, Chooser, Config, TrainingConfig, train
from jaxformer.cli import main
from jaxformer.errors import UserError

from ..runs import reports
from .families import imported

pytest.importorskip("tokenizers")

# The rows of the fixture.
EXAMPLES = [
    ("the man sees", ("a cat", "the old house")),
    ("a dog", ("runs!", "two books")),
    ("he has", ("it", "a red dog runs")),
]


def expected_probabilities():
    odds = np.exp(imported("bert_choice").outputs["choice"])
    return odds / odds.sum(axis=1, keepdims=True)


def write(path, examples, labels):
    rows = []
    for (context, choices), label in zip(examples, labels, strict=True):
        rows.append({"context": context, "choices": choices, "label": label})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def test_choices_are_those_of_transformers(capsys, tmp_path):
    workdir = imported("bert_choice").workdir
    expected = expected_probabilities()
    chooser = Chooser.load(workdir)
    np.testing.assert_allclose(chooser.probabilities(EXAMPLES), expected, rtol=1e-4)

    # One example alone, with a choice twice.
    context, (first, second) = EXAMPLES[2]
    [found] = chooser.probabilities([(context, [second, first, first])])
    np.testing.assert_allclose(found[1] / found[0], expected[2, 0] / expected[2, 1], rtol=1e-4)
    assert found[1] == pytest.approx(found[2])

    best = expected.argmax(axis=1)
    path = write(tmp_path / "choices.jsonl", EXAMPLES, [int(best[0]), 1 - int(best[1]), None])
    command = ["choose", "--workdir", str(workdir), "--input", path]
    assert main(command) == 0
    out = capsys.readouterr()
    assert out.out == "".join(f"{number}\n" for number in best)
    assert "accuracy" not in out.err

    write(tmp_path / "choices.jsonl", EXAMPLES, [int(best[0]), 1 - int(best[1]), int(best[2])])
    assert main([*command, "--probabilities"]) == 0
    out = capsys.readouterr()
    rows = zip(expected.max(axis=1), best, strict=True)
    assert out.out == "".join(f"{row:.4f}\t{number}\n" for row, number in rows)
    assert out.err == "accuracy 66.67%, 2 of 3\n"


def test_it_learns_to_choose(tmp_path):
    """The right choice has the word of the context."""
    rng = np.random.default_rng(0)
    words = ["house", "dog", "man", "cat"]
    examples = []
    labels = []
    for _ in range(300):
        one, other = map(str, rng.permutation(words)[:2])
        label = int(rng.integers(2))
        choices = [f"a {other} runs", f"the {other}"]
        choices[label] = f"a {one}"
        examples.append((f"the {one}", choices))
        labels.append(label)

    family = imported("bert_choice")
    model = dataclasses.replace(
        family.trained.config.model,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )
    config = Config(
        model=model,
        data=AnnotatedConfig(
            corpus="choices",
            train=write(tmp_path / "train.jsonl", examples[:260], labels[:260]),
            valid=write(tmp_path / "valid.jsonl", examples[260:], labels[260:]),
            tokens_per_batch=1024,
            max_length=24,
            num_choices=2,
        ),
        training=TrainingConfig(
            init_from=str(family.workdir),
            steps=100,
            warmup_steps=10,
            learning_rate=1e-2,
            schedule="linear",
            label_smoothing=0.0,
            eval_every=100,
            checkpoint_every=100,
            log_every=100,
        ),
    )
    train(config, tmp_path / "run")
    assert reports(tmp_path / "run", "valid")[-1]["accuracy"] > 0.9

    found = Chooser.load(tmp_path / "run").probabilities(examples[260:])
    accuracy = np.mean([row.argmax() for row in found] == np.array(labels[260:]))
    assert accuracy == pytest.approx(reports(tmp_path / "run", "valid")[-1]["accuracy"])


@pytest.mark.parametrize(
    ("line", "model", "message"),
    [
        ("{", {}, ":1: expected a JSON object"),
        ('{"context": "a"}', {}, ":1: expected context to be a text and choices"),
        ('{"context": 1, "choices": ["a"]}', {}, "expected context to be a text and choices"),
        ('{"context": "a", "choices": ["a", "b"]}', {}, ":1: expected a label, got none"),
        ('{"context": "a", "choices": ["a", "b"], "label": 2}', {}, "label to be the number of a"),
        ('{"context": "a", "choices": ["a"], "label": 0}', {}, r"num_choices=2 choices, got 1"),
        ("", {"heads": "pooler"}, "needs choice among model.heads: got 'pooler'"),
    ],
)
def test_other_data_and_models_are_refused(line, model, message, tmp_path):
    (tmp_path / "data.jsonl").write_text(f"{line}\n")
    family = imported("bert_choice")
    data = AnnotatedConfig(
        corpus="choices",
        tokenizer=str(family.workdir),
        train=str(tmp_path / "data.jsonl"),
        valid=str(tmp_path / "data.jsonl"),
        max_length=24,
        num_choices=2,
    )
    section = dataclasses.replace(family.trained.config.model, **model)
    with pytest.raises(UserError, match=message):
        train(Config(model=section, data=data), tmp_path / "run")
