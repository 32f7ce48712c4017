"""The run directory. It belongs to one experiment, and one run at a time trains in it."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from jaxformer.checkpoint import saved_steps
from jaxformer.errors import UserError
from jaxformer.fields import check_unchanged
from jaxformer.files import lock_folder, write_file
from jaxformer.training import hosts
from jaxformer.training.settings import Settings
from jaxformer.training.task import Task
from jaxformer.workdir import Workdir, code_digest, read_json, use_compilation_cache

# Fields that may differ when a run is resumed.
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
    """Prepares a run before it reads its data, which can take long.

    Raises:
      UserError: As in :func:`check_workdir`, or another host runs another config or version.
    """
    use_compilation_cache()
    hosts.check_agreement({"config": _digest(settings), "jaxformer": code_digest()})
    check_workdir(folder, settings)


def check_workdir(folder: Workdir, settings: Settings) -> None:
    """Checks that the workdir is new, or belongs to the same experiment and has its checkpoints.

    The number of steps and the intervals of reports may change when a run is resumed. Data may
    move, since it is identified by its SHA-256. The rest of the experiment may not change.

    Raises:
      UserError: The workdir is a file, holds another experiment, or lacks its checkpoints.
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
    """Returns the values that a resumed run must not change, by name."""
    return {
        f"{section}.{name}": value
        for section, values in settings.to_dict().items()
        if section not in ("mesh", "search")
        for name, value in values.items()
    }


def _saved(folder: Workdir, settings: Settings) -> Settings:
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
    """Checks that the checkpoints exist: their disk may not be mounted."""
    if saved_steps(folder.checkpoints):
        return
    step = folder.committed_step()
    if step is None and folder.checkpoints.is_dir():
        return  # stopped before its first checkpoint
    last = "" if step is None else f", the last one of step {step}"
    raise UserError(
        f"{folder.checkpoints}: expected the checkpoints of this run{last}, found none; mount or "
        f"bring back the folder that has them, or give another --workdir, or move {folder.path} "
        "away to start over"
    )


@contextlib.contextmanager
def only_run_in(folder: Workdir) -> Iterator[None]:
    """Locks the folder, and creates it if need be.

    Raises:
      UserError: Another run holds the lock. Every process of this run raises it.
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
    """Checks that the data is the same as when the run in this workdir began, if there is one.

    Raises:
      UserError: The data differs.
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


def describe_run(identity: dict[str, str], settings: Settings) -> dict[str, Any]:
    """Returns the metadata of checkpoints: the identity, and the model of an experiment's config.

    Arrays do not show all of a model: an activation has no parameters.
    """
    model = settings.to_dict().get("model")
    return identity if model is None else {**identity, "model": model}


def check_metadata(folder: Workdir, expected: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Checks that a checkpoint was trained with the same tokenizer, data and model.

    Checkpoints of earlier versions record only the tokenizer.

    Args:
      folder: The workdir.
      expected: Metadata of this run, from :func:`describe_run`.
      metadata: Metadata of the checkpoint.

    Raises:
      UserError: They differ.
    """
    identity, place = dict(expected), str(folder.checkpoints)
    model = identity.pop("model", {})
    check_unchanged(model, metadata.get("model"), "model", place)
    for name in [name for name in identity if name in metadata] or identity:
        if metadata.get(name) != identity[name]:
            raise UserError(
                f"{place}: expected checkpoints of the {name} with SHA-256 "
                f"{identity[name]}, but they are of {metadata.get(name)}; use another --workdir"
            )


def initialize_workdir(folder: Workdir, settings: Settings, task: Task) -> None:
    """Writes identity and config. The config comes last, since it makes the folder a workdir.

    Raises:
      UserError: The folder has a file that would be overwritten.
    """
    if not folder.config.exists():
        task.save(folder)
        write_file(folder.identity, json.dumps(task.identity(), indent=2).encode())
    write_file(folder.config, (json.dumps(settings.to_dict(), indent=2) + "\n").encode())


def _digest(settings: Settings) -> str:
    return hashlib.sha256(json.dumps(settings.to_dict()).encode()).hexdigest()
