"""The command ``score``: scores given translations."""

import json as json_lib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from jaxformer import pretrained
from jaxformer.cli.options import (
    File,
    ModelOptions,
    SearchOptions,
    Strict,
    TranslatorDir,
    searches,
)
from jaxformer.cli.signatures import Fields
from jaxformer.cli.text import Text, check_outputs, is_on_screen, reading, writing
from jaxformer.data.text_files import paired
from jaxformer.errors import UserError

if TYPE_CHECKING:
    from jaxformer.inference.pair_scores import Score
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


def score(
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    source: File,
    target: File,
    output: File | None = None,
    strict: Strict = False,
    json: bool = False,
    model: ModelOptions,
    penalty: Annotated[
        dict[str, Any], Fields(lambda: searches()[:1], "score", ("penalty", "length_penalty"))
    ],
) -> None:
    """Score given translations: log probability divided by the length penalty, for each line.

    Text: A blank target is scored as the empty translation. A blank source scores 0 if the target
    is blank, too, and else -inf. A line that is too long or not UTF-8 has the score nan, with
    --json an object with an error.
      source: source text
      target: translation, line by line
      output: file for the scores (default: standard output)
      json: print lines of JSON: score, log_prob (null for -inf) and length in tokens

    Score: Defaults come from the run's config.

    Example:
      jaxformer score --workdir runs/multi30k --source test.en --target test.de
      -0.512345
      -0.734567
    """
    check_outputs([source, target], {"--output": output})
    texts = Text(source), Text(target)
    translator = model.load(workdir, SearchOptions(changes=penalty).settings(workdir))
    from jaxformer.inference.pair_scores import score_pairs

    style = _json_line if json else _score_line
    with (
        reading(
            lambda: _encoded(translator, *texts),
            stream=any(text.stream for text in texts),
            strict=strict,
            hidden=is_on_screen(output),
        ) as (blocks, report),
        writing(output) as write,
    ):
        for block in blocks:
            pairs = [(pair.source, pair.target) for pair in block]
            write(map(style, block, score_pairs(translator, pairs, report=report)))


def _score_line(pair: Pair, result: "Score") -> str:
    return f"{math.nan if pair.error else result.score:.6f}"


def _json_line(pair: Pair, result: "Score") -> str:
    """Formats a score as JSON; infinity and nan, which JSON lacks, become null."""
    values = {n: v if math.isfinite(v) else None for n, v in result._asdict().items()}
    if pair.error is not None:
        values |= {"score": None, "log_prob": None, "error": pair.error}
    return json_lib.dumps(values, ensure_ascii=False)


def _encoded(translator: "Translator", source: Text, target: Text) -> Iterator[Pair]:
    """Yields the token ids of all pairs; a pair that cannot be scored becomes blank."""
    from jaxformer.data.tokenizer import EOS

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
