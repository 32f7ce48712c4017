"""Sequence-level knowledge distillation (Kim and Rush 2016): training on a teacher's translations.

Of the teacher's hypotheses for a source, the student learns the most similar to the reference, as
in their sequence-level interpolation; without a reference, the best one.
"""

import collections
import dataclasses
import hashlib
import json
import pathlib
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from sacrebleu.metrics.chrf import CHRF
from tqdm import tqdm

from jaxformer.config import Config, DataConfig, check_kind, data_section
from jaxformer.data.corpus import parse_mixture
from jaxformer.data.held_out import open_splits
from jaxformer.data.text_files import read_file
from jaxformer.data.tokenizer import EOS
from jaxformer.errors import UserError
from jaxformer.experiment import check_experiment, train
from jaxformer.files import write_file
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import TrainedModel, params_sha256, quantize
from jaxformer.kinds import TRANSLATION
from jaxformer.nn.precision import dequantize
from jaxformer.runs.manifest import Manifest
from jaxformer.runs.workdir import Workdir, read_workdir_object
from jaxformer.search import serialization
from jaxformer.tasks.initialization import tokenizer_of_run

Sources: TypeAlias = list[tuple[str, list[str]]]  # with their references
# Source, translation ("" if there is none), their numbers of tokens, and log probability.
Row: TypeAlias = tuple[str, str, int, int, float]

_SOURCES_PER_PART = 4096  # enough for full batches of every length


def distill(
    config: Config,
    teacher: Translator,
    folder: Workdir,
    monolingual: pathlib.Path | None,
    **limits: float,
) -> None:
    """Trains a student on translations of its training sources, and quantizes it to int8.

    Each stage resumes where an earlier call was interrupted. :mod:`jaxformer.cli.distill` describes
    the arguments.
    """
    for each in (config, teacher.config):
        check_kind(each, TRANSLATION)
    data = data_section(config, DataConfig)
    if parse_mixture(data.train):
        raise UserError(f"data.train: expected a corpus without weights, got {data.train!r}")
    train_path, valid_path = (str(folder.path / name) for name in ("distilled", "valid"))
    section = {"corpus": "text", "train": train_path, "valid": valid_path}
    student = dataclasses.replace(config, data=dataclasses.replace(data, **section))
    # Refuses a run that could not begin, before hours of translation.
    check_experiment(student, folder)
    tokenizer_of_run(student, folder, lambda: teacher.tokenizer)
    languages, corpus = (data.source_language, data.target_language), open_splits(data)
    _write_sides(valid_path, languages, corpus.pairs(data.valid))
    sources = collections.defaultdict[str, list[str]](list)
    for source, reference in corpus.pairs(data.train):
        sources[source] += [reference] if reference.strip() else []
    for line in read_file(monolingual) if monolingual else ():
        sources[line] += []
    rows = _translate(teacher, list(sources.items()), folder.path / "translations")
    _write_sides(train_path, languages, filter_rows(rows, **limits))
    train(student, folder.path)
    quantized = Workdir(folder.path / "quantized")
    if not quantized.config.exists():
        quantize(folder.path, quantized.path)
        return
    weights = _without_note(TrainedModel.load(folder.path).weights)
    metadata = Manifest.read(quantized.checkpoints / "0").metadata
    if _without_note(metadata.get("rounded_from")) != weights:
        raise UserError(f"{quantized.path}: is not of {weights}; delete it and run again")


def _without_note(weights: object) -> str:
    """Returns the description of a checkpoint without what it adds about an average."""
    return str(weights).partition(";")[0]


def _write_sides(prefix: str, languages: tuple[str, str], pairs: Iterable[tuple[str, str]]) -> None:
    """Writes line-aligned text, such as ``prefix.en`` and ``prefix.de``."""
    pairs = list(pairs)
    for side, language in enumerate(languages):
        lines = (re.sub(r"[\r\n]", " ", pair[side]) + "\n" for pair in pairs)
        write_file(pathlib.Path(f"{prefix}.{language}"), "".join(lines).encode())


def _translate(teacher: Translator, sources: Sources, folder: pathlib.Path) -> Iterator[Row]:
    """Yields a row for each reference, and for each source without one.

    Rows are kept in files, one for each part of the sources; only missing parts are translated.
    """
    _check_identity(folder / "identity.json", teacher, sources)
    files = f"files of {_SOURCES_PER_PART:,} in {folder}"
    earlier = len(list(folder.glob("*.jsonl")))
    there = f"; {earlier:,} of these are from an earlier call" if earlier else ""
    print(f"translating {len(sources):,} different sources, in {files}{there}", file=sys.stderr)
    began, done = time.monotonic(), 0
    for start in range(0, len(sources), _SOURCES_PER_PART):
        path = folder / f"{start // _SOURCES_PER_PART:05}.jsonl"
        if not path.exists():
            part = sources[start : start + _SOURCES_PER_PART]
            rows = _translate_part(teacher, part, start)
            lines = (f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
            write_file(path, "".join(lines).encode())
            done, end = done + len(part), start + len(part)
            rate = done / (time.monotonic() - began)
            left = tqdm.format_interval(int((len(sources) - end) / rate))
            message = f"translated {end:,} of {len(sources):,} sources, {rate:.1f} sentences/s"
            print(f"{message}, {left} left", file=sys.stderr)
        yield from map(json.loads, read_file(path))


def _check_identity(path: pathlib.Path, teacher: Translator, sources: Sources) -> None:
    """Compares what the translations depend on with what they began with."""
    models = [params_sha256(dequantize(member.params)) for member in teacher.models]
    identity = {
        "teacher": [*models, teacher.tokenizer.sha256, teacher.shortlist is not None],
        "search": serialization.to_dict(teacher.config.search),
        "source text": hashlib.sha256(json.dumps(sources).encode()).hexdigest(),
        "size of parts": _SOURCES_PER_PART,
    }
    began_with = read_workdir_object(path) if path.exists() else identity
    if changed := [name for name in identity if began_with.get(name) != identity[name]]:
        raise UserError(
            f"{path.parent}: holds translations with a different {' and '.join(changed)}; give the "
            "same, and the same --dtype, or another --workdir to translate again"
        )
    write_file(path, json.dumps(identity, indent=2).encode())


def _translate_part(teacher: Translator, part: Sources, first: int) -> Iterator[Row]:
    encoded = teacher.tokenizer.encode_batch([source for source, _ in part])
    ids = [[*row, EOS] if 0 < len(row) < teacher.max_length else [] for row in encoded]
    found, chrf = teacher.translate_ids(ids, first=first), CHRF()
    for (source, references), own, decoded in zip(part, ids, found, strict=True):
        hypotheses = [
            (source, teacher.detokenize(tokens), len(own), len(tokens), log_prob)
            for tokens, _, log_prob in zip(*decoded, strict=True)
            if tokens[-1] == EOS
        ] or [(source, "", 0, 0, 0.0)]
        for reference in references or [""]:
            scores = [chrf.sentence_score(text, [reference]).score for _, text, *_ in hypotheses]
            yield hypotheses[scores.index(max(scores))]  # without a reference, all scores are 0


def filter_rows(
    rows: Iterable[Row], *, max_ratio: float, min_log_prob: float
) -> list[tuple[str, str]]:
    """Returns the pairs to learn from; prints the number of the others, and why."""
    kept, removed = [], collections.Counter[str]()
    for source, target, source_tokens, target_tokens, log_prob in rows:
        shorter, longer = sorted([source_tokens, target_tokens])
        if not target.strip():
            removed["without a complete translation"] += 1
        elif longer > max_ratio * shorter:
            removed[f"with a length ratio above {max_ratio:g}"] += 1
        elif log_prob < min_log_prob * target_tokens:
            removed[f"with a log probability per token below {min_log_prob:g}"] += 1
        else:
            kept.append((source, target))
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in removed.items()) or "none"
    line = f"{len(kept):,} of {len(kept) + removed.total():,} pairs kept; removed: {reasons}"
    if not kept:
        raise UserError(f"expected sentences to train on: {line}")
    print(line, file=sys.stderr)
    return kept
