"""train.py, where FAULT="raise 12" makes the process raise an exception after step 12.

The other faults are "hang", "hold", which also holds the interpreter, and "terminate". A file
beside the workdir marks the time of the fault. SLOW_COPY="9 48" delays the copies of step 48 and
later to the mirror by 9 seconds.
"""

import ctypes
import functools
import os
import pathlib
import signal
import sys
import time

import jaxformer.experiment
from jaxformer.checkpoint import mirror
from jaxformer.cli import main
from jaxformer.cli.arguments import parse

ARGUMENTS = ["train", *sys.argv[1:]]


def fault(step, state, sums):
    kind, at = os.environ["FAULT"].split()
    if step != int(at):
        return
    pathlib.Path(f"{parse(ARGUMENTS).workdir}-{kind}-{at}").touch()
    if kind == "raise":
        raise RuntimeError("injected")
    if kind == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    if kind == "hang":
        time.sleep(10**6)
    if kind == "hold":
        ctypes.PyDLL(None).sleep(10**6)


copy_step = mirror.copy_step


def copy_slowly(source, target, **options):
    seconds, step = os.environ["SLOW_COPY"].split()
    time.sleep(float(seconds) if int(source.name) >= int(step) else 0)
    copy_step(source, target, **options)


if __name__ == "__main__":
    mirror.copy_step = copy_slowly
    jaxformer.experiment.train = functools.partial(jaxformer.experiment.train, hooks=[fault])
    sys.exit(main(ARGUMENTS))
