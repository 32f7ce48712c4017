"""The command ``parse``: parses lines of words as they arrive."""

import pathlib
from collections.abc import Iterator

from jaxformer.cli.command import Command
from jaxformer.cli.options import (
    InputFile,
    ModelDir,
    ModelOptions,
    OutputFile,
    SearchOptions,
    Strict,
)
from jaxformer.cli.outputs import check_outputs, open_output
from jaxformer.cli.text import Line, Text, blocks_of, read_text
from jaxformer.errors import UserError
from jaxformer.files import STDIN, STDOUT, is_stream


def parse(
    *,
    workdir: ModelDir,
    input: InputFile | None = None,
    output: OutputFile | None = None,
    strict: Strict = False,
    trees: InputFile | None = None,
    gold: OutputFile | None = None,
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
    from jaxformer.tasks.parsing.trees import split_words

    if trees is not None and input is not None:
        raise UserError("--trees has the words to parse already: leave --input out")
    if gold is not None and trees is None:
        raise UserError("--gold needs --trees FILE, whose trees it writes")
    words_from = trees or input or STDIN
    check_outputs([words_from], {"--output": output or STDOUT, "--gold": gold})

    if trees is None:
        text = read_text(input, "words with spaces between")
    else:
        text = _treebank(trees)
    translator = model.load(workdir, search.settings(workdir))
    parser = Parser(translator)

    def check(line: Line) -> None:
        words = " ".join(split_words(line.text))
        parser.translator.source_ids(words, f"{text.name}:{line.number}")

    with (
        blocks_of(text, check, output, strict=strict) as (blocks, write, report),
        open_output(gold) as write_gold,
    ):
        for block in blocks:
            words = [split_words(line.text) for line in block]
            # Only lines of a treebank have tags.
            tags = [split_words(line.other) or None for line in block]
            found = parser.parse(words, tags=tags, first=block[0].number, report=report)

            rows = []
            for tree in found:
                row = "" if tree is None else str(tree)
                rows.append(row)
            write(rows)
            write_gold(line.gold for line in block)


COMMAND = Command("parse", parse, place=90)


def _treebank(path: pathlib.Path) -> Text:
    """Returns the words of a treebank, with their parts of speech and the normalized trees."""
    from jaxformer.tasks.parsing.treebank import normalized_trees

    def lines() -> Iterator[Line]:
        for number, (_, tree) in enumerate(normalized_trees(path), start=1):
            yield Line(
                number,
                text=" ".join(tree.words()),
                other=" ".join(tree.tags()),
                gold=str(tree),
            )

    return Text(str(path), lines, is_stream(path))
