"""Trains a Transformer: ``python train.py --config=configs/numerals.py --workdir=runs/numerals``.

Any field of the config can be overridden: ``--config.model.num_layers=3``. The same command goes
on where an interrupted run stopped. A config file is Python and is executed; nothing else is.
"""

import re
import sys

from absl import app, flags, logging
from ml_collections import config_flags

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The experiment: a file in configs/, with an optional variant (base.py:tiny)."
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the run: config, tokenizer, checkpoints, metrics."
)
COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "With several processes: HOST:PORT of the first one, or 'auto' where the cluster tells "
    "(Cloud TPU, SLURM, GKE). The same command runs on every host.",
)
PROCESSES = flags.DEFINE_integer("processes", None, "How many processes; not with auto.")
PROCESS = flags.DEFINE_integer("process", None, "Which of them this is, from 0; not with auto.")


def main(argv: list[str]) -> None:
    """Turns the flags into a config and hands over to :mod:`jaxformer.training`."""
    # Imported late: a wrong flag, or --help, should not wait for jax.
    from jaxformer.config import from_dict
    from jaxformer.errors import UserError
    from jaxformer.training.loop import train

    logging.set_verbosity(logging.WARNING)  # orbax reports a dozen lines for every checkpoint
    try:
        if len(argv) > 1:
            raise UserError(f"expected only --flags: got {argv[1]!r}")
        assert WORKDIR.value is not None  # parse has seen to it
        _join_processes()
        train(from_dict(CONFIG.value.to_dict()), WORKDIR.value)
    except UserError as error:
        sys.exit(_complain(str(error)))
    except (FloatingPointError, OSError) as error:  # no convergence; or a full disk, say
        _complain(str(error))
        sys.exit(1)
    except KeyboardInterrupt as stop:
        print(str(stop) or "interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)


def parse(argv: list[str]) -> list[str]:
    """Parses the flags; a mistake in them is one line and exit code 2."""
    try:
        rest = flags.FLAGS(argv)
        if CONFIG.value is None or not WORKDIR.value:
            raise flags.Error("expected --config=configs/NAME.py and --workdir=FOLDER")
        CONFIG.value.to_dict()  # a file that failed to load says so only when it is used
    except SyntaxError as error:
        sys.exit(_complain(f"{error.filename}:{error.lineno}: {error.msg}"))
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        sys.exit(_complain(_one_line(error)))
    return rest


def _join_processes() -> None:
    """Connects the processes of a run on several hosts, if the flags say that there are any."""
    import jax

    from jaxformer.errors import UserError

    numbers = (PROCESSES.value, PROCESS.value)
    if COORDINATOR.value in (None, "auto"):
        if numbers != (None, None):
            raise UserError("--processes and --process need --coordinator=HOST:PORT")
        if COORDINATOR.value == "auto":
            jax.distributed.initialize()
        return
    if None in numbers:
        raise UserError("--coordinator=HOST:PORT needs --processes=N and --process=0 to N-1")
    jax.distributed.initialize(COORDINATOR.value, *numbers)


def _complain(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


def _one_line(error: BaseException) -> str:
    """The gist of ml_collections' messages, which quote tracebacks and span several lines."""
    message = str(error.args[0] if error.args else error).replace("\\n", "\n")
    lines = [line.strip() for line in message.split("\n") if line.strip(" '\\")]
    if "Traceback (most recent call last):" in lines or "Attempted [Relative path]:" in lines:
        return re.sub(r"^\[Errno \d+\] |^[\w.]*Error: ", "", lines[-1])
    if isinstance(error, (AttributeError, KeyError)):
        lines.insert(0, "unknown config field")
    return " ".join(line.strip("'\\ ") for line in lines)


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
