"""Local paths, files that are written whole or not at all, and folders that have one writer."""

import argparse
import contextlib
import os
import pathlib
import re
from collections.abc import Iterator

from jaxformer.errors import UserError


class RemotePathError(UserError, argparse.ArgumentTypeError):
    """A path is the address of something that is not on a local disk.

    An ``ArgumentTypeError`` too, so that argparse shows the message of an option's type as it is.
    """


def local_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns a path on a local disk; also serves as the type of an option.

    Python would take ``gs://bucket/run`` for the folder ``gs:/bucket/run`` beside this program, and
    what is written there is lost with the machine.

    Raises:
      RemotePathError: The path is a URL, or was one before ``pathlib`` merged its slashes.
    """
    text = os.fspath(path)
    if "://" in text or re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        raise RemotePathError(
            f"expected a path on a local disk: got {text}; work on a local disk and copy from or "
            "to there, or mount the bucket (with gcsfuse, for instance) and give the mount point"
        )
    return pathlib.Path(path)


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


@contextlib.contextmanager
def lock_folder(folder: pathlib.Path) -> Iterator[bool]:
    """Makes a folder if need be and locks it; says whether this process has it to itself.

    The lock is that of a file in it, ``lock``: network file systems lock only what can be written,
    as folders cannot. It ends with the block, or with the process, kill -9 included. Where a file
    system knows no locks, everyone is told yes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield True
        return
    descriptor, alone = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666), True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        alone = False
    except OSError:  # some network file systems
        pass
    try:
        yield alone
    finally:
        os.close(descriptor)
