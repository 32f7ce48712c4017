"""The command ``score``: scores given translations."""

import argparse
import json
import math
from collections.abc import Iterator
from typing import TypeAlias

from jaxformer.cli.progress import load, progress
from jaxformer.cli.text import BLOCK, Text, blocks, check_outputs, is_on_screen, paired, writing
from jaxformer.data.tokenizer import EOS
from jaxformer.inference.pair_scores import Score, score_pairs
from jaxformer.inference.translator import Translator

Pair: TypeAlias = tuple[list[int], list[int]]


def score(options: argparse.Namespace) -> None:
    """Writes the score of each target line given its source line.

    Raises:
      UserError: A file cannot be read, the numbers of lines differ, or a line is too long.
    """
    check_outputs([options.source, options.target], {"--output": options.output})
    source, target = Text(options.source), Text(options.target)
    translator = load(options)

    def pairs() -> Iterator[Pair]:
        return _encoded(translator, source, target)

    total = None if source.stream or target.stream else sum(1 for _ in pairs())
    on_screen = is_on_screen(options.output)
    style = json_line if options.json else "{0.score:.6f}".format
    with (
        writing(options.output) as write,
        progress(total, hidden=on_screen) as report,
    ):
        for block in blocks(pairs(), BLOCK):
            write(map(style, score_pairs(translator, block, report=report)))


def json_line(result: Score) -> str:
    """Formats a score as JSON; infinity, which JSON lacks, becomes null.

    >>> json_line(Score(score=-math.inf, log_prob=-math.inf, length=3))
    '{"score": null, "log_prob": null, "length": 3}'
    """
    values = result._asdict().items()
    return json.dumps({name: v if math.isfinite(v) else None for name, v in values})


def _encoded(translator: Translator, source: Text, target: Text) -> Iterator[Pair]:
    lines = paired(source.lines(), target.lines(), source.name, target.name)
    for number, (source_line, target_line) in enumerate(lines, start=1):
        source_ids = translator.source_ids(source_line, f"{source.name}:{number}")
        target_ids = translator.target_ids(target_line, f"{target.name}:{number}")
        # The empty translation of a sentence is end-of-sentence alone.
        yield source_ids, target_ids or ([EOS] if source_ids else [])
