"""The run directory: it belongs to one experiment, and one run at a time trains in it."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from jaxformer import config as config_lib
from jaxformer.checkpoint import saved_steps
from jaxformer.config import Config
from jaxformer.errors import UserError
from jaxformer.files import lock_folder, write_file
from jaxformer.training import hosts
from jaxformer.training.dataset import Dataset
from jaxformer.workdir import Workdir, sha256_of

# What may differ when a run goes on.
_MAY_CHANGE = {
    *("train", "valid", "directory", "steps", "accumulation", "remat", "keep_checkpoints"),
    *("log_every", "eval_every", "eval_sentences", "checkpoint_every"),
}


def check_workdir(folder: Workdir, config: Config) -> None:
    """Checks that the workdir is free, or belongs to the same experiment and has its checkpoints.

    How long to train and how often to report may change between the parts of a run, and data may
    move: what it is like is held to its SHA-256. The rest of the experiment may not change.

    Raises:
      UserError: It is a file, or holds another experiment, or its checkpoints are missing.
    """
    if folder.path.exists() and not folder.path.is_dir():
        raise UserError(f"{folder.path}: expected a folder for --workdir, this is a file")
    if not folder.config.exists():
        return
    old = folder.load_config()
    for section in ("model", "data", "training"):
        before, now = getattr(old, section), getattr(config, section)
        for field in dataclasses.fields(before):
            was, given = getattr(before, field.name), getattr(now, field.name)
            if was != given and field.name not in _MAY_CHANGE:
                raise UserError(
                    f"{folder.path}: holds a run with {section}.{field.name}={was!r}, but "
                    f"{given!r} was given; give the same config, or another --workdir"
                )
    _check_checkpoints(folder)


def _check_checkpoints(folder: Workdir) -> None:
    """Checks that a run does not start over because the disk of its checkpoints is not mounted."""
    if saved_steps(folder.checkpoints):
        return
    step = folder.committed_step()
    if step is None and folder.checkpoints.is_dir():
        return  # stopped before its first checkpoint
    last = "" if step is None else f", the last of which is of step {step}"
    raise UserError(
        f"{folder.checkpoints}: expected the checkpoints of this run{last}, found none; mount or "
        f"bring back the folder that has them, or give another --workdir, or move {folder.path} "
        "away to start over"
    )


@contextlib.contextmanager
def only_run_in(folder: Workdir) -> Iterator[None]:
    """Keeps other runs out of the folder, which it makes if need be.

    Raises:
      UserError: There is one already, on every process of this run.
    """
    lock = lock_folder(folder.path) if hosts.is_first() else contextlib.nullcontext(True)
    with lock as alone:
        if not all(hosts.everyones(alone)):
            raise UserError(
                f"{folder.path}: another process is training in this folder; stop it or let it "
                "end (a stopped one saves its state first), or give another --workdir"
            )
        yield


def check_vocabulary(folder: Workdir, data: Dataset, metadata: dict[str, Any]) -> None:
    """Checks that a checkpoint was trained with the tokenizer of the data.

    Raises:
      UserError: It was not.
    """
    if metadata.get("tokenizer") != data.tokenizer.sha256:
        raise UserError(
            f"{folder.checkpoints}: expected checkpoints of the tokenizer with SHA-256 "
            f"{data.tokenizer.sha256}, but they are of {metadata.get('tokenizer')}; "
            "use another --workdir"
        )


def initialize_workdir(folder: Workdir, config: Config, data: Dataset) -> None:
    """Writes what the run is made from; the config last, since it makes the folder a workdir.

    Raises:
      UserError: A tokenizer is in the way that this run has not begun with.
    """
    if not folder.config.exists():
        if folder.tokenizer.exists() and sha256_of(folder.tokenizer) != data.tokenizer.sha256:
            raise UserError(
                f"{folder.tokenizer}: expected no tokenizer, or the one of this run, found "
                "another; move it away, or give another --workdir"
            )
        data.tokenizer.save(folder.tokenizer)
        write_file(folder.identity, json.dumps(data.identity, indent=2).encode())
    config_lib.save(config, folder.config)
