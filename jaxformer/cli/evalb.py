"""The command ``evalb``: scores parse trees."""

import argparse
import sys

from jaxformer.data.text_files import read_file
from jaxformer.evaluation.evalb import COLLINS, read_parameters, score


def evalb(options: argparse.Namespace) -> None:
    """Prints EVALB's table, or its figures as JSON; errors of sentences go to standard error.

    Raises:
      UserError: A file cannot be read, the numbers of lines differ, or there are too many errors.
    """
    parameters = COLLINS
    if options.params is not None:
        parameters = read_parameters(read_file(options.params), str(options.params))
    report = score(list(read_file(options.gold)), list(read_file(options.test)), parameters)
    for row in report.rows:
        for error in row.errors:
            print(f"{row.number} : {error}", file=sys.stderr)
    print(report.to_json() if options.json else report.table())
