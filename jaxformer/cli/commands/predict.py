"""The command ``predict``: numbers for lines of text, or the scores of a model on numbered ones."""

from typing import TYPE_CHECKING

from jaxformer.cli.command import Command
from jaxformer.cli.options import Checkpoint, File, InputFile, ModelDir, OutputFile, Strict
from jaxformer.cli.outputs import check_outputs
from jaxformer.cli.text import Line, blocks_of, progress_bar, read_text
from jaxformer.data.text_pairs import split_pair
from jaxformer.errors import UserError
from jaxformer.files import STDIN, STDOUT

if TYPE_CHECKING:
    from jaxformer.data.text_pairs import TextOrPair
    from jaxformer.tasks.regression.regressor import Regressor


def predict(
    *,
    workdir: ModelDir,
    input: InputFile | None = None,
    output: OutputFile | None = None,
    pairs: bool = False,
    strict: Strict = False,
    labeled: File | None = None,
    weights: Checkpoint = "auto",
) -> None:
    """Print a number for each line of text with a regression model, such as a similarity.

    Text: A line that is too long or not UTF-8 has a blank line of output.
      input: texts, one per line (default: standard input)
      output: file for the numbers (default: standard output)
      pairs: each line is a pair of texts with a tab between

    Scores:
      labeled: print Pearson's and Spearman's correlation on this file, whose lines are a number and
        one or two texts, with tabs between

    Example:
      jaxformer predict --workdir runs/stsb --labeled test.tsv

      jaxformer predict --workdir runs/stsb --pairs --input pairs.tsv
    """
    from jaxformer.tasks.regression.regressor import Regressor

    if labeled is not None:
        given = {
            "--input": input,
            "--output": output,
            "--pairs": pairs,
            "--strict": strict,
        }
        for name, value in given.items():
            if value:
                raise UserError(f"--labeled prints scores of all texts: leave {name} out")
        _score(Regressor.load(workdir, weights=weights), labeled)
        return

    check_outputs([input or STDIN], {"--output": output or STDOUT})
    regressor = Regressor.load(workdir, weights=weights)
    text = read_text(input, "a text")

    def encode(line: Line) -> "TextOrPair":
        place = f"{text.name}:{line.number}"
        own = split_pair(line.text, place) if pairs else line.text
        regressor.check(own, place)
        return own

    with blocks_of(text, encode, output, strict=strict) as (blocks, write, report):
        for block in blocks:
            # A bad line has no text; any will do.
            blank = ("", "") if pairs else ""
            texts = []
            for line in block:
                own = blank if line.error else line.encoded
                texts.append(own)
            found = regressor.predict(texts, report=report).tolist()

            rows = []
            for line, number in zip(block, found, strict=True):
                row = "" if line.error else f"{number:.4f}"
                rows.append(row)
            write(rows)


COMMAND = Command("predict", predict, place=106)


def _score(regressor: "Regressor", path: File) -> None:
    from jaxformer.data.text_pairs import parse_number, read_scored
    from jaxformer.evaluation.correlations import correlations

    lines = list(read_scored(path))
    if not lines:
        raise UserError(f"{path}: expected lines of a number and a text, got none")

    texts = [line.text for line in lines]
    with progress_bar(len(lines)) as bar:
        found = regressor.predict(texts, report=bar.update)

    expected = [parse_number(line) for line in lines]
    scores = correlations(found.tolist(), expected)
    print(f"Pearson {scores.pearson:.4f}  Spearman {scores.spearman:.4f}  {len(lines):,} texts")
