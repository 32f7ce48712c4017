"""The folders of the steps of a run: their names, their files and their locks."""

import contextlib
import os
import pathlib
import shutil
import stat

import orbax.checkpoint as ocp

from jaxformer.files import lock_file

MANIFEST, SCORE, METADATA = "manifest.json", "score.json", "_METADATA"
# Without these files orbax would read a checkpoint in another format, from files of other names.
ESSENTIAL = {METADATA, "manifest.ocdbt"}


def saved_steps(directory: pathlib.Path) -> list[int]:
    """Returns the complete steps in a folder, ascending; none if there is no folder."""
    if not directory.is_dir():
        return []
    names = (path.name for path in directory.iterdir())
    return sorted(int(name) for name in names if _is_step_name(name))


def is_step(path: pathlib.Path) -> bool:
    """Returns whether this is the folder of a step, judging by its name and its manifest."""
    return _is_step_name(path.name) and (path / MANIFEST).is_file()


def _is_step_name(name: str) -> bool:
    return name.isascii() and name.isdecimal() and name == str(int(name))  # not "007"


def temporary_folder(directory: pathlib.Path, step: int | str) -> pathlib.Path:
    """Returns the folder of a step that is being written; the next writer removes it."""
    return directory / f"{step}{ocp.utils.TMP_DIR_SUFFIX}"


def set_aside(step: pathlib.Path) -> None:
    """Renames a damaged step, so that the same step can be saved again."""
    aside = step.with_name(f"{step.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    step.rename(aside)


def list_files(step: pathlib.Path) -> dict[str, os.stat_result]:
    """Returns the status of everything in a step but folders and hidden files, by name.

    Links are not followed. File managers and network file systems create hidden files at any time.
    """
    paths = (path for path in step.rglob("*") if not path.name.startswith("."))
    found = {path.relative_to(step).as_posix(): path.lstat() for path in paths}
    return {name: status for name, status in found.items() if not stat.S_ISDIR(status.st_mode)}


def lock_step(step: pathlib.Path, *, shared: bool) -> contextlib.AbstractContextManager[bool]:
    """Locks a step, shared to read it or alone to remove it; yields whether it is locked."""
    path = step / MANIFEST
    return lock_file(path, shared=shared) if path.exists() else contextlib.nullcontext(True)
