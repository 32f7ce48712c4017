"""The run directory: it belongs to one experiment, and one run at a time trains in it."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from jaxformer.checkpoint import saved_steps
from jaxformer.errors import UserError
from jaxformer.files import lock_folder, write_file
from jaxformer.training import hosts
from jaxformer.training.settings import Settings
from jaxformer.training.task import Task
from jaxformer.workdir import Workdir, code_digest, read_json, use_compilation_cache

# What may differ when a run is resumed.
_MAY_CHANGE = {
    *(
        "train",
        "valid",
        "directory",
        "file",
        "steps",
        "gradient_accumulation",
        "remat",
        "keep_checkpoints",
    ),
    *("log_every", "eval_every", "eval_sentences", "checkpoint_every"),
}


def begin(folder: Workdir, settings: Settings) -> None:
    """Prepares a run before its data are read, which may take long.

    Raises:
      UserError: As in :func:`check_workdir`, or other hosts run something else.
    """
    use_compilation_cache()
    hosts.check_agreement({"config": _digest(settings), "jaxformer": code_digest()})
    check_workdir(folder, settings)


def check_workdir(folder: Workdir, settings: Settings) -> None:
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
    given = _fields(settings)
    for name, was in _fields(_saved(folder, settings)).items():
        if was != given.get(name) and name.rpartition(".")[2] not in _MAY_CHANGE:
            raise UserError(
                f"{folder.path}: holds a run with {name}={was!r}, but {given.get(name)!r} was "
                "given; give the same config, or another --workdir"
            )
    _check_checkpoints(folder)


def _fields(settings: Settings) -> dict[str, Any]:
    """Returns the values that a resumed run is held to, by name."""
    return {
        f"{section}.{name}": value
        for section, values in settings.to_dict().items()
        if section not in ("mesh", "search")
        for name, value in values.items()
    }


def _saved(folder: Workdir, settings: Settings) -> Settings:
    """Returns the settings of the run in the workdir."""
    values = read_json(folder.config)
    if values.keys() - settings.to_dict().keys():
        raise UserError(
            f"{folder.path}: expected a workdir of this task, but it holds a run of another one; "
            "give another workdir"
        )
    try:
        return type(settings).from_dict(values)
    except UserError as error:
        raise UserError(f"{folder.config}: {error}") from None


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
    lock = lock_folder(folder.path) if hosts.is_primary() else contextlib.nullcontext(True)
    with lock as alone:
        if not all(hosts.all_gather(alone)):
            raise UserError(
                f"{folder.path}: another process is training in this folder; stop it or let it "
                "end (a stopped one saves its state first), or give another --workdir"
            )
        yield


def check_identity(folder: Workdir, identity: dict[str, str]) -> None:
    """Checks that data is what the run of a workdir began with, if it has one.

    Raises:
      UserError: It is not.
    """
    if not folder.config.exists():
        return
    began_with = read_json(folder.identity)
    for name, digest in identity.items():
        if began_with.get(name) != digest:
            raise UserError(
                f"{folder.path}: the run began with other data: {name} was {began_with.get(name)}, "
                f"now {digest}; give it the old data, or another --workdir"
            )


def check_metadata(folder: Workdir, identity: dict[str, str], metadata: dict[str, Any]) -> None:
    """Checks that a checkpoint was trained with the same tokenizer and data.

    Earlier versions noted the tokenizer alone.

    Raises:
      UserError: It was not.
    """
    for name in [name for name in identity if name in metadata] or identity:
        if metadata.get(name) != identity[name]:
            raise UserError(
                f"{folder.checkpoints}: expected checkpoints of the {name} with SHA-256 "
                f"{identity[name]}, but they are of {metadata.get(name)}; use another --workdir"
            )


def initialize_workdir(folder: Workdir, settings: Settings, task: Task) -> None:
    """Writes what the run is made from; the config last, since it makes the folder a workdir.

    Raises:
      UserError: A file is in the way that this run has not begun with.
    """
    if not folder.config.exists():
        task.save(folder)
        write_file(folder.identity, json.dumps(task.identity(), indent=2).encode())
    write_file(folder.config, (json.dumps(settings.to_dict(), indent=2) + "\n").encode())


def _digest(settings: Settings) -> str:
    return hashlib.sha256(json.dumps(settings.to_dict()).encode()).hexdigest()
