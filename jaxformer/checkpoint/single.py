"""Writing a folder with a single checkpoint, such as an average, atomically."""

import pathlib
import shutil
from typing import Any

from jaxtyping import PyTree

from jaxformer.checkpoint.checkpoints import Checkpoints
from jaxformer.checkpoint.manifest import is_step
from jaxformer.errors import UserError

# A folder with this file was created here, and may be removed.
_MARK = "unfinished"


def write_single(
    directory: pathlib.Path, step: int, state: PyTree, metadata: dict[str, Any]
) -> None:
    """Writes a folder with one checkpoint, and replaces the checkpoints that were there.

    Works in ``<directory>.unfinished``. If the process is killed, the next one clears that folder.
    Only folders that this package has written are ever removed.

    Raises:
      UserError: One of the two names belongs to something else.
      OSError: The checkpoint cannot be written; an older one is left unchanged.
    """
    _check_replaceable(directory)
    work = _make_work_folder(directory.with_name(f"{directory.name}.unfinished"))
    try:
        with Checkpoints(work / "new", keep=1) as checkpoints:
            checkpoints.save(step, state, metadata=metadata)
        if directory.is_symlink() or directory.exists():
            directory.rename(work / "old")  # renames a link itself, not its target
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
    """Creates the folder, or clears the one that a killed process left."""
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
    """Removes the folder, the marker file last: while it exists, the rest can still be removed."""
    for name in ("new", "old"):
        if (work / name).is_symlink():
            (work / name).unlink()
        else:
            shutil.rmtree(work / name, ignore_errors=True)
    if [path.name for path in work.iterdir()] == [_MARK]:
        (work / _MARK).unlink()
        work.rmdir()
