"""Writing a folder with a single checkpoint, such as an average, atomically."""

import contextlib
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.manifest import is_step
from jaxformer.runs.workdir import locked


def write_single(
    directory: pathlib.Path, step: int, state: PyTree, metadata: dict[str, Any]
) -> None:
    """Writes a folder with one checkpoint, and replaces the checkpoints that were there.

    Works in ``<directory>.unfinished``, one process at a time. If it is killed, the next one clears
    that folder.
    Only folders that this package has written are ever removed.

    Raises:
      UserError: One of the two names belongs to something else, or another process writes here.
      OSError: The checkpoint cannot be written; an older one is left unchanged.
    """
    _check_replaceable(directory)
    with _work_folder(directory.with_name(f"{directory.name}.unfinished")) as work:
        with Checkpoints(work / "new", keep=1) as checkpoints:
            checkpoints.save(step, state, metadata=metadata)
        if directory.is_symlink() or directory.exists():
            directory.rename(work / "old")  # renames a link itself, not its target
        (work / "new").rename(directory)


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


@contextlib.contextmanager
def _work_folder(work: pathlib.Path) -> Iterator[pathlib.Path]:
    """Creates and locks a folder, clears what a killed process left in it, and removes it after."""
    if work.is_symlink() or (work.exists() and not _is_ours(work)):
        raise UserError(
            f"{work}: expected nothing by this name, which is needed for a moment; move it away"
        )
    with locked(work, "writing here; wait for its end"):
        _clear(work)
        try:
            yield work
        finally:
            _clear(work)
            with contextlib.suppress(OSError):  # Windows cannot remove an open file
                (work / "lock").unlink()
                work.rmdir()


def _is_ours(work: pathlib.Path) -> bool:
    """Returns whether this is a folder that another call has locked, or an empty one."""
    names = {path.name for path in work.iterdir()} if work.is_dir() else {"no folder"}
    return not names or ("lock" in names and names <= {"lock", "new", "old"})


def _clear(work: pathlib.Path) -> None:
    """Removes the checkpoints in the folder."""
    for name in ("new", "old"):
        if (work / name).is_symlink():
            (work / name).unlink()
        else:
            shutil.rmtree(work / name, ignore_errors=True)
