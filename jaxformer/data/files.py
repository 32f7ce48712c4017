"""Files that are written whole or not at all."""

import os
import pathlib


def write_file(path: pathlib.Path, content: bytes) -> None:
    """Writes a file so that it is never seen half-written, and makes its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
