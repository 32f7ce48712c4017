"""The command ``translate``: translates lines as they arrive."""

import argparse
import contextlib
import itertools
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from jaxformer.cli.decoding_options import search_settings
from jaxformer.cli.progress import load, progress
from jaxformer.cli.text import (
    Line,
    Text,
    Writer,
    bad_lines,
    check_outputs,
    is_on_screen,
    is_stream,
    lines_with_prefixes,
    read_in_blocks,
    report_unknown,
    writing,
)
from jaxformer.errors import UserError
from jaxformer.inference.alignment import align, layer_indices, pharaoh
from jaxformer.inference.translator import Hypothesis, Translator
from jaxformer.search import Algorithm, Sampling

# Maps (number of a line from 0, the line, its hypotheses best first) to lines of output.
Format: TypeAlias = Callable[[int, Line, Sequence[Hypothesis]], list[str]]


def translate(options: argparse.Namespace) -> None:
    """Translates every line of the input.

    A line that cannot be read or translated is reported, and its translation is blank.

    Raises:
      UserError: Options contradict each other, the input cannot be read, or, with ``--strict``, a
        line cannot be translated.
      SomeLinesError: Some lines could not be translated.
    """
    search = search_settings(options)
    _check(options, search)
    text = Text(options.input)
    translator = load(options, search)
    translator.target_ids(options.prefix or "", "--prefix")
    if options.alignments is not None:
        layer_indices(translator, options.alignment_layer)  # Checks that the layer exists.
    total, arriving = read_in_blocks(
        lambda: _checked(translator, text, options),
        stream=text.stream or is_stream(options.prefixes),
        strict=options.strict,
    )
    if text.interactive:
        print("Type a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)
    on_screen = is_on_screen(options.output)
    style, done = output_format(options, translator), 0
    with (
        bad_lines() as report_bad,
        writing(options.output) as write,
        _optional(options.alignments) as write_alignments,
        progress(total, hidden=text.interactive or on_screen) as report,
    ):
        for block in arriving:
            report_bad(block)
            texts = [line.text for line in block]
            report_unknown(translator.tokenizer, texts, text.name, done + 1)
            found = _hypotheses(translator, block, done + 1, report)
            rows = map(style, itertools.count(done), block, found)
            write(itertools.chain.from_iterable(rows))
            if write_alignments is not None:
                best = [(h[0].text, h[0].tokens) if h else ("", []) for h in found]
                pairs = align(translator, texts, best, layer=options.alignment_layer)
                write_alignments(map(pharaoh, pairs))
            done += len(block)


def _checked(translator: Translator, text: Text, options: argparse.Namespace) -> Iterator[Line]:
    """Yields all lines with their prefixes; a line that cannot be translated becomes blank."""
    lines = lines_with_prefixes(text, options.prefix, options.prefixes)
    for number, line in enumerate(lines, start=1):
        try:
            translator.source_ids(line.text, f"{text.name}:{number}")
            translator.target_ids(line.prefix, f"{options.prefixes}:{number}")
        except UserError as error:
            line = Line("", error=str(error))
        yield line if line.error is None else Line("", error=line.error)


def _hypotheses(
    translator: Translator, block: list[Line], first: int, report: Callable[[int], None]
) -> list[list[Hypothesis]]:
    prefixes = [line.prefix for line in block] if any(line.prefix for line in block) else None
    texts = [line.text for line in block]
    return translator.hypotheses(texts, prefixes=prefixes, first=first, report=report)


def output_format(options: argparse.Namespace, translator: Translator) -> Format:
    """Returns the output format that the options select."""
    if options.json:
        return lambda number, line, hypotheses: [
            json_line(line, hypotheses[: options.n_best or 1], translator.tokenizer.piece)
        ]
    if options.n_best is not None:
        return lambda number, line, hypotheses: n_best_lines(
            number, line, hypotheses[: options.n_best]
        )
    if options.scores:
        return lambda number, line, hypotheses: [scored_line(line, hypotheses)]
    return lambda number, line, hypotheses: [hypotheses[0].text if hypotheses else ""]


def scored_line(line: Line, hypotheses: Sequence[Hypothesis]) -> str:
    r"""Formats score and text of the best hypothesis; without text if there is none.

    >>> best = Hypothesis(text="eins", tokens=[9, 1], score=-0.25, log_prob=-0.3)
    >>> scored_line(Line("one"), [best])
    '-0.250000\teins'
    >>> scored_line(Line("", error="in.txt:2: not UTF-8"), [])
    'nan\t'
    """
    text, score = _texts_and_scores(line, hypotheses)[0]
    return f"{score:.6f}\t{text}"


def n_best_lines(number: int, line: Line, hypotheses: Sequence[Hypothesis]) -> list[str]:
    """Formats an n-best list as Moses does: line number from 0, text and score.

    >>> best = Hypothesis(text="eins", tokens=[9, 1], score=-0.25, log_prob=-0.3)
    >>> n_best_lines(7, Line("one"), [best])
    ['7 ||| eins ||| -0.250000']
    >>> n_best_lines(8, Line(""), [])
    ['8 |||  ||| 0.000000']
    """
    rows = _texts_and_scores(line, hypotheses)
    return [f"{number} ||| {text} ||| {score:.6f}" for text, score in rows]


def _texts_and_scores(line: Line, hypotheses: Sequence[Hypothesis]) -> list[tuple[str, float]]:
    """Returns at least one row: a blank line has score 0, and nan if it could not be translated."""
    blank = ("", 0.0 if line.error is None else math.nan)
    return [(h.text, h.score) for h in hypotheses] or [blank]


def json_line(line: Line, hypotheses: Sequence[Hypothesis], piece: Callable[[int], str]) -> str:
    """Formats the source and its hypotheses, with their tokens as pieces, as one JSON object.

    >>> best = Hypothesis(text="eins", tokens=[9, 1], score=-0.25, log_prob=-0.5)
    >>> json_line(Line("one"), [best], {9: "▁eins", 1: "</s>"}.__getitem__)
    '{"source": "one", "hypotheses": [{"text": "eins", "score": -0.25, "log_prob": -0.5,
    "tokens": ["▁eins", "</s>"]}]}'
    >>> json_line(Line("", error="in.txt:2: not UTF-8"), [], str)
    '{"source": "", "hypotheses": [], "error": "in.txt:2: not UTF-8"}'
    """
    rows = [
        {
            "text": h.text,
            "score": h.score,
            "log_prob": h.log_prob,
            "tokens": [piece(token) for token in h.tokens],
        }
        for h in hypotheses
    ]
    error = {} if line.error is None else {"error": line.error}
    return json.dumps({"source": line.text, "hypotheses": rows, **error}, ensure_ascii=False)


def _check(options: argparse.Namespace, search: Algorithm) -> None:
    if options.n_best is not None and not 1 <= options.n_best <= search.num_hypotheses:
        sampling = isinstance(search, Sampling)
        limit, flag = ("number of samples", "samples") if sampling else ("beam size", "beam-size")
        raise UserError(
            f"--n-best must be from 1 to the {limit}, {search.num_hypotheses}: got "
            f"{options.n_best}; use --{flag} {max(1, options.n_best)}"
        )
    if options.scores and options.n_best is not None:
        raise UserError("--scores is not needed with --n-best, which prints them; leave it out")
    if options.alignment_layer is not None and options.alignments is None:
        raise UserError("--alignment-layer needs --alignments FILE to write them to")
    outputs = {"--output": options.output, "--alignments": options.alignments}
    check_outputs([options.input, options.prefixes], outputs)


def _optional(path: pathlib.Path | None) -> contextlib.AbstractContextManager[Writer | None]:
    return contextlib.nullcontext() if path is None else writing(path)
