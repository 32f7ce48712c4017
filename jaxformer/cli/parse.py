"""The command ``parse``: parses lines of words as they arrive."""

import argparse
import contextlib
import pathlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

from jaxformer.cli.decoding_options import search_settings
from jaxformer.cli.progress import load, progress
from jaxformer.cli.text import (
    Text,
    bad_lines,
    check_outputs,
    is_on_screen,
    is_stream,
    read_in_blocks,
    writing,
)
from jaxformer.errors import UserError
from jaxformer.tasks.parsing.parser import Parser
from jaxformer.tasks.parsing.trees import normalize, read_tree_file, split_words


class Sentence(NamedTuple):
    """A sentence to parse.

    Attributes:
      words: Its words; none if it cannot be parsed.
      tags: The tags of the gold tree, if it is known.
      gold: The text of the gold tree, if it is known.
      error: The reason why it cannot be parsed, with its number; None if it can.
    """

    words: list[str]
    tags: list[str] | None = None
    gold: str = ""
    error: str | None = None


def parse(options: argparse.Namespace) -> None:
    """Parses every line of the input, or the words of every tree of a treebank.

    A sentence that cannot be read or parsed is reported, and its line of output is blank.

    Raises:
      UserError: Options contradict each other, the input cannot be read, or, with ``--strict``, a
        sentence cannot be parsed.
      SomeLinesError: Some sentences could not be parsed.
    """
    search = search_settings(options)
    _check(options)
    text = Text(options.input) if options.trees is None else None
    parser = Parser(load(options, search))
    total, arriving = read_in_blocks(
        lambda: _checked(parser, text, options.trees),
        stream=is_stream(options.trees) if text is None else text.stream,
        strict=options.strict,
    )
    interactive = text is not None and text.interactive
    if interactive:
        print("Type words with spaces between and press Enter; Ctrl-D ends.", file=sys.stderr)
    on_screen = is_on_screen(options.output)
    done = 0
    with (
        bad_lines() as report_bad,
        writing(options.output) as write,
        contextlib.nullcontext() if options.gold is None else writing(options.gold) as write_gold,
        progress(total, hidden=interactive or on_screen) as report,
    ):
        for block in arriving:
            report_bad(block)
            words, tags, gold, _ = zip(*block, strict=True)
            trees = parser.parse(words, tags=tags, first=done + 1, report=report)
            write("" if tree is None else str(tree) for tree in trees)
            if write_gold is not None:
                write_gold(gold)
            done += len(block)


def _check(options: argparse.Namespace) -> None:
    if options.trees is not None and options.input is not None:
        raise UserError("--trees has the words to parse already: leave --input out")
    if options.gold is not None and options.trees is None:
        raise UserError("--gold needs --trees FILE, whose trees it writes")
    outputs = {"--output": options.output, "--gold": options.gold}
    check_outputs([options.input, options.trees], outputs)


def _checked(parser: Parser, text: Text | None, trees: pathlib.Path | None) -> Iterator[Sentence]:
    """Yields all sentences of the text or the treebank; one that cannot be parsed has no words."""
    name = str(trees) if text is None else text.name
    for number, sentence in enumerate(_sentences(text, trees), start=1):
        error = sentence.error
        try:
            parser.translator.source_ids(" ".join(sentence.words), f"{name}:{number}")
        except UserError as too_long:
            error = str(too_long)
        yield sentence if error is None else Sentence([], gold=sentence.gold, error=error)


def _sentences(text: Text | None, trees: pathlib.Path | None) -> Iterator[Sentence]:
    if text is not None:
        for line in text.lines():
            yield Sentence(split_words(line.text), error=line.error)
    elif trees is not None:
        for tree in map(normalize, read_tree_file(trees)):
            if tree is not None:
                yield Sentence(tree.words(), tree.tags(), str(tree))
