"""The command ``train``; in a clone, ``python train.py`` is the same."""

import faulthandler
import functools
import os
import pathlib
import re
import shlex
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

from jaxformer.cli.command import Command
from jaxformer.cli.configs import list_configs
from jaxformer.cli.signatures import Option
from jaxformer.cli.source_fields import list_fields
from jaxformer.errors import UserError, exit_code, typed_command
from jaxformer.files import run_path
from jaxformer.waits import announce

_SHUTDOWN_SECONDS = 3  # time that a failing process waits for the other processes to fail, too


def _run_path(path: str) -> pathlib.Path | None:
    return run_path(path) if path else None


def train(
    *,
    config: str | None = None,
    workdir: Annotated[pathlib.Path, Option(metavar="DIR", convert=_run_path)] | None = None,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    fields: bool = False,
    overrides: Sequence[str] = (),
) -> None:
    """Train a model, or resume an interrupted run.

    Usage: NAME|FILE.py --workdir DIR [--config.FIELD=VALUE ...]

    Options:
      config (CONFIG): another way to give NAME or FILE.py
      workdir: run directory: config, tokenizer, checkpoints, metrics; required
      fields: print all fields of a config, with the defaults of the paper's base model

    Several processes:
      coordinator (HOST:PORT): address of the first process, or 'auto' to ask the cluster (Cloud
        TPU, SLURM, GKE); run the same command on every host
      num_processes: number of processes; not with auto
      process_id: number of this process, from 0; not with auto

    Example:
      jaxformer train numerals --workdir runs/numerals

      jaxformer train base:small --workdir runs/mine --config.data.train=my/train

      jaxformer train my_config.py --workdir runs/mine --config.training.steps=1000

      In a clone, python train.py is the same as jaxformer train. FILE.py is Python and is
      executed; nothing else is. NAME is a config that comes with jaxformer, with an optional
      variant such as base:small:

      {configs}

      The usual fields, with the defaults of the paper's base model; --fields prints all:

      {fields}

      SIGTERM, SIGINT (Ctrl-C) and SIGHUP save a checkpoint and stop the run. Exit codes: 0 done,
      1 failed, 2 a mistake in the input, 75 stopped by a signal (run the same command again),
      130 interrupted at once by a second Ctrl-C.
    """
    if fields:
        print(list_fields())
        return

    missing = []
    if not config:
        missing.append("a config, such as numerals")
    if not workdir:
        missing.append("--workdir DIR")
    if config is None or workdir is None or missing:
        raise UserError(f"expected {' and '.join(missing)}; see {typed_command('train')} --help")

    members = _Members(coordinator, num_processes, process_id)
    command = functools.partial(_train, config, overrides, workdir, members)
    if coordinator is None:
        command()
    else:
        _run_and_abort_on_failure(command)


COMMAND = Command(
    "train",
    train,
    place=10,
    lists={"configs": list_configs, "fields": functools.partial(list_fields, usual=True)},
)


class _Members(NamedTuple):
    """The processes of a run; all fields are None if there is one."""

    coordinator: str | None
    count: int | None
    process_id: int | None


def _train(
    name: str,
    overrides: Sequence[str],
    workdir: pathlib.Path,
    members: _Members,
) -> None:
    faulthandler.enable(2)
    from jaxformer.runs.allocator import keep_freed_memory

    keep_freed_memory(training=True)  # before JAX starts its threads

    # Imported late, so that a wrong argument or --help does not wait for jax.
    import jax
    from absl import logging

    import jaxformer.experiment
    from jaxformer.cli.config_file import load_config
    from jaxformer.runs import processes

    logging.set_verbosity(logging.WARNING)  # orbax reports a dozen lines for every checkpoint
    config = load_config(name, overrides, workdir)
    _join_processes(members)
    with announce("starting the devices"):
        jax.devices()

    jaxformer.experiment.train(config, workdir)
    if processes.is_primary():
        next_command = config.kind.use.format(workdir=shlex.quote(str(workdir)))
        print(f"done; {next_command}", file=sys.stderr)


def _join_processes(members: _Members) -> None:
    """Connects the processes of a run, if the arguments specify several."""
    coordinator, count, process_id = members
    if coordinator in (None, "auto"):
        if (count, process_id) != (None, None):
            raise UserError("--num_processes and --process_id need --coordinator=HOST:PORT")
        if coordinator is None:
            return
    else:
        has_port = re.fullmatch(r".+:\d{1,5}", coordinator)
        if not has_port or process_id not in range(count or 0):
            raise UserError(
                "--coordinator=HOST:PORT needs --num_processes=N and --process_id=0 to N-1: got "
                f"{coordinator}, {count} and {process_id}"
            )

    from jaxformer.runs.processes import join_processes

    address = None if coordinator == "auto" else coordinator
    try:
        join_processes(address, count, process_id)
    except (RuntimeError, ValueError) as error:  # the type depends on what jax lacks
        raise UserError(
            f"--coordinator={coordinator}: jax could not join the processes ({error}); give "
            "--coordinator=HOST:PORT, --num_processes and --process_id"
        ) from None


def _run_and_abort_on_failure(command: Callable[[], None]) -> None:
    """Runs one of several processes, and exits at once if it fails: a shutdown may take minutes."""
    try:
        code = exit_code(command)
    except Exception:
        traceback.print_exc()
        code = 1
    if code == 0:
        return
    import jax

    shutdown = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    shutdown.start()
    shutdown.join(_SHUTDOWN_SECONDS)
    os._exit(code)
