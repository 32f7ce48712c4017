"""The command ``choose``: the best of several texts for each context."""

import sys

from jaxformer.cli.command import Command
from jaxformer.cli.options import Checkpoint, File, ModelDir, OutputFile
from jaxformer.cli.outputs import check_outputs, open_output
from jaxformer.cli.text import progress_bar
from jaxformer.errors import UserError
from jaxformer.files import STDOUT


def choose_text(
    *,
    workdir: ModelDir,
    input: File,
    output: OutputFile | None = None,
    probabilities: bool = False,
    weights: Checkpoint = "auto",
) -> None:
    """Print the number of the best of several choices, from 0, for each context.

    Options:
      input: JSON Lines with the fields context, a text, and choices, a list of texts; if there is
        also label, the number of the right choice, the accuracy is printed to standard error
      output: file for the numbers (default: standard output)
      probabilities: print lines of probability, tab, number

    Example:
      jaxformer choose --workdir runs/swag --input swag.jsonl
    """
    from jaxformer.data.choices import read_choices
    from jaxformer.tasks.multiple_choice.chooser import Chooser

    check_outputs([input], {"--output": output or STDOUT})
    chooser = Chooser.load(workdir, weights=weights)
    examples = list(read_choices(input))
    if not examples:
        raise UserError(f"{input}: expected lines with a context and choices, got none")

    total = sum(len(example.choices) for example in examples)
    with progress_bar(total) as bar:
        found = chooser.probabilities(
            [(example.context, example.choices) for example in examples],
            report=bar.update,
        )

    best = [int(row.argmax()) for row in found]
    with open_output(output or STDOUT) as write:
        for row, number in zip(found, best, strict=True):
            write([f"{row[number]:.4f}\t{number}" if probabilities else str(number)])

    known = [example.label for example in examples]
    if None not in known:
        correct = sum(number == label for number, label in zip(best, known, strict=True))
        print(
            f"accuracy {correct / len(best):.2%}, {correct:,} of {len(best):,}",
            file=sys.stderr,
        )


COMMAND = Command("choose", choose_text, place=107)
