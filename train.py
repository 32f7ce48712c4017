"""Trains a model: ``python train.py --config=configs/numerals.py --workdir=runs/numerals``.

Any field of the config can be overridden: ``--config.model.num_layers=3``. The same command resumes
an interrupted run. A config file is Python and is executed; nothing else is.

SIGTERM, SIGINT (Ctrl-C) and SIGHUP save a checkpoint and stop the run. Exit codes: 0 done,
1 failed, 2 a mistake in the input, 75 stopped by a signal (run the same command again),
130 interrupted at once by a second Ctrl-C.
"""

import faulthandler
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable

from absl import app, flags, logging
from ml_collections import config_flags

from jaxformer.cli.config_file import MISTAKES, explain, rename_flags
from jaxformer.config import Config
from jaxformer.errors import UserError, exit_code
from jaxformer.files import local_path

CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "Required. The experiment: a file in configs/, with an optional variant (base.py:tiny). Any "
    "field can be overridden: --config.model.num_layers=3. Fields: "
    "python -c 'import jaxformer; help(jaxformer.ModelConfig)', likewise DataConfig, StreamConfig, "
    "TrainingConfig and MeshConfig.",
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Required. Run directory: config, tokenizer, checkpoints, metrics."
)
COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "With several processes: HOST:PORT of the first one, or 'auto' to ask the cluster "
    "(Cloud TPU, SLURM, GKE). Run the same command on every host.",
)
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Number of processes; not with auto.")
PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "Number of this process, from 0; not with auto."
)

# With several processes: time that a process that fails waits for the others to fail too.
_FAREWELL_SECONDS = 3


def main(argv: list[str]) -> None:
    """Runs the experiment of the flags with :mod:`jaxformer.experiment`."""
    logging.set_verbosity(logging.WARNING)  # orbax reports a dozen lines for every checkpoint
    command = functools.partial(exit_code, functools.partial(_train, argv))
    sys.exit(command() if COORDINATOR.value is None else _leaving_others_free(command))


def _train(argv: list[str]) -> None:
    if len(argv) > 1:
        raise UserError(f"expected only --flags: got {argv[1]!r}")
    faulthandler.enable(2)
    # Imported late, so that a wrong flag or --help does not wait for jax.
    from jaxformer.experiment import train

    assert WORKDIR.value is not None  # parse has checked it
    config = Config.from_dict(CONFIG.value.to_dict())
    # jax's own limit comes later than ours, since jax does not report stacks and causes.
    _join_processes(heartbeat_timeout=config.training.stall_timeout + 60)
    train(config, WORKDIR.value)


def parse(argv: list[str]) -> list[str]:
    """Parses the flags; an invalid flag gives one line and exit code 2."""
    try:
        sys.argv[1:] = argv[1:] = rename_flags(argv[1:])  # ml_collections reads sys.argv too
        rest = flags.FLAGS(argv)
        if CONFIG.value is None or not WORKDIR.value:
            missing = ["--config=configs/NAME.py"] if CONFIG.value is None else []
            missing += [] if WORKDIR.value else ["--workdir=FOLDER"]
            raise flags.Error(f"expected {' and '.join(missing)}")
        local_path(WORKDIR.value)
        CONFIG.value.to_dict()  # a file that failed to load raises only when it is used
    except (SyntaxError, *MISTAKES) as error:
        print(f"error: {explain(error, argv)}", file=sys.stderr)
        sys.exit(2)
    return rest


def _join_processes(heartbeat_timeout: int) -> None:
    """Connects the processes of a run, if the flags specify several."""
    import jax

    numbers = (NUM_PROCESSES.value, PROCESS_ID.value)
    if COORDINATOR.value in (None, "auto"):
        if numbers != (None, None):
            raise UserError("--num_processes and --process_id need --coordinator=HOST:PORT")
        if COORDINATOR.value == "auto":
            _join_cluster(heartbeat_timeout)
        return
    if None in numbers:
        raise UserError("--coordinator=HOST:PORT needs --num_processes=N and --process_id=0 to N-1")
    jax.distributed.initialize(
        COORDINATOR.value, *numbers, heartbeat_timeout_seconds=heartbeat_timeout
    )


def _leaving_others_free(command: Callable[[], int]) -> int:
    """Runs one process of several, and ends it if it fails, so that the others do not hang.

    If all processes fail, they shut down together. If only this one fails, the others are in the
    middle of a step, and a shutdown would wait for them for minutes. They have been told; see
    :mod:`jaxformer.training.watchdog`.
    """
    try:
        code = command()
    except Exception:
        traceback.print_exc()
        code = 1
    if code == 0:
        return code
    import jax

    farewell = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    farewell.start()
    farewell.join(_FAREWELL_SECONDS)
    os._exit(code)


def _join_cluster(heartbeat_timeout: int) -> None:
    import jax

    try:
        jax.distributed.initialize(heartbeat_timeout_seconds=heartbeat_timeout)
    except (RuntimeError, ValueError) as error:  # the type depends on what jax misses
        raise UserError(
            f"--coordinator=auto: jax found no cluster it could join ({error}); give "
            "--coordinator=HOST:PORT, --num_processes and --process_id"
        ) from None


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
