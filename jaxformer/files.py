"""Files that are written whole or not at all."""

import os
import pathlib

from jaxformer.errors import UserError


def write_file(path: pathlib.Path, content: bytes) -> None:
    """Writes a file so that it is never seen half-written, and makes its folder if need be.

    Raises:
      UserError: Something other than a file has this name: a folder, a link, a device.
      OSError: The file cannot be written; an older one stays as it was.
    """
    if not path.name or path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"expected the name of a file to write, not of a folder or link: {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    try:
        # "x" follows no symbolic link that somebody may have put there.
        with partial.open("xb") as file:
            file.write(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
