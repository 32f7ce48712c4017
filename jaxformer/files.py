"""Files that are written whole or not at all."""

import os
import pathlib


def write_file(path: pathlib.Path, content: bytes) -> None:
    """Writes a file so that it is never seen half-written, and makes its folder if need be.

    Raises:
      OSError: The file cannot be written; an older one stays as it was.
    """
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
