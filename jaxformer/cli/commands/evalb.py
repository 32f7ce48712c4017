"""The command ``evalb``: scores parse trees."""

import sys

from jaxformer.cli.command import Command
from jaxformer.cli.options import InputFile, JsonReport
from jaxformer.cli.outputs import check_outputs
from jaxformer.data.text_files import read_file
from jaxformer.evaluation.evalb import COLLINS, read_parameters, score


def evalb(
    gold: InputFile, test: InputFile, *, params: InputFile | None = None, json: JsonReport = False
) -> None:
    """Score parse trees, one per line, exactly as the program EVALB does.

    Options:
      gold (GOLD): gold trees; outermost brackets count as a constituent if they have no label, and
        do not count if the label is TOP
      test (TEST): the parser's trees, line by line; blank for a sentence without a parse
      params: parameter file of EVALB, .prm (default: the settings of COLLINS.prm)

    Example:
      jaxformer evalb gold.trees parsed.trees

      jaxformer evalb gold.trees parsed.trees --params COLLINS.prm --json
    """
    check_outputs([gold, test, params], {})

    parameters = COLLINS
    if params is not None:
        parameters = read_parameters(read_file(params), str(params))
    gold_lines = list(read_file(gold))
    test_lines = list(read_file(test))
    report = score(gold_lines, test_lines, parameters)

    for row in report.rows:
        for error in row.errors:
            print(f"{row.number} : {error}", file=sys.stderr)
    print(report.to_json() if json else report.table())


COMMAND = Command("evalb", evalb, place=113)
