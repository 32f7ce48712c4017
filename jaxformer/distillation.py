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
import time
from collections.abc import Iterable, Iterator, Sequence
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
from jaxformer.inference.conversions import quantize
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import TrainedModel
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.runs.manifest import Manifest
from jaxformer.runs.workdir import Workdir, read_workdir_object
from jaxformer.search import serialization
from jaxformer.tasks.initialization import tokenizer_of_run
from jaxformer.waits import log_stream

Sources: TypeAlias = list[tuple[str, list[str]]]  # with their references
# Source, translation ("" if there is none), their numbers of tokens, and log probability.
Row: TypeAlias = tuple[str, str, int, int, float]

_SOURCES_PER_PART = 4096  # enough for full batches of every length


def distill(
    config: Config,
    teacher: Translator,
    folder: Workdir,
    monolingual: pathlib.Path | None,
    *,
    max_ratio: float,
    min_log_prob: float,
) -> None:
    """Trains a student on translations of its training sources, and quantizes it to int8.

    Each stage resumes where an earlier call was interrupted.
    :mod:`jaxformer.cli.commands.distill` describes the arguments.
    """
    for each in (config, teacher.config):
        check_kind(each, TRANSLATION)
    data = data_section(config, DataConfig)
    if parse_mixture(data.train):
        raise UserError(f"data.train: expected a corpus without weights, got {data.train!r}")

    train_path = str(folder.path / "distilled")
    valid_path = str(folder.path / "valid")
    student_data = dataclasses.replace(
        data,
        corpus="text",
        train=train_path,
        valid=valid_path,
    )
    student = dataclasses.replace(config, data=student_data)

    # Refuses a run that could not begin, before hours of translation.
    check_experiment(student, folder)
    tokenizer_of_run(student, folder, lambda: teacher.tokenizer)

    languages = (data.source_language, data.target_language)
    corpus = open_splits(data)
    _write_sides(valid_path, languages, corpus.pairs(data.valid))

    sources = _collect_sources(corpus.pairs(data.train), monolingual)
    rows = _translate(teacher, sources, folder.path / "translations")
    kept = filter_rows(rows, max_ratio=max_ratio, min_log_prob=min_log_prob)
    _write_sides(train_path, languages, kept)

    train(student, folder.path)
    _quantize_once(folder)


def _collect_sources(pairs: Iterable[tuple[str, str]], monolingual: pathlib.Path | None) -> Sources:
    """Returns each different source with its references; lines of ``monolingual`` have none."""
    references_of = collections.defaultdict[str, list[str]](list)
    for source, reference in pairs:
        references = references_of[source]
        if reference.strip():
            references.append(reference)

    if monolingual:
        for line in read_file(monolingual):
            references_of.setdefault(line, [])
    return list(references_of.items())


def _quantize_once(folder: Workdir) -> None:
    """Quantizes the student, or checks that an earlier call has quantized the same weights."""
    quantized = Workdir(folder.path / "quantized")
    if not quantized.config.exists():
        quantize(folder.path, quantized.path)
        return

    model = TrainedModel.load(folder.path)
    weights = _without_note(model.weights)
    manifest = Manifest.read(quantized.checkpoints / "0")
    quantized_weights = _without_note(manifest.metadata.get("rounded_from"))
    if quantized_weights != weights:
        raise UserError(f"{quantized.path}: is not of {weights}; delete it and run again")


def _without_note(weights: object) -> str:
    """Returns the description of a checkpoint without what it adds about an average."""
    description, _, _ = str(weights).partition(";")
    return description


def _write_sides(prefix: str, languages: tuple[str, str], pairs: Iterable[tuple[str, str]]) -> None:
    """Writes line-aligned text, such as ``prefix.en`` and ``prefix.de``."""
    pairs = list(pairs)
    for side, language in enumerate(languages):
        lines = []
        for pair in pairs:
            text = re.sub(r"[\r\n]", " ", pair[side])
            lines.append(f"{text}\n")

        path = pathlib.Path(f"{prefix}.{language}")
        content = "".join(lines)
        write_file(path, content.encode())


def _translate(teacher: Translator, sources: Sources, folder: pathlib.Path) -> Iterator[Row]:
    """Yields a row for each reference, and for each source without one.

    Rows are kept in files, one for each part of the sources; only missing parts are translated.
    """
    _check_identity(folder / "identity.json", teacher, sources)
    message = f"translating {len(sources):,} different sources"
    message += f", in files of {_SOURCES_PER_PART:,} in {folder}"
    num_earlier = len(list(folder.glob("*.jsonl")))
    if num_earlier:
        message += f"; {num_earlier:,} of these are from an earlier call"
    print(message, file=log_stream())

    began = time.monotonic()
    num_translated = 0  # in this call
    for start in range(0, len(sources), _SOURCES_PER_PART):
        number = start // _SOURCES_PER_PART
        path = folder / f"{number:05}.jsonl"
        if not path.exists():
            part = sources[start : start + _SOURCES_PER_PART]
            rows = _translate_part(teacher, part, start)
            _write_rows(path, rows)

            end = start + len(part)
            num_translated += len(part)
            seconds = time.monotonic() - began
            rate = num_translated / seconds
            seconds_left = (len(sources) - end) / rate
            left = tqdm.format_interval(int(seconds_left))
            message = f"translated {end:,} of {len(sources):,} sources, {rate:.1f} sentences/s"
            print(f"{message}, {left} left", file=log_stream())

        for line in read_file(path):
            yield json.loads(line)


def _write_rows(path: pathlib.Path, rows: Iterable[Row]) -> None:
    """Writes JSON Lines."""
    lines = []
    for row in rows:
        text = json.dumps(row, ensure_ascii=False)
        lines.append(f"{text}\n")

    content = "".join(lines)
    write_file(path, content.encode())


def _check_identity(path: pathlib.Path, teacher: Translator, sources: Sources) -> None:
    """Compares what the translations depend on with what they began with."""
    models = teacher.models.identity()
    source_text = json.dumps(sources).encode()
    identity = {
        "teacher": [*models, teacher.tokenizer.sha256, teacher.shortlist is not None],
        "search": serialization.to_dict(teacher.config.search),
        "source text": hashlib.sha256(source_text).hexdigest(),
        "size of parts": _SOURCES_PER_PART,
    }

    began_with = identity
    if path.exists():
        began_with = read_workdir_object(path)
    changed = [name for name in identity if began_with.get(name) != identity[name]]
    if changed:
        raise UserError(
            f"{path.parent}: holds translations with a different {' and '.join(changed)}; give the "
            "same, and the same --dtype, or another --workdir to translate again"
        )

    content = json.dumps(identity, indent=2)
    write_file(path, content.encode())


def _translate_part(teacher: Translator, part: Sources, first: int) -> Iterator[Row]:
    """Yields the rows of some sources; sources that are too long have no translation."""
    texts = [source for source, _ in part]
    encoded = teacher.tokenizer.encode_batch(texts)
    source_ids = []
    for tokens in encoded:
        is_translated = 0 < len(tokens) < teacher.max_length
        if is_translated:
            source_ids.append([*tokens, teacher.tokenizer.source_end])
        else:
            source_ids.append([])

    found = teacher.translate_ids(source_ids, first=first)
    chrf = CHRF()
    for (source, references), ids, decoded in zip(part, source_ids, found, strict=True):
        hypotheses: list[Row] = []
        for tokens, log_prob in zip(decoded.tokens, decoded.log_probs, strict=True):
            is_complete = tokens[-1] == EOS
            if is_complete:
                text = teacher.detokenize(tokens)
                hypothesis = (source, text, len(ids), len(tokens), log_prob)
                hypotheses.append(hypothesis)
        if not hypotheses:
            hypotheses.append((source, "", 0, 0, 0.0))

        # Without a reference, all scores are 0, and the best hypothesis is the first.
        for reference in references or [""]:
            yield _most_similar(hypotheses, reference, chrf)


def _most_similar(hypotheses: Sequence[Row], reference: str, chrf: CHRF) -> Row:
    """Returns the hypothesis that is most similar to a reference; of equals, the first."""
    scores = []
    for _, text, *_ in hypotheses:
        similarity = chrf.sentence_score(text, [reference])
        scores.append(similarity.score)

    best = scores.index(max(scores))
    return hypotheses[best]


def filter_rows(
    rows: Iterable[Row],
    *,
    max_ratio: float,
    min_log_prob: float,
) -> list[tuple[str, str]]:
    """Returns the pairs to learn from; prints the number of the others, and why."""
    kept = []
    removed = collections.Counter[str]()

    for source, target, source_tokens, target_tokens, log_prob in rows:
        shorter = min(source_tokens, target_tokens)
        longer = max(source_tokens, target_tokens)
        if not target.strip():
            removed["without a complete translation"] += 1
        elif longer > max_ratio * shorter:
            removed[f"with a length ratio above {max_ratio:g}"] += 1
        elif log_prob < min_log_prob * target_tokens:
            removed[f"with a log probability per token below {min_log_prob:g}"] += 1
        else:
            kept.append((source, target))

    counts = [f"{count:,} {reason}" for reason, count in removed.items()]
    reasons = ", ".join(counts) or "none"
    num_pairs = len(kept) + removed.total()
    line = f"{len(kept):,} of {num_pairs:,} pairs kept; removed: {reasons}"
    if not kept:
        raise UserError(f"expected sentences to train on: {line}")
    print(line, file=log_stream())
    return kept
