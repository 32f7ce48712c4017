"""Distillation: the hypotheses that a student learns from, interruptions, and the whole command."""

import dataclasses
import itertools
import re

import pytest
import sacrebleu

from jaxformer import Translator, distillation
from jaxformer.cli import main
from jaxformer.config import read_config
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.inference.weights import TrainedModel
from jaxformer.runs.workdir import Workdir

PART, PAIRS, RATIO, LOG_PROB = 8, 44, 1.4, -0.2
STUDENT = (
    *("model.vocab_size=300", "model.d_model=16", "model.d_ff=16", "model.num_heads=2"),
    *("model.num_layers=1", "model.num_decoder_layers=1", "model.max_length=64"),
    *("training.steps=2", "training.warmup_steps=1", "training.eval_sentences=0"),
    *("data.corpus=text", "data.tokens_per_batch=256"),
)


class Killed(BaseException):
    """Stands in for the end of the process."""


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))


def read(path):
    return path.read_text().splitlines()


@pytest.fixture
def corpus(tmp_path):
    """Writes training pairs with some wrong references, and returns them."""
    numbers = list(itertools.islice(NumeralsCorpus().pairs("train"), PAIRS))
    pairs = [(s, numbers[n - n % 3 // 2][1]) for n, (s, _) in enumerate(numbers)]
    pairs += [(pairs[0][0], "siebzehn"), ("one " * 70, "eins"), ("", "null"), ("seven", " ")]
    for side, language in enumerate(("en", "de")):
        write(tmp_path / f"train.{language}", [pair[side] for pair in pairs])
        write(tmp_path / f"valid.{language}", [pair[side] for pair in numbers[:4]])
    write(tmp_path / "more.en", ["two", pairs[1][0]])
    return pairs


@pytest.fixture
def command(learned_workdir, corpus, tmp_path, monkeypatch, capsys):
    """Returns a function that runs the command and returns exit code, messages and translations."""
    monkeypatch.setattr(distillation, "_SOURCES_PER_PART", PART)
    words = ["distill", "--teacher", str(learned_workdir), "--student", "student:numerals"]
    words += ["--workdir", str(tmp_path / "run"), "--monolingual", str(tmp_path / "more.en")]
    words += ["--max-ratio", str(RATIO), "--min-log-prob", str(LOG_PROB)]
    fields = [*STUDENT, *(f"data.{split}={tmp_path / split}" for split in ("train", "valid"))]
    words += [f"--config.{field}" for field in fields]
    original = Translator.translate_ids

    def call(*more, kill=None):
        translated = []

        def translate_ids(self, sources, *args, **options):
            if len(translated) == kill:
                raise Killed
            translated.append(len(sources))
            return original(self, sources, *args, **options)

        monkeypatch.setattr(Translator, "translate_ids", translate_ids)
        try:
            code = main([*words, *more])
        except Killed:
            code = None
        monkeypatch.setattr(Translator, "translate_ids", original)
        return code, capsys.readouterr().err, translated

    return call


def expected_pairs(teacher, pairs, more):
    """Returns the pairs to learn from, and the number of removed ones by reason."""
    references = {}
    for source, reference in pairs:
        references.setdefault(source, []).append(reference)
    references |= {source: [" "] for source in more if source not in references}
    kept, counts, sources = (
        [],
        dict.fromkeys(("complete", "ratio", "probability"), 0),
        [*references],
    )
    for start in range(0, len(sources), PART):
        part = sources[start : start + PART]
        texts = ["" if len(source) > 250 else source for source in part]
        for source, found in zip(part, teacher.hypotheses(texts), strict=True):
            for reference in references[source]:
                best, score = None, -1.0
                for each in found:
                    chrf = sacrebleu.sentence_chrf(each.text, [reference]).score
                    if each.tokens[-1] == 1 and chrf > score and (reference != " " or best is None):
                        best, score = each, chrf
                if best is None:
                    counts["complete"] += 1
                    continue
                a, b = len(teacher.source_ids(source)), len(best.tokens)
                if a / b > RATIO or b / a > RATIO:
                    counts["ratio"] += 1
                elif best.log_prob / b < LOG_PROB:
                    counts["probability"] += 1
                else:
                    kept.append((source, best.text, best is found[0]))
    return kept, counts


def test_the_command_resumes_and_learns_from_the_best_hypotheses(
    command, corpus, learned_workdir, tmp_path
):
    run, sources = tmp_path / "run", len(dict(corpus)) + 1
    code, _, translated = command(kill=2)
    assert (code, translated) == (None, [PART, PART])
    assert not (run / "distilled.en").exists()
    code, messages, translated = command()
    assert (code, sum(translated)) == (0, sources - 2 * PART)
    teacher = Translator.load(learned_workdir)
    kept, counts = expected_pairs(teacher, corpus, read(tmp_path / "more.en"))
    assert all(counts.values())
    assert {True, False} <= {is_first for *_, is_first in kept}
    files = [read(run / f"distilled.{language}") for language in ("en", "de")]
    assert list(zip(*files, strict=True)) == [(source, text) for source, text, _ in kept]
    removed = re.search(r"pairs kept; removed: (.*)", messages)[1]
    assert sorted(map(int, re.findall(r"(\d+) with", removed))) == sorted(counts.values())
    student = read_config(Workdir(run))
    assert (student.data.train, student.training.steps) == (str(run / "distilled"), 2)
    assert (run / "tokenizer.model").read_bytes() == teacher.tokenizer.serialized
    model = TrainedModel.load(run / "quantized").config.model
    assert dataclasses.replace(model, compute_dtype="float32") == student.model
    before = {path: path.read_bytes() for path in run.glob("*.??")}
    code, messages, translated = command()
    assert (code, translated) == (0, [])
    assert "nothing to do: training.steps=2" in messages
    assert before == {path: path.read_bytes() for path in run.glob("*.??")}
    for more, name in {("--beam-size", "2"): "search", ("--dtype", "int8"): "teacher"}.items():
        code, messages, _ = command(*more)
        assert code == 2
        assert f"began with another {name}; give the same" in messages
    write(tmp_path / "more.en", ["three"])
    code, messages, _ = command()
    assert code == 2
    assert "began with another sources; give the same" in messages
