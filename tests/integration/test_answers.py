"""Answers to questions: of an imported model by brute force, and of one that learns."""

import dataclasses
import functools
import json
import os

import jax
import numpy as np
import pytest

from jaxformer import Config, Reader, TrainingConfig, load_model, train
from jaxformer.cli import main
from jaxformer.config import AnnotatedConfig, data_section
from jaxformer.data.questions import make_windows
from jaxformer.errors import UserError
from jaxformer.tasks.question_answering.reader import best_spans

from ..runs import reports
from .families import imported

pytest.importorskip("tokenizers")

# A text of several windows of at most 24 tokens, and one of one window.
LONG = "the old house is red. a dog runs! he has it, two books; the man sees a cat"
QUESTIONS = [("who runs?", LONG), ("what?", "two books"), ("a man?", LONG[:40])]


def test_best_spans_are_the_best_of_all_spans():
    rng = np.random.default_rng(0)
    for size, longest in ((7, 3), (4, 9), (1, 1)):
        logits = rng.normal(size=(size, 2))
        every = []
        for first in range(size):
            for last in range(first, min(first + longest, size)):
                every.append((logits[first, 0] + logits[last, 1], first, last))

        expected = sorted(every, reverse=True)[:5]
        assert best_spans(logits, longest, 5) == expected
    assert best_spans(np.zeros((0, 2)), 3, 5) == []


@functools.cache
def reader():
    return Reader.load(imported("bert_spans").workdir)


@functools.cache
def network():
    model, params = load_model(imported("bert_spans").workdir)
    return jax.jit(functools.partial(model.apply, {"params": params}, method="span_logits"))


def every_span(question, text, longest):
    """Returns the score of each span of a text, by its characters, and of [CLS] in each window."""
    data = data_section(reader().config, AnnotatedConfig)
    windows = make_windows(
        reader().tokenizer,
        question,
        text,
        max_length=data.max_length,
        stride=data.stride,
    )
    spans = {}
    nulls = []
    for window in windows:
        # Padded to the same length, for one program.
        padding = [(0, 24 - len(window.tokens))]
        tokens = np.pad(window.tokens, padding)[None]
        logits = np.asarray(network()(tokens, token_types=np.pad(window.types, padding)[None])[0])
        nulls.append(logits[0].sum())

        for i, (start, _) in enumerate(window.spans):
            for j, (_, end) in enumerate(window.spans[i : i + longest], start=i):
                score = logits[window.first + i, 0] + logits[window.first + j, 1]
                spans[start, end] = max(score, spans.get((start, end), -np.inf))
    return spans, nulls


def test_answers_are_the_best_spans_of_all_windows():
    together = reader().answers(QUESTIONS, num_answers=3, max_answer_length=4)
    for (question, text), answers in zip(QUESTIONS, together, strict=True):
        spans, _ = every_span(question, text, longest=4)
        best = sorted(spans, key=lambda span: -spans[span])
        assert [(answer.start, answer.end) for answer in answers] == best[:3]

        scores = np.array([spans[span] for span in best[:20]])
        np.testing.assert_allclose([answer.score for answer in answers], scores[:3], rtol=1e-4)
        odds = np.exp(scores) / np.exp(scores).sum()
        found = [answer.probability for answer in answers]
        np.testing.assert_allclose(found, odds[:3], rtol=1e-3)
        for answer in answers:
            assert answer.text == text[answer.start : answer.end]


def test_an_answer_does_not_depend_on_the_others():
    together = reader().answers(QUESTIONS)
    for (question, text), [found] in zip(QUESTIONS, together, strict=True):
        alone = reader().answer(question, text)
        assert alone[:3] == found[:3]
        assert alone.score == pytest.approx(found.score, rel=1e-5)


def test_no_answer_is_preferred_above_a_threshold():
    for question, text in QUESTIONS:
        spans, nulls = every_span(question, text, longest=30)
        margin = min(nulls) - max(spans.values())

        blank = reader().answer(question, text, no_answer=margin - 0.01)
        assert blank[:3] == ("", 0, 0)
        assert blank.score == pytest.approx(min(nulls), rel=1e-4)
        other = reader().answer(question, text, no_answer=margin + 0.01)
        assert other.text

    # A text without tokens has no other answer.
    assert reader().answer("who?", " ").text == ""


def squad(path, count, seed):
    """Writes questions about the color of things, which only the text has."""
    rng = np.random.default_rng(seed)
    questions = []
    for number in range(count):
        things = rng.permutation(["house", "book", "cat", "dog"])
        colors = rng.permutation(["red", "old", "two", "the"])
        text = " ".join(f"{thing} is {color}" for thing, color in zip(things, colors, strict=True))
        chosen = rng.integers(4)
        start = text.index(f"{things[chosen]} is") + len(things[chosen]) + len(" is ")
        answer = {"text": str(colors[chosen]), "answer_start": int(start)}
        questions.append(
            {
                "context": text,
                "qas": [{"id": f"q{number}", "question": str(things[chosen]), "answers": [answer]}],
            }
        )
    path.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": questions}]}))
    return str(path)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    family = imported("bert_spans")
    model = dataclasses.replace(
        family.trained.config.model,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        max_length=48,
        d_model=32,
        d_ff=64,
    )
    config = Config(
        model=model,
        data=AnnotatedConfig(
            tokenizer=str(family.workdir),
            train=squad(folder / "train.json", 2000, seed=0),
            valid=squad(folder / "valid.json", 40, seed=1),
            tokens_per_batch=1024,
            max_length=48,
            stride=8,
        ),
        training=TrainingConfig(
            steps=300,
            warmup_steps=20,
            learning_rate=4e-3,
            schedule="linear",
            label_smoothing=0.0,
            eval_every=150,
            checkpoint_every=150,
            log_every=150,
            best_metric="f1",
        ),
    )
    train(config, folder / "run")
    return folder


def test_it_learns_answers(learned):
    first, last = reports(learned / "run", "valid")
    assert last["loss"] < first["loss"]
    assert last["f1"] >= last["exact_match"] > 60


def test_the_command_answers_one_question(learned, capsys, tmp_path):
    context = tmp_path / "page.txt"
    context.write_text("cat is the\nhouse is red\nbook is old\ndog is two\n")
    command = ["answer", "--workdir", str(learned / "run"), "--context-file", str(context)]
    assert main([*command, "--question", "house"]) == 0
    expected = Reader.load(learned / "run").answer("house", context.read_text().rstrip("\n"))
    assert capsys.readouterr().out == f"{' '.join(expected.text.split())}\n"

    assert main([*command, "--question", "house", "--answers", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first, second = map(json.loads, lines)
    assert first["answer"] == expected.text
    assert first["probability"] > second["probability"]
    assert list(first) == ["id", "question", "answer", "start", "end", "score", "probability"]


def test_the_command_scores_many_questions(learned, capsys, tmp_path):
    valid = str(learned / "valid.json")
    command = ["answer", "--workdir", str(learned / "run"), "--input", valid]
    output = tmp_path / "predictions.json"
    assert main([*command, "--output", str(output)]) == 0

    last = reports(learned / "run", "valid")[-1]
    expected = f"exact match {last['exact_match']:.2f}, F1 {last['f1']:.2f}, 40 questions\n"
    assert capsys.readouterr().err == expected
    answers = json.loads(output.read_text())
    assert list(answers) == [f"q{number}" for number in range(40)]

    assert main(command) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["id"]: line["answer"] for line in lines} == answers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --question TEXT, or --input FILE with many questions"),
        (["--question", "who?", "--input", "a.json"], "give either --question TEXT, or --input"),
        (["--input", "a.json", "--context-file", "b"], "leave --context-file out"),
        (["--input", "a.json"], "a.json: cannot be read"),
        (["--question", " "], "--question: expected a question, got a blank one"),
        (["--question", "who?", "--answers", "0"], "--answers: expected at least 1, got 0"),
        (
            ["--input", "a.json", "--answers", "2", "--output", "b.json"],
            "--answers 2 needs lines: give --output a name that does not end with .json",
        ),
        (["--question", "who?", "--context-file", os.devnull], "expected a text with the answer"),
    ],
)
def test_mistakes_of_the_command(options, message, capsys):
    command = ["answer", "--workdir", str(imported("bert_spans").workdir)]
    assert main([*command, *options]) == 2
    assert message in capsys.readouterr().err


def test_other_models_and_arguments_are_refused(learned, tmp_path):
    with pytest.raises(UserError, match="num_answers must be at least 1: got 0"):
        reader().answers(QUESTIONS, num_answers=0)
    with pytest.raises(UserError, match="questions:1: expected a question that leaves space"):
        reader().answer("who runs? " * 9, "a dog")

    family = imported("bert_spans")
    model = family.trained.config.model
    data = AnnotatedConfig(
        train=str(learned / "valid.json"),
        valid=str(learned / "valid.json"),
        max_length=24,
    )
    with pytest.raises(UserError, match="needs the tokenizer of an imported BERT: give its"):
        train(Config(model=model, data=data), tmp_path / "run")
    other = dataclasses.replace(model, heads="pooler")
    with pytest.raises(UserError, match=r"needs spans among model\.heads: got 'pooler'; give"):
        train(Config(model=other, data=data), tmp_path / "run")

    unknown = tmp_path / "unknown.jsonl"
    unknown.write_text('{"question": "who?", "context": "a dog"}\n')
    data = dataclasses.replace(data, train=str(unknown), tokenizer=str(family.workdir))
    with pytest.raises(UserError, match=r"unknown\.jsonl: question 1: expected answers, got none"):
        train(Config(model=model, data=data), tmp_path / "run")
