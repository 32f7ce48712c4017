"""Distillation: the hypotheses that a student learns from, interruptions, and the whole command."""

import dataclasses
import itertools
import re

import pytest
import sacrebleu

from jaxformer import Translator, UserError, distillation
from jaxformer.cli import main
from jaxformer.config import read_config
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.inference.weights import TrainedModel
from jaxformer.runs.workdir import Workdir

PART, RATIO, LOG_PROB = 8, 1.4, -0.2
FIELDS = """model.vocab_size=300 model.d_model=16 model.d_ff=16 model.num_heads=2 model.num_layers=1
    model.num_decoder_layers=1 model.max_length=64 training.steps=2 training.warmup_steps=1
    training.eval_sentences=0 data.corpus=text data.tokens_per_batch=256"""


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def references(tmp_path):
    """Writes a corpus with some wrong references; returns the references of each source."""
    short = (pair for pair in NumeralsCorpus().pairs("train") if len(pair[0]) < 30)
    numbers = list(itertools.islice(short, 44))
    pairs = [(source, numbers[n - n % 3 // 2][1]) for n, (source, _) in enumerate(numbers)]
    pairs += [(pairs[0][0], "siebzehn"), ("one " * 70, "eins"), ("", "null"), ("seven", " ")]
    for side, language in enumerate(("en", "de")):
        write(tmp_path / f"train.{language}", [pair[side] for pair in pairs])
        write(tmp_path / f"valid.{language}", [pair[side] for pair in numbers[:4]])
    write(tmp_path / "more.en", ["two", pairs[1][0]])
    found = {source: [] for source, _ in [*pairs, ("two", "")]}
    for source, reference in pairs:
        found[source].append(reference)
    return found


@pytest.fixture
def command(learned_workdir, references, tmp_path, monkeypatch, capsys):
    """Returns a function that runs the command: exit code, messages, and sizes of the parts."""
    monkeypatch.setattr(distillation, "_SOURCES_PER_PART", PART)
    fields = [*FIELDS.split(), *(f"data.{name}={tmp_path / name}" for name in ("train", "valid"))]
    options = {
        "teacher": learned_workdir,
        "student": "student:numerals",
        "workdir": tmp_path / "run",
    }
    options |= {"monolingual": tmp_path / "more.en", "max-ratio": RATIO, "min-log-prob": LOG_PROB}
    words = [f"--{name}={value}" for name, value in options.items()]
    words += [f"--config.{field}" for field in fields]
    original, translated = Translator.translate_ids, []

    def call(*more, stop=None):
        translated.clear()

        def translate_ids(self, sources, **options):
            if len(translated) == stop:
                raise KeyboardInterrupt
            translated.append(len(sources))
            return original(self, sources, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Translator, "translate_ids", translate_ids)
            return main(["distill", *words, *more]), capsys.readouterr().err, list(translated)

    return call


def expected_pairs(teacher, references):
    """Returns the pairs to learn from, whether each is the best one, and numbers of the others."""
    kept, removed, sources = [], [0, 0, 0], list(references)
    for start in range(0, len(sources), PART):
        part = sources[start : start + PART]
        found = teacher.hypotheses(["" if len(source) > 250 else source for source in part])
        for source, hypotheses in zip(part, found, strict=True):
            for reference in references[source] or [" "]:
                best, score = None, -1.0
                for each in (each for each in hypotheses if each.tokens[-1] == 1):
                    chrf = sacrebleu.sentence_chrf(each.text, [reference]).score
                    if best is None or (chrf > score and reference != " "):
                        best, score = each, chrf
                sizes = sorted([len(teacher.source_ids(source)), len(best.tokens)]) if best else []
                if best is None:
                    removed[0] += 1
                elif sizes[1] / sizes[0] > RATIO:
                    removed[1] += 1
                elif best.log_prob / len(best.tokens) < LOG_PROB:
                    removed[2] += 1
                else:
                    kept.append((source, best.text, best is hypotheses[0]))
    return kept, removed


def test_the_command_resumes_and_learns_from_the_best_hypotheses(
    command, references, learned_workdir, tmp_path
):
    run, teacher = tmp_path / "run", Translator.load(learned_workdir)
    code, messages, _ = command(stop=2)
    assert code == 130
    assert "interrupted; the same command resumes" in messages
    assert not (run / "distilled.en").exists()
    code, messages, translated = command()
    assert (code, sum(translated)) == (0, len(references) - 2 * PART)
    kept, removed = expected_pairs(teacher, references)
    texts = [(run / f"distilled.{language}").read_text().splitlines() for language in ("en", "de")]
    assert list(zip(*texts, strict=True)) == [(source, text) for source, text, _ in kept]
    assert {True, False} == {is_first for *_, is_first in kept}
    counts = re.findall(r"(\d+) with", re.search("kept; removed: .*", messages)[0])
    assert sorted(map(int, counts)) == sorted(removed)
    assert all(removed)
    config, student = read_config(Workdir(run)), TrainedModel.load(run / "quantized")
    assert (config.data.train, config.training.steps) == (str(run / "distilled"), 2)
    assert student.tokenizer.serialized == teacher.tokenizer.serialized
    assert student.config.model == dataclasses.replace(config.model, compute_dtype="int8")
    files = {path: path.read_bytes() for path in run.glob("*.??")}
    code, messages, translated = command()
    assert (code, translated) == (0, [])
    assert "nothing to do: training.steps=2" in messages
    code, messages, translated = command("--config.training.steps=3")
    assert (code, translated) == (2, [])
    assert "quantized: is not of step 3; delete it and run again" in messages
    assert files == {path: path.read_bytes() for path in run.glob("*.??")}
    write(tmp_path / "train.de", ["null"] * 48)
    for more, words in (
        ([f"--ensemble={learned_workdir}"], "with a different teacher and source text; give"),
        (["--beam-size=2"], "with a different search and source text; give the same, and the same"),
        (["--config.data.train=a:2,b:1"], "expected a corpus without weights, got 'a:2,b:1'"),
        ([f"--workdir={tmp_path}/new", "--config.model.vocab_size=301"], "must be 300, the size"),
    ):
        code, messages, _ = command(*more)
        assert (code, words in messages) == (2, True), messages


def test_a_corpus_without_pairs_is_refused():
    rows = [("a", "", 2, 0, 0.0), ("a", "b", 7, 2, -1.0), ("a", "b", 6, 2, -2.2)]
    limits = {"max_ratio": 3, "min_log_prob": -1}
    assert distillation.filter_rows([*rows, ("a", "c", 6, 2, -2.0)], **limits) == [("a", "c")]
    with pytest.raises(UserError, match="train on: 0 of 3 pairs kept; removed: 1 without a compl"):
        distillation.filter_rows(rows, **limits)
