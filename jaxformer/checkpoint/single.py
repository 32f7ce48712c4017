"""A folder of a single checkpoint, such as an average, written whole or not at all."""

import pathlib
import shutil
from typing import Any

from jaxtyping import PyTree

from jaxformer.checkpoint.checkpoints import Checkpoints
from jaxformer.checkpoint.manifest import is_step
from jaxformer.errors import UserError

# In a folder that has it, everything is ours to remove.
_MARK = "unfinished"


def write_single(
    directory: pathlib.Path, step: int, state: PyTree, metadata: dict[str, Any]
) -> None:
    """Writes a folder of one checkpoint, in the place of checkpoints that were there.

    Works in ``<directory>.unfinished``, which a killed process may leave behind and the next one
    clears. Only folders that this package has written are ever removed.

    Raises:
      UserError: One of the two names belongs to something else.
      OSError: The checkpoint cannot be written; an older one stays as it was.
    """
    _check_replaceable(directory)
    work = _make_work_folder(directory.with_name(f"{directory.name}.unfinished"))
    try:
        with Checkpoints(work / "new", keep=1) as checkpoints:
            checkpoints.save(step, state, metadata=metadata)
        if directory.is_symlink() or directory.exists():
            directory.rename(work / "old")  # of a link the link, not what it points to
        (work / "new").rename(directory)
    finally:
        _clear(work)


def _check_replaceable(directory: pathlib.Path) -> None:
    if not directory.exists() and not directory.is_symlink():
        return
    foreign = [str(directory)]
    if directory.is_dir():
        foreign = [str(path) for path in directory.iterdir() if not is_step(path)]
    if foreign:
        raise UserError(
            f"{directory}: expected nothing, or a folder of checkpoints to replace, but "
            f"{min(foreign)} is none; move it away"
        )


def _make_work_folder(work: pathlib.Path) -> pathlib.Path:
    """Makes the folder, or clears the one that a killed process has left."""
    if (work / _MARK).is_file() and not work.is_symlink():
        _clear(work)
    try:
        work.mkdir(parents=True)
    except FileExistsError:
        if work.is_symlink() or not work.is_dir() or any(work.iterdir()):
            raise UserError(
                f"{work}: expected nothing by this name, which is needed for a moment; move it away"
            ) from None
    (work / _MARK).write_text("jaxformer writes a checkpoint here\n")
    return work


def _clear(work: pathlib.Path) -> None:
    """Removes the folder, the mark last: what cannot be removed now is still known for ours."""
    for name in ("new", "old"):
        if (work / name).is_symlink():
            (work / name).unlink()
        else:
            shutil.rmtree(work / name, ignore_errors=True)
    if [path.name for path in work.iterdir()] == [_MARK]:
        (work / _MARK).unlink()
        work.rmdir()
