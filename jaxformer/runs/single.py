"""Writing a folder with a single checkpoint, such as an average, atomically."""

import pathlib
import shutil
import tempfile
from typing import Any

from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.step_folders import is_step


def write_single(
    directory: pathlib.Path, step: int, state: PyTree, metadata: dict[str, Any]
) -> None:
    """Writes a folder with one checkpoint, and replaces the checkpoints that were there.

    Works in a folder ``<directory>.jaxformer-tmp.<random>`` beside it, and removes the folders of
    killed processes. Only folders that this package has written are ever removed.

    Raises:
      UserError: The name belongs to something else.
      OSError: The checkpoint cannot be written; an older one is left unchanged.
    """
    replaced = directory.is_symlink() or directory.exists()
    if replaced:
        _check_replaceable(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{directory.name}.jaxformer-tmp."
    for left in directory.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=directory.parent) as name:
        work = pathlib.Path(name)
        with Checkpoints(work / "new", keep=1) as checkpoints:
            checkpoints.save(step, state, metadata=metadata)
        if replaced:
            directory.rename(work / "old")  # renames a link itself, not its target
        (work / "new").rename(directory)


def _check_replaceable(directory: pathlib.Path) -> None:
    foreign = [str(directory)]
    if directory.is_dir():
        foreign = [str(path) for path in directory.iterdir() if not is_step(path)]
    if foreign:
        raise UserError(
            f"{directory}: expected nothing, or a folder of checkpoints to replace, but "
            f"{min(foreign)} is none; move it away"
        )
