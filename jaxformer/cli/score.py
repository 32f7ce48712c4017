"""The command ``score``: scores given translations."""

import argparse
import json
import math
from collections.abc import Iterator
from typing import NamedTuple

from jaxformer.cli.progress import load, progress
from jaxformer.cli.text import (
    Text,
    bad_lines,
    check_outputs,
    is_on_screen,
    read_in_blocks,
    writing,
)
from jaxformer.data.text_files import paired
from jaxformer.data.tokenizer import EOS
from jaxformer.errors import UserError
from jaxformer.inference.pair_scores import Score, score_pairs
from jaxformer.inference.translator import Translator


class Pair(NamedTuple):
    """Token ids of a pair of lines.

    Attributes:
      source: Source ids.
      target: Target ids.
      error: The reason why the pair cannot be scored, with its number; None if it can.
    """

    source: list[int]
    target: list[int]
    error: str | None = None


def score(options: argparse.Namespace) -> None:
    """Writes the score of each target line given its source line.

    A pair that cannot be read or scored is reported, and its score is nan.

    Raises:
      UserError: A file cannot be read, the numbers of lines differ, or, with ``--strict``, a line
        cannot be scored.
      SomeLinesError: Some pairs could not be scored.
    """
    check_outputs([options.source, options.target], {"--output": options.output})
    source, target = Text(options.source), Text(options.target)
    translator = load(options)
    total, arriving = read_in_blocks(
        lambda: _encoded(translator, source, target),
        stream=source.stream or target.stream,
        strict=options.strict,
    )
    style = json_line if options.json else score_line
    with (
        bad_lines() as report_bad,
        writing(options.output) as write,
        progress(total, hidden=is_on_screen(options.output)) as report,
    ):
        for block in arriving:
            report_bad(block)
            pairs = [(pair.source, pair.target) for pair in block]
            write(map(style, block, score_pairs(translator, pairs, report=report)))


def score_line(pair: Pair, result: Score) -> str:
    """Formats a score as text.

    >>> score_line(Pair([5, 1], [6, 1]), Score(score=-0.5, log_prob=-0.6, length=2))
    '-0.500000'
    >>> score_line(Pair([], [], "in.txt:2: not UTF-8"), Score(0.0, 0.0, 0))
    'nan'
    """
    return f"{math.nan if pair.error else result.score:.6f}"


def json_line(pair: Pair, result: Score) -> str:
    """Formats a score as JSON; infinity and nan, which JSON lacks, become null.

    >>> json_line(Pair([5, 1], [6, 1]), Score(score=-math.inf, log_prob=-math.inf, length=2))
    '{"score": null, "log_prob": null, "length": 2}'
    >>> json_line(Pair([], [], "in.txt:2: not UTF-8"), Score(0.0, 0.0, 0))
    '{"score": null, "log_prob": null, "length": 0, "error": "in.txt:2: not UTF-8"}'
    """
    if pair.error is not None:
        values = {"score": None, "log_prob": None, "length": 0, "error": pair.error}
        return json.dumps(values, ensure_ascii=False)
    values = result._asdict().items()
    return json.dumps({name: v if math.isfinite(v) else None for name, v in values})


def _encoded(translator: Translator, source: Text, target: Text) -> Iterator[Pair]:
    """Yields the token ids of all pairs; a pair that cannot be scored becomes blank."""
    lines = paired(source.lines(), target.lines(), source.name, target.name)
    for number, (source_line, target_line) in enumerate(lines, start=1):
        error = source_line.error or target_line.error
        try:
            source_ids = translator.source_ids(source_line.text, f"{source.name}:{number}")
            target_ids = translator.target_ids(target_line.text, f"{target.name}:{number}")
        except UserError as too_long:
            error = error or str(too_long)
        if error is not None:
            yield Pair([], [], error)
        else:
            # The empty translation of a sentence is end-of-sentence alone.
            yield Pair(source_ids, target_ids or ([EOS] if source_ids else []))
