"""The command ``parse``: parses lines of words as they arrive."""

import pathlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from jaxformer.cli.options import File, ModelDir, ModelOptions, SearchOptions, Strict
from jaxformer.cli.text import (
    Text,
    check_outputs,
    is_on_screen,
    is_stream,
    reading,
    writing,
    writing_if_named,
)
from jaxformer.errors import UserError

if TYPE_CHECKING:
    from jaxformer.tasks.parsing.parser import Parser


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


def parse(
    *,
    workdir: ModelDir,
    input: File | None = None,
    output: File | None = None,
    strict: Strict = False,
    trees: File | None = None,
    gold: File | None = None,
    model: ModelOptions,
    search: SearchOptions,
) -> None:
    """Parse sentences with a model that was trained on trees; print one tree per line of words.

    Text: Words are separated by spaces; punctuation marks are words, as in the treebank. There is
    one line of output for each line of input, blank lines included. Every tree has exactly the
    words of its line, with ( and ) written as -LRB- and -RRB-. A line that is too long or not UTF-8
    gives a blank line of output.
      input: words, one sentence per line (default: standard input)
      output: file for the trees (default: standard output)

    Treebank, to evaluate the parser:
      trees: parse the words of these trees, and copy their parts of speech to the output
      gold: write the trees of --trees, normalized for evalb: one per line, without empty elements,
        function tags and top brackets

    Example:
      jaxformer parse --workdir runs/parsing --input words.txt --output parsed.trees

      echo "It works ." | jaxformer parse --workdir runs/parsing
      (S (NP (PRP It)) (VP (VBZ works)) (. .))

      jaxformer parse --workdir runs/parsing --trees dev.trees --gold gold.trees --output my.trees
      jaxformer evalb gold.trees my.trees
    """
    from jaxformer.tasks.parsing.parser import Parser

    settings = search.settings(workdir)
    if trees is not None and input is not None:
        raise UserError("--trees has the words to parse already: leave --input out")
    if gold is not None and trees is None:
        raise UserError("--gold needs --trees FILE, whose trees it writes")
    check_outputs([input, trees], {"--output": output, "--gold": gold})
    source = trees or Text(input)
    parser = Parser(model.load(workdir, settings))
    interactive = isinstance(source, Text) and source.interactive
    if interactive:
        print("Type words with spaces between and press Enter; Ctrl-D ends.", file=sys.stderr)
    done = 0
    with (
        reading(
            lambda: _checked(parser, source),
            stream=source.stream if isinstance(source, Text) else is_stream(source),
            strict=strict,
            hidden=interactive or is_on_screen(output),
        ) as (blocks, report),
        writing(output) as write,
        writing_if_named(gold) as write_gold,
    ):
        for block in blocks:
            words, tags, expected, _ = zip(*block, strict=True)
            found = parser.parse(words, tags=tags, first=done + 1, report=report)
            write("" if tree is None else str(tree) for tree in found)
            if write_gold is not None:
                write_gold(expected)
            done += len(block)


def _checked(parser: "Parser", source: Text | pathlib.Path) -> Iterator[Sentence]:
    """Yields all sentences of a text or treebank; one that cannot be parsed has no words."""
    from jaxformer.tasks.parsing.trees import normalize, read_tree_file, split_words

    if isinstance(source, Text):
        sentences = (Sentence(split_words(line.text), error=line.error) for line in source.lines())
        name = source.name
    else:
        found = map(normalize, read_tree_file(source))
        name = str(source)
        sentences = (Sentence(t.words(), t.tags(), str(t)) for t in found if t is not None)
    for number, sentence in enumerate(sentences, start=1):
        error = sentence.error
        try:
            parser.translator.source_ids(" ".join(sentence.words), f"{name}:{number}")
        except UserError as too_long:
            error = str(too_long)
        yield sentence if error is None else Sentence([], gold=sentence.gold, error=error)
