"""train.py, where FAULT="raise 12" makes the process raise an exception after step 12.

The other faults are "hang" and "hold", which also holds the interpreter. A file beside the workdir
marks the time of the fault.
"""

import ctypes
import functools
import os
import pathlib
import sys
import time

import jaxformer.experiment
from jaxformer.cli import main
from jaxformer.cli.arguments import parse_arguments

ARGUMENTS = ["train", *sys.argv[1:]]


def fault(step, state, sums):
    kind, at = os.environ["FAULT"].split()
    if step != int(at):
        return

    workdir = parse_arguments(ARGUMENTS).keywords["workdir"]
    pathlib.Path(f"{workdir}-{kind}-{at}").touch()

    if kind == "raise":
        raise RuntimeError("injected")
    if kind == "hang":
        time.sleep(10**6)
    if kind == "hold":
        ctypes.PyDLL(None).sleep(10**6)


if __name__ == "__main__":
    jaxformer.experiment.train = functools.partial(jaxformer.experiment.train, hooks=[fault])
    sys.exit(main(ARGUMENTS))
