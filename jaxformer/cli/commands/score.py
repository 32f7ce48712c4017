"""The command ``score``: scores given translations, or texts under a language model."""

import functools
import math
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from jaxformer import pretrained
from jaxformer.cli.command import Command
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
    check_outputs([source, target], {"--output": output or STDOUT})
    _check_source(workdir, source)

    search = SearchOptions(changes=penalty).settings(workdir)
    if source is None:
        text = read_text(target)
        scorer = _language_model(workdir, model, search, target=target)
    else:
        text = read_text(source).zip_with(read_text(target))
        scorer = _translator(workdir, model, search, files=(source, target))

    row = _json_row if json else _row
    with blocks_of(text, scorer.encode, output, strict=strict) as (blocks, write, report):
        for block in blocks:
            encoded = []
            for line in block:
                # A line with an error is blank.
                own = scorer.encode(line) if line.error else line.encoded
                encoded.append(own)

            scores = scorer.score(encoded, report=report)
            write(map(row, block, scores))


COMMAND = Command("score", score, place=50)


def _check_source(workdir: pathlib.Path, source: pathlib.Path | None) -> None:
    """Refuses pairs for a language model, and texts without sources for a model of pairs."""
    from jaxformer.config import check_kind, read_config
    from jaxformer.inference.generator import Generator
    from jaxformer.inference.translator import Translator
    from jaxformer.runs.workdir import Workdir

    config = read_config(Workdir(workdir))
    with prefix_errors(str(workdir)):
        check_kind(config, *Translator.kinds, *Generator.kinds)

    needs_source = config.kind in Translator.kinds
    if needs_source and source is None:
        raise UserError(f"{workdir} has {config.kind.description}: give --source, too")
    if source is not None and not needs_source:
        raise UserError(
            f"{workdir} has {config.kind.description}: give the texts as --target, without --source"
        )


def _row(line: Line, result: "Score") -> str:
    value = math.nan if line.error else result.score
    return f"{value:.6f}"


def _json_row(line: Line, result: "Score") -> str:
    values = result._asdict()
    for name, value in values.items():
        if not math.isfinite(value):  # JSON lacks infinity and nan.
            values[name] = None
    if line.error is not None:
        values |= {"score": None, "log_prob": None, "error": line.error}
    return json_line(values)


class _Scorer(NamedTuple):
    """The two steps of scoring lines with a model."""

    encode: Callable[[Line], Any]  # of a line, or raises a UserError about it
    score: Callable[..., "list[Score]"]  # of encoded lines; report=... is called with their number


def _translator(
    workdir: pathlib.Path, model: ModelOptions, search: Any, files: tuple[pathlib.Path, ...]
) -> _Scorer:
    from jaxformer.data.tokenizer import EOS
    from jaxformer.inference.pair_scores import score_pairs

    model.check_only("weights", "ensemble", "dtype", reason="given lines are scored as they are")
    translator = model.load(workdir, search)
    source, target = files

    def encode(line: Line) -> tuple[list[int], list[int]]:
        source_ids = translator.source_ids(line.text, f"{source}:{line.number}")
        target_ids = translator.target_ids(line.other, f"{target}:{line.number}")
        if source_ids and not target_ids:
            target_ids = [EOS]  # the empty translation of a sentence
        return source_ids, target_ids

    return _Scorer(encode, functools.partial(score_pairs, translator))


def _language_model(
    workdir: pathlib.Path, model: ModelOptions, search: Any, target: pathlib.Path
) -> _Scorer:
    from jaxformer.inference.generator import Generator
    from jaxformer.inference.text_scores import score_texts

    reason = "a language model scores lines on its own"
    model.check_only("weights", "ensemble", "dtype", reason=reason)
    generator = model.load_as(Generator, workdir, search)

    def encode(line: Line) -> list[int]:
        return generator.text_ids(line.text, f"{target}:{line.number}")

    return _Scorer(encode, functools.partial(score_texts, generator))
