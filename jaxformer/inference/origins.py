"""The origins of models that were imported or quantized, for logs."""

import pathlib
from typing import Any

from jaxformer.runs.workdir import Workdir, read_workdir_object

IMPORT = "jaxformer import"  # the command, in messages and workdirs
# Keys in the metadata of the checkpoint of a converted model.
ORIGIN = "origin"
ROUNDED_FROM = "rounded_from"
_LONGEST_ORIGIN = 200  # characters


def describe_origin(folder: Workdir, metadata: dict[str, Any]) -> str:
    """Returns the origin of a converted model; "" if nothing is known about it.

    The metadata are not trusted, and are printed: without control characters, and shortened.
    """
    origin = metadata.get(ORIGIN)
    if not isinstance(origin, str):  # Version 0.2.0 recorded less.
        rounded_from = metadata.get(ROUNDED_FROM)
        made_by = read_workdir_object(folder.identity).get("made_by")
        if rounded_from is not None:
            origin = f"quantized from {rounded_from}"
        elif made_by == IMPORT:
            origin = "imported from another system"
        else:
            origin = ""

    printable = "".join(filter(str.isprintable, origin))
    return printable[:_LONGEST_ORIGIN]


def name_folder(path: pathlib.Path) -> str:
    """Returns a name of a folder for records: its path, or if that is absolute, the last part."""
    if path.is_absolute() or not path.name:
        return path.absolute().name
    return path.as_posix()
