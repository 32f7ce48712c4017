"""The command ``translate``: translates lines as they arrive."""

import argparse
import contextlib
import itertools
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from jaxformer.cli.decoding_options import search_settings
from jaxformer.cli.progress import load, progress
from jaxformer.cli.text import (
    BLOCK,
    Line,
    Text,
    Writer,
    blocks,
    blocks_as_they_arrive,
    check_outputs,
    is_on_screen,
    is_stream,
    lines_with_prefixes,
    writing,
)
from jaxformer.errors import UserError
from jaxformer.inference.alignment import align, layer_indices, pharaoh
from jaxformer.inference.translator import Hypothesis, Translator
from jaxformer.search import Algorithm

# Maps (number of a line from 0, its text, its hypotheses best first) to lines of output.
Format: TypeAlias = Callable[[int, str, Sequence[Hypothesis]], list[str]]


def translate(options: argparse.Namespace) -> None:
    """Translates every line of the input.

    A file is checked completely first, so that a mistake in it shows at once. In a stream, lines
    before a mistake are translated before the error is raised.

    Raises:
      UserError: Options contradict each other, or a line cannot be read or translated.
    """
    search = search_settings(options)
    _check(options, search)
    text = Text(options.input)
    translator = load(options, search)
    if options.alignments is not None:
        layer_indices(translator, options.alignment_layer)  # Checks that the layer exists.
    total, arriving = _arriving(translator, text, options)
    if text.interactive:
        print("Type a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)
    on_screen = is_on_screen(options.output)
    style, done = output_format(options, translator), 0
    with (
        writing(options.output) as write,
        _optional(options.alignments) as write_alignments,
        progress(total, hidden=text.interactive or on_screen) as report,
    ):
        for block in arriving:
            found = _hypotheses(translator, block, done + 1, report)
            texts = [line.text for line in block]
            rows = map(style, itertools.count(done), texts, found)
            write(itertools.chain.from_iterable(rows))
            if write_alignments is not None:
                best = [(h[0].text, h[0].tokens) if h else ("", []) for h in found]
                pairs = align(translator, texts, best, layer=options.alignment_layer)
                write_alignments(map(pharaoh, pairs))
            done += len(block)


def _arriving(
    translator: Translator, text: Text, options: argparse.Namespace
) -> tuple[int | None, Iterator[list[Line]]]:
    """Returns the number of lines, None for a stream, and the lines in blocks."""
    prefixes_name = "--prefix" if options.prefixes is None else str(options.prefixes)

    def lines() -> Iterator[Line]:
        given = lines_with_prefixes(text, options.prefix, options.prefixes)
        return _checked(translator, given, text.name, prefixes_name)

    if text.stream or is_stream(options.prefixes):
        return None, blocks_as_they_arrive(lines(), BLOCK)
    return sum(1 for _ in lines()), blocks(lines(), BLOCK)


def _hypotheses(
    translator: Translator, block: list[Line], first: int, report: Callable[[int], None]
) -> list[list[Hypothesis]]:
    prefixes = [line.prefix for line in block] if any(line.prefix for line in block) else None
    texts = [line.text for line in block]
    return translator.hypotheses(texts, prefixes=prefixes, first=first, report=report)


def output_format(options: argparse.Namespace, translator: Translator) -> Format:
    """Returns the output format that the options select."""
    if options.json:
        return lambda number, source, hypotheses: [
            json_line(source, hypotheses[: options.n_best or 1], translator.tokenizer.piece)
        ]
    if options.n_best is not None:
        return lambda number, source, hypotheses: n_best_lines(number, hypotheses[: options.n_best])
    if options.scores:
        return lambda number, source, hypotheses: [scored_line(hypotheses)]
    return lambda number, source, hypotheses: [hypotheses[0].text if hypotheses else ""]


def scored_line(hypotheses: Sequence[Hypothesis]) -> str:
    r"""Formats score and text of the best hypothesis; for a blank line, 0 and no text.

    >>> scored_line([Hypothesis(text="eins", tokens=[9, 1], score=-0.25, log_prob=-0.3)])
    '-0.250000\teins'
    >>> scored_line([])
    '0.000000\t'
    """
    return f"{hypotheses[0].score:.6f}\t{hypotheses[0].text}" if hypotheses else f"{0:.6f}\t"


def n_best_lines(number: int, hypotheses: Sequence[Hypothesis]) -> list[str]:
    """Formats an n-best list as Moses does: line number from 0, text and score.

    >>> n_best_lines(7, [Hypothesis(text="eins", tokens=[9, 1], score=-0.25, log_prob=-0.3)])
    ['7 ||| eins ||| -0.250000']
    >>> n_best_lines(8, [])
    ['8 |||  ||| 0.000000']
    """
    rows = [(h.text, h.score) for h in hypotheses] or [("", 0.0)]
    return [f"{number} ||| {text} ||| {score:.6f}" for text, score in rows]


def json_line(source: str, hypotheses: Sequence[Hypothesis], piece: Callable[[int], str]) -> str:
    """Formats the source and its hypotheses, with their tokens as pieces, as one JSON object.

    >>> best = Hypothesis(text="eins", tokens=[9, 1], score=-0.25, log_prob=-0.5)
    >>> json_line("one", [best], {9: "▁eins", 1: "</s>"}.__getitem__)
    '{"source": "one", "hypotheses": [{"text": "eins", "score": -0.25, "log_prob": -0.5,
    "tokens": ["▁eins", "</s>"]}]}'
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
    return json.dumps({"source": source, "hypotheses": rows}, ensure_ascii=False)


def _check(options: argparse.Namespace, search: Algorithm) -> None:
    if options.n_best is not None and not 1 <= options.n_best <= search.num_hypotheses:
        raise UserError(
            f"--n-best must be from 1 to the beam size, {search.num_hypotheses}: got "
            f"{options.n_best}; use --beam-size {max(1, options.n_best)}"
        )
    if options.scores and options.n_best is not None:
        raise UserError("--scores is not needed with --n-best, which prints them; leave it out")
    if options.alignment_layer is not None and options.alignments is None:
        raise UserError("--alignment-layer needs --alignments FILE to write them to")
    outputs = {"--output": options.output, "--alignments": options.alignments}
    check_outputs([options.input, options.prefixes], outputs)


def _checked(
    translator: Translator, lines: Iterator[Line], name: str, prefixes: str
) -> Iterator[Line]:
    for number, line in enumerate(lines, start=1):
        translator.source_ids(line.text, f"{name}:{number}")
        if line.prefix:
            translator.target_ids(line.prefix, f"{prefixes}:{number}")
        yield line


def _optional(path: pathlib.Path | None) -> contextlib.AbstractContextManager[Writer | None]:
    return contextlib.nullcontext() if path is None else writing(path)
