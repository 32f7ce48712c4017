"""Distillation: the hypotheses that a student learns from, interruptions, and the whole command."""

import collections
import dataclasses
import itertools
import re
from typing import NamedTuple

import pytest
import sacrebleu

from jaxformer import Translator, UserError, distillation
from jaxformer.cli import main
from jaxformer.config import read_config
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.inference.weights import TrainedModel
from jaxformer.runs.workdir import Workdir

from ..runs import write_lines, write_pairs

PART = 8
RATIO = 1.4
LOG_PROB = -0.2
FIELDS = [
    "model.vocab_size=300",
    "model.d_model=16",
    "model.d_ff=16",
    "model.num_heads=2",
    "model.num_layers=1",
    "model.num_decoder_layers=1",
    "model.max_length=64",
    "training.steps=2",
    "training.warmup_steps=1",
    "training.eval_sentences=0",
    "data.corpus=text",
    "data.tokens_per_batch=256",
]


@pytest.fixture
def references(tmp_path):
    """Writes a corpus with some wrong references; returns the references of each source."""
    every = NumeralsCorpus().pairs("train")
    short = (pair for pair in every if len(pair[0]) < 30)
    numbers = list(itertools.islice(short, 44))
    pairs = []
    for n, (source, reference) in enumerate(numbers):
        # Every third source has the reference of the source before it.
        if n % 3 == 2:
            _, reference = numbers[n - 1]
        pairs.append((source, reference))
    first_source, _ = pairs[0]
    second_source, _ = pairs[1]
    pairs += [
        (first_source, "siebzehn"),
        ("one " * 70, "eins"),
        ("", "null"),
        ("seven", " "),
    ]

    write_pairs(tmp_path / "train", pairs)
    write_pairs(tmp_path / "valid", numbers[:4])
    write_lines(tmp_path / "more.en", ["two", second_source])

    found = {}
    for source, reference in pairs:
        found.setdefault(source, []).append(reference)
    found["two"] = []
    return found


class Outcome(NamedTuple):
    code: int
    messages: str
    parts: list[int]  # sources in each part that was translated


@pytest.fixture
def command(learned_workdir, references, tmp_path, monkeypatch, capsys):
    """Returns a function that runs the command."""
    monkeypatch.setattr(distillation, "_SOURCES_PER_PART", PART)
    words = [
        f"--teacher={learned_workdir}",
        "--student=student:numerals",
        f"--workdir={tmp_path / 'run'}",
        f"--monolingual={tmp_path / 'more.en'}",
        f"--max-ratio={RATIO}",
        f"--min-log-prob={LOG_PROB}",
        f"--config.data.train={tmp_path / 'train'}",
        f"--config.data.valid={tmp_path / 'valid'}",
    ]
    words += [f"--config.{field}" for field in FIELDS]
    original = Translator.translate_ids

    def call(*more, stop=None):
        translated = []

        def translate_ids(self, sources, **options):
            if len(translated) == stop:
                raise KeyboardInterrupt
            translated.append(len(sources))
            return original(self, sources, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Translator, "translate_ids", translate_ids)
            code = main(["distill", *words, *more])
        return Outcome(code, capsys.readouterr().err, translated)

    return call


def most_similar(hypotheses, reference):
    """Returns the complete hypothesis with the highest chrF; without a reference, the first."""
    complete = [each for each in hypotheses if each.tokens[-1] == 1]
    if not complete:
        return None
    if reference == " ":
        return complete[0]

    def similarity(hypothesis):
        chrf = sacrebleu.sentence_chrf(hypothesis.text, [reference])
        return chrf.score

    return max(complete, key=similarity)


def expected_pairs(teacher, references):
    """Returns the pairs to learn from, whether each is the best one, and numbers of the others."""
    kept = []
    removed = collections.Counter()
    sources = list(references)
    for start in range(0, len(sources), PART):
        part = sources[start : start + PART]
        # A source that is too long for the teacher has no translation, like an empty one.
        short = []
        for source in part:
            is_short = len(source) <= 250
            short.append(source if is_short else "")
        found = teacher.hypotheses(short)
        for source, hypotheses in zip(part, found, strict=True):
            for reference in references[source] or [" "]:
                best = most_similar(hypotheses, reference)
                if best is None:
                    removed["without a complete translation"] += 1
                    continue

                length = len(best.tokens)
                source_length = len(teacher.source_ids(source))
                shorter, longer = sorted([source_length, length])
                if longer / shorter > RATIO:
                    removed[f"with a length ratio above {RATIO}"] += 1
                elif best.log_prob / length < LOG_PROB:
                    removed[f"with a log probability per token below {LOG_PROB}"] += 1
                else:
                    is_first = best is hypotheses[0]
                    kept.append((source, best.text, is_first))
    return kept, removed


def test_the_command_resumes_and_learns_from_the_best_hypotheses(
    command, references, learned_workdir, tmp_path
):
    run = tmp_path / "run"
    teacher = Translator.load(learned_workdir)

    # The interrupted command resumes after its two finished parts.
    first = command(stop=2)
    assert first.code == 130
    assert "interrupted; the same command resumes" in first.messages
    assert not (run / "distilled.en").exists()
    second = command()
    assert second.code == 0
    assert sum(second.parts) == len(references) - 2 * PART

    # The pairs, and why others were removed.
    kept, removed = expected_pairs(teacher, references)
    sources = (run / "distilled.en").read_text().splitlines()
    texts = (run / "distilled.de").read_text().splitlines()
    assert sources == [source for source, _, _ in kept]
    assert texts == [text for _, text, _ in kept]
    assert {is_first for *_, is_first in kept} == {True, False}
    reasons = re.search("kept; removed: (.*)", second.messages)[1].split(", ")
    expected = {f"{count} {reason}" for reason, count in removed.items()}
    assert set(reasons) == expected
    assert len(reasons) == 3

    # The student.
    config = read_config(Workdir(run))
    assert config.data.train == str(run / "distilled")
    assert config.training.steps == 2
    student = TrainedModel.load(run / "quantized")
    assert student.tokenizer.serialized == teacher.tokenizer.serialized
    assert student.config.model == dataclasses.replace(config.model, compute_dtype="int8")

    check_repeated_commands(command, run)
    check_changed_commands(command, learned_workdir, tmp_path)


def check_repeated_commands(command, run):
    """Checks that nothing is translated again, and that no file of the corpus changes."""
    files = {path: path.read_bytes() for path in run.glob("*.??")}

    same = command()
    assert same.code == 0
    assert same.parts == []
    assert "nothing to do: training.steps=2" in same.messages

    longer = command("--config.training.steps=3")
    assert longer.code == 2
    assert longer.parts == []
    assert "quantized: is not of step 3; delete it and run again" in longer.messages

    assert {path: path.read_bytes() for path in run.glob("*.??")} == files


def check_changed_commands(command, learned_workdir, folder):
    """Checks that the teacher, the search and the text of a run cannot change."""
    write_lines(folder / "train.de", ["null"] * 48)
    for more, words in (
        ([f"--ensemble={learned_workdir}"], "with a different teacher and source text; give"),
        (["--beam-size=2"], "with a different search and source text; give the same, and the same"),
        (["--config.data.train=a:2,b:1"], "expected a corpus without weights, got 'a:2,b:1'"),
        ([f"--workdir={folder}/new", "--config.model.vocab_size=301"], "must be 300, the size"),
    ):
        refused = command(*more)
        assert refused.code == 2, refused.messages
        assert words in refused.messages


def test_attention_of_other_heads_is_refused_before_translation(command):
    refused = command("--attention")
    assert refused.code == 2
    assert refused.parts == []
    assert "expected a model of as many heads, 2, got 4; give --config.mod" in refused.messages


def test_a_corpus_without_pairs_is_refused():
    limits = {"max_ratio": 3, "min_log_prob": -1}
    # Each row has a source, a target, their lengths in tokens, and a log probability.
    rows = [
        ("a", "", 2, 0, 0.0),
        ("a", "b", 7, 2, -1.0),
        ("a", "b", 6, 2, -2.2),
    ]
    just_good_enough = ("a", "c", 6, 2, -2.0)
    assert distillation.filter_rows([*rows, just_good_enough], **limits) == [("a", "c")]

    with pytest.raises(UserError, match="train on: 0 of 3 pairs kept; removed: 1 without a compl"):
        distillation.filter_rows(rows, **limits)
