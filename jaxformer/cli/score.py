"""The command ``score``: scores given translations."""

import math
from json import dumps
from typing import Annotated, Any

from jaxformer import pretrained
from jaxformer.cli.options import File, ModelOptions, SearchOptions, Strict, TranslatorDir, searches
from jaxformer.cli.signatures import Fields
from jaxformer.cli.text import Line, blocks_of, check_outputs, read_text


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
    is also blank, and -inf otherwise. A line that is too long or not UTF-8 has the score nan, with
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
    from jaxformer.data.tokenizer import EOS
    from jaxformer.inference.pair_scores import Score, score_pairs

    check_outputs([source, target], {"--output": output})
    text = read_text(source).zip_with(read_text(target))
    translator = model.load(workdir, SearchOptions(changes=penalty).settings(workdir))

    def encode(line: Line) -> tuple[list[int], list[int]]:
        source_ids = translator.source_ids(line.text, f"{source}:{line.number}")
        target_ids = translator.target_ids(line.other, f"{target}:{line.number}")
        # The empty translation of a sentence is end-of-sentence alone.
        return source_ids, target_ids or ([EOS] if source_ids else [])

    def row(line: Line, result: Score) -> str:
        if not json:
            return f"{math.nan if line.error else result.score:.6f}"
        # JSON lacks infinity and nan.
        values = {n: v if math.isfinite(v) else None for n, v in result._asdict().items()}
        if line.error is not None:
            values |= {"score": None, "log_prob": None, "error": line.error}
        return dumps(values, ensure_ascii=False)

    with blocks_of(text, encode, output, strict=strict) as (blocks, write, report):
        for block in blocks:
            write(map(row, block, score_pairs(translator, list(map(encode, block)), report=report)))
