"""The folders of the steps of a run: where they may be, and what their names mean."""

import pathlib
import shutil

import orbax.checkpoint as ocp


def saved_steps(directory: pathlib.Path) -> list[int]:
    """Returns the complete steps in a folder, ascending; none if there is no folder."""
    if not directory.is_dir():
        return []
    names = (path.name for path in directory.iterdir())
    return sorted(int(name) for name in names if is_step_name(name))


def is_step_name(name: str) -> bool:
    """Returns whether a folder of this name may be a step."""
    return name.isascii() and name.isdecimal() and name == str(int(name))  # not "007"


def temporary_folder(directory: pathlib.Path, step: str) -> pathlib.Path:
    """Returns the folder of a step that is being written; the next writer removes it."""
    return directory / f"{step}{ocp.utils.TMP_DIR_SUFFIX}"


def set_aside(step: pathlib.Path) -> None:
    """Renames a damaged step, so that the same step can be saved again."""
    aside = step.with_name(f"{step.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    step.rename(aside)
