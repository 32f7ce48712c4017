"""The command ``score``: scores given translations, or texts under a language model."""

import functools
import math
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from jaxformer import pretrained
from jaxformer.cli.options import (
    InputFile,
    ModelOptions,
    OutputFile,
    SearchOptions,
    Strict,
    TranslatorDir,
)
from jaxformer.cli.outputs import check_outputs
from jaxformer.cli.signatures import Fields
from jaxformer.cli.source_fields import searches
from jaxformer.cli.text import Line, blocks_of, json_line, read_text
from jaxformer.errors import UserError, prefix_errors
from jaxformer.files import STDOUT

if TYPE_CHECKING:
    from jaxformer.inference.pair_scores import Score


def score(
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    source: InputFile | None = None,
    target: InputFile,
    output: OutputFile | None = None,
    strict: Strict = False,
    json: bool = False,
    model: ModelOptions,
    penalty: Annotated[
        dict[str, Any], Fields(lambda: searches()[:1], "score", ("penalty", "length_penalty"))
    ],
) -> None:
    """Score given lines: log probability divided by the length penalty, for each line.

    Text: A blank target is scored as the empty translation. A blank source scores 0 if the target
    is also blank, and -inf otherwise. A line that is too long or not UTF-8 has the score nan, with
    --json an object with an error.
      source: source text; left out for a language model
      target: translation, or text for a language model, line by line
      output: file for the scores (default: standard output)
      json: print lines of JSON: score, log_prob (null for -inf) and length in tokens

    Score: Defaults come from the run's config.

    Example:
      jaxformer score --workdir runs/multi30k --source test.en --target test.de
      -0.512345
      -0.734567
    """
    from jaxformer.config import check_kind, read_config
    from jaxformer.inference.generator import Generator
    from jaxformer.inference.translator import Translator
    from jaxformer.runs.workdir import Workdir

    check_outputs([source, target], {"--output": output or STDOUT})
    config = read_config(Workdir(workdir))
    with prefix_errors(str(workdir)):
        check_kind(config, *Translator.kinds, *Generator.kinds)
    if (config.kind in Translator.kinds) != (source is not None):
        advice = "give the texts as --target, without --source" if source else "give --source, too"
        raise UserError(f"{workdir} has {config.kind.description}: {advice}")
    search = SearchOptions(changes=penalty).settings(workdir)
    if source is None:
        text = read_text(target)
        encode, score_all = _language_model(workdir, model, search, target)
    else:
        text = read_text(source).zip_with(read_text(target))
        encode, score_all = _translator(workdir, model, search, (source, target))

    def row(line: Line, result: "Score") -> str:
        if not json:
            return f"{math.nan if line.error else result.score:.6f}"
        # JSON lacks infinity and nan.
        values = {n: v if math.isfinite(v) else None for n, v in result._asdict().items()}
        if line.error is not None:
            values |= {"score": None, "log_prob": None, "error": line.error}
        return json_line(values)

    with blocks_of(text, encode, output, strict=strict) as (blocks, write, report):
        for block in blocks:
            write(map(row, block, score_all(list(map(encode, block)), report=report)))


# A function of a line, whose results the other function scores.
_Functions = tuple[Callable[[Line], Any], Callable[..., "list[Score]"]]


def _translator(
    workdir: pathlib.Path, model: ModelOptions, search: Any, files: tuple[pathlib.Path, ...]
) -> _Functions:
    from jaxformer.data.tokenizer import EOS
    from jaxformer.inference.pair_scores import score_pairs

    model.check_only("weights", "ensemble", "dtype", reason="given lines are scored as they are")
    translator = model.load(workdir, search)
    source, target = files

    def encode(line: Line) -> tuple[list[int], list[int]]:
        source_ids = translator.source_ids(line.text, f"{source}:{line.number}")
        target_ids = translator.target_ids(line.other, f"{target}:{line.number}")
        # The empty translation of a sentence is end-of-sentence alone.
        return source_ids, target_ids or ([EOS] if source_ids else [])

    return encode, functools.partial(score_pairs, translator)


def _language_model(
    workdir: pathlib.Path, model: ModelOptions, search: Any, target: pathlib.Path
) -> _Functions:
    from jaxformer.inference.generator import Generator
    from jaxformer.inference.text_scores import score_texts

    model.check_only("weights", "dtype", reason="a language model scores lines on its own")
    options = {"weights": model.weights, "compute_dtype": model.dtype}
    generator = Generator.load(workdir, search=search, **options)
    print(f"{workdir}: {generator.weights}", file=sys.stderr)

    def encode(line: Line) -> list[int]:
        return generator.text_ids(line.text, f"{target}:{line.number}")

    return encode, functools.partial(score_texts, generator)
