"""The command ``train``, which ``python train.py`` runs, too."""

import argparse
import faulthandler
import functools
import os
import re
import threading
import traceback
from collections.abc import Callable

from jaxformer.errors import UserError, exit_code

# With several processes: time that a process that fails waits for the others to fail too.
_FAREWELL_SECONDS = 3


def train(options: argparse.Namespace) -> None:
    """Trains the model of a config, or resumes an interrupted run.

    Raises:
      UserError: The config, the workdir, the data or the processes are not as expected.
    """
    missing = [] if options.config else ["a config, such as --config=numerals"]
    missing += [] if options.workdir else ["--workdir=FOLDER"]
    if missing:
        raise UserError(f"expected {' and '.join(missing)}; see {options.parser.prog} --help")
    command = functools.partial(_train, options)
    if options.coordinator is None:
        command()
    else:
        _leaving_others_free(functools.partial(exit_code, command))


def _train(options: argparse.Namespace) -> None:
    faulthandler.enable(2)
    # Imported late, so that a wrong argument or --help does not wait for jax.
    from absl import logging

    import jaxformer.experiment
    from jaxformer.cli.config_file import load_config

    logging.set_verbosity(logging.WARNING)  # orbax reports a dozen lines for every checkpoint
    config = load_config(options.config, options.overrides)
    _join_processes(options)
    jaxformer.experiment.train(config, options.workdir)


def _join_processes(options: argparse.Namespace) -> None:
    """Connects the processes of a run, if the arguments specify several.

    Raises:
      UserError: The arguments contradict each other, or the processes cannot be connected.
    """
    place, count, number = options.coordinator, options.num_processes, options.process_id
    arguments = ()
    if place in (None, "auto"):
        if (count, number) != (None, None):
            raise UserError("--num_processes and --process_id need --coordinator=HOST:PORT")
        if place is None:
            return
    else:
        arguments = (place, count, number)
        known = None not in arguments and re.fullmatch(r".+:\d{1,5}", place)
        if not known or not 0 <= number < count:
            raise UserError(
                "--coordinator=HOST:PORT needs --num_processes=N and --process_id=0 to N-1: got "
                f"{place}, {count} and {number}"
            )
    import jax

    from jaxformer.runs.watchdog import HEARTBEAT_TIMEOUT

    try:
        jax.distributed.initialize(*arguments, heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT)
    except (RuntimeError, ValueError) as error:  # the type depends on what jax misses
        raise UserError(
            f"--coordinator={place}: jax could not join the processes ({error}); give "
            "--coordinator=HOST:PORT, --num_processes and --process_id"
        ) from None


def _leaving_others_free(command: Callable[[], int]) -> None:
    """Runs one process of several, and ends it if it fails, so that the others do not hang.

    If all processes fail, they shut down together. If only this one fails, the others are in the
    middle of a step, and a shutdown would wait for them for minutes. jax ends them once this
    process is gone; see :mod:`jaxformer.runs.watchdog`.
    """
    try:
        code = command()
    except Exception:
        traceback.print_exc()
        code = 1
    if code == 0:
        return
    import jax

    farewell = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    farewell.start()
    farewell.join(_FAREWELL_SECONDS)
    os._exit(code)
