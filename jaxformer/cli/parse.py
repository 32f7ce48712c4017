"""The command ``parse``: parses lines of words as they arrive."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

from jaxformer.cli.decoding_options import search_settings
from jaxformer.cli.progress import load, progress
from jaxformer.cli.text import (
    BLOCK,
    Text,
    blocks,
    blocks_as_they_arrive,
    check_outputs,
    is_on_screen,
    is_stream,
    writing,
)
from jaxformer.errors import UserError
from jaxformer.tasks.parsing.parser import Parser
from jaxformer.tasks.parsing.trees import normalize, read_tree_file, split_words


class Sentence(NamedTuple):
    """Words to parse, and the tags and the text of the gold tree if it is known."""

    words: list[str]
    tags: list[str] | None = None
    gold: str = ""


def parse(options: argparse.Namespace) -> None:
    """Parses every line of the input, or the words of every tree of a treebank.

    Raises:
      UserError: Options contradict each other, or a line cannot be read or parsed.
    """
    search = search_settings(options)
    _check(options)
    text = Text(options.input) if options.trees is None else None
    parser = Parser(load(options, search))
    total, arriving = _arriving(parser, text, options)
    interactive = text is not None and text.interactive
    if interactive:
        print("Type words with spaces between and press Enter; Ctrl-D ends.", file=sys.stderr)
    on_screen = is_on_screen(options.output)
    done = 0
    with (
        writing(options.output) as write,
        contextlib.nullcontext() if options.gold is None else writing(options.gold) as write_gold,
        progress(total, hidden=interactive or on_screen) as report,
    ):
        for block in arriving:
            words, tags, gold = zip(*block, strict=True)
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


def _arriving(
    parser: Parser, text: Text | None, options: argparse.Namespace
) -> tuple[int | None, Iterator[list[Sentence]]]:
    """Returns the number of sentences, None for a stream, and the sentences in blocks."""

    def sentences() -> Iterator[Sentence]:
        name = str(options.trees) if text is None else text.name
        given = _of_trees(options) if text is None else _of_lines(text)
        for number, sentence in enumerate(given, start=1):
            parser.translator.source_ids(" ".join(sentence.words), f"{name}:{number}")
            yield sentence

    if text.stream if text is not None else is_stream(options.trees):
        return None, blocks_as_they_arrive(sentences(), BLOCK)
    return sum(1 for _ in sentences()), blocks(sentences(), BLOCK)


def _of_lines(text: Text) -> Iterator[Sentence]:
    return (Sentence(split_words(line)) for line in text.lines())


def _of_trees(options: argparse.Namespace) -> Iterator[Sentence]:
    for tree in map(normalize, read_tree_file(options.trees)):
        if tree is not None:
            yield Sentence(tree.words(), tree.tags(), str(tree))
