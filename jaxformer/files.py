"""Local paths, reading of untrusted files, atomic file writes, and directory locks."""

import argparse
import contextlib
import errno
import hashlib
import io
import json
import os
import pathlib
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from typing import Any

from jaxformer import pretrained
from jaxformer.addresses import fetcher_of
from jaxformer.errors import UserError, prefix_errors

# Largest size of a file that is read whole, such as a tokenizer. Ours are below 10 MiB.
MAX_BYTES = 32 << 20
MAX_JSON_BYTES = 8 << 20  # the worst JSON of this size takes about a second and 400 MiB
# The beginning and the largest size of a Git LFS pointer (git-lfs/docs/spec.md).
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LFS_MAX_BYTES = 1024
# Errors of file systems for operations that they do not support.
UNSUPPORTED = {
    errno.EINVAL,
    errno.ENOLCK,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EXDEV,
}

# Options for files take "-" for these, as in other programs.
STDIN = pathlib.Path("/dev/stdin")
STDOUT = pathlib.Path("/dev/stdout")
_DESCRIPTORS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}


class PathError(UserError, argparse.ArgumentTypeError):
    """A path that cannot be used; argparse prints the messages of its type unchanged."""


def local_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns a path on a local disk, and refuses URLs; a leading ``~`` is the home directory.

    Python would read ``gs://bucket/run`` as the relative path ``gs:/bucket/run``, whose files are
    lost with the machine. Shells do not expand ``~`` in ``--workdir=~/run``.
    """
    text = os.fspath(path)
    is_url = "://" in text or re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text)
    if is_url:
        raise PathError(
            f"expected a path on a local disk: got {text}; work on a local disk and copy from or "
            "to there, or mount the bucket (with gcsfuse, for instance) and give the mount point"
        )
    return pathlib.Path(os.path.expanduser(text))


def check_unicode_path(path: pathlib.Path) -> None:
    """Refuses a path whose name on the disk is not UTF-8.

    Python keeps such bytes, and in a locale with another encoding it writes other bytes than the
    libraries in C++ that store arrays.
    """
    text = os.fspath(path.absolute())

    try:
        is_same = text.encode() == os.fsencode(text)
    except UnicodeEncodeError:
        is_same = False

    if not is_same:
        raise UserError(
            f"{path}: expected a path in UTF-8; rename the folder, or set the locale to UTF-8, as "
            "in LC_ALL=C.UTF-8"
        )


def input_path(path: str) -> pathlib.Path:
    """Returns the path of a text to read; "-" is standard input, and "./-" a file."""
    return STDIN if path == "-" else local_path(path)


def output_path(path: str) -> pathlib.Path:
    """Returns the path of a text to write; "-" is standard output, and "./-" a file."""
    return STDOUT if path == "-" else local_path(path)


def descriptor_of(path: pathlib.Path) -> int | None:
    """Returns the file descriptor of a path such as /dev/stdout; None for other paths."""
    text = path.as_posix()

    numbered = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d{1,9})", text)
    if numbered:
        return int(numbered[1])
    return _DESCRIPTORS.get(text)


def is_stream(path: pathlib.Path) -> bool:
    """Returns True for a path that is read or written only once: a pipe, device or descriptor."""
    if descriptor_of(path) is not None:
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def model_path(workdir: str | os.PathLike[str]) -> pathlib.Path:
    """Returns a model's workdir: jaxformer's own for "pretrained", but not for "./pretrained".

    The model of an address, such as hf://OWNER/NAME, is fetched to the cache.
    """
    if workdir == pretrained.NAME:
        return pretrained.WORKDIR

    name = os.fspath(workdir)
    fetch = fetcher_of(name)
    return fetch(name) if fetch else local_path(name)


def run_path(workdir: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the workdir of a run to write; refuses "pretrained" and addresses."""
    if workdir == pretrained.NAME:
        raise PathError(
            "pretrained is the model that comes with jaxformer, and is not changed; name another "
            "workdir; to train the model further, add --config.training.init_from=pretrained"
        )
    if fetcher_of(os.fspath(workdir)):
        raise PathError(
            f"{workdir} is a model to read, and is not changed; name another workdir; to train the "
            f"model further, add --config.training.init_from={workdir}"
        )
    return local_path(workdir)


def cache_directory() -> pathlib.Path:
    """Returns ``$JAXFORMER_CACHE`` or ``~/.cache/jaxformer``, whose files can be made again."""
    return _named_folder("JAXFORMER_CACHE") or local_path("~/.cache/jaxformer")


def data_directory() -> pathlib.Path:
    """Returns the directory of corpora: ``$JAXFORMER_DATA``, or ``data`` in the cache."""
    return _named_folder("JAXFORMER_DATA") or cache_directory() / "data"


def model_cache() -> pathlib.Path:
    """Returns the directory of fetched models, in the cache."""
    return cache_directory() / "models"


def is_own_folder(workdir: pathlib.Path) -> bool:
    """Returns False for the folders of jaxformer, to which nothing of the user's is written."""
    return workdir != pretrained.WORKDIR and not workdir.is_relative_to(model_cache())


def _named_folder(variable: str) -> pathlib.Path | None:
    with prefix_errors(variable):
        name = os.environ.get(variable)
        return local_path(name) if name else None


def make_folder(folder: pathlib.Path, variable: str) -> None:
    """Creates a folder that an environment variable names, and checks that files can be made.

    Permissions alone do not show it: containers have other users, and file systems can be
    read-only.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"{folder}: expected a folder that can be written: {error.strerror or error}; set "
            f"{variable} to one that can, such as {variable}=/tmp/jaxformer"
        ) from None


def _refuse_lfs_pointer(path: pathlib.Path, descriptor: int) -> None:
    """Refuses the file that a clone without Git LFS has in place of a large one."""
    beginning = os.read(descriptor, len(_LFS_POINTER))
    os.lseek(descriptor, 0, os.SEEK_SET)
    if beginning == _LFS_POINTER:
        raise UserError(
            f"{path}: expected the file itself, found a Git LFS pointer to it; run git lfs pull in "
            "its folder, or download the file"
        )


def open_file(path: pathlib.Path, inside: pathlib.Path | None = None) -> io.BufferedReader:
    """Opens an untrusted file, and never blocks.

    Opening a FIFO for reading waits for a writer, a device may have no end, and a sparse file of
    terabytes takes no disk space. Links are followed only within the folder ``inside``, if given.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
    if inside is not None:
        path = resolve_inside(path, inside)
        flags |= getattr(os, "O_NOFOLLOW", 0)

    descriptor = os.open(path, flags)
    try:
        _check_regular(descriptor, path)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_regular(descriptor: int, path: pathlib.Path) -> None:
    """Checks that an open file is not a folder, FIFO, device, sparse file or Git LFS pointer."""
    status = os.fstat(descriptor)
    mode = stat.S_IFMT(status.st_mode)
    if mode != stat.S_IFREG:
        names = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO"}
        found = names.get(mode, "a device")
        raise UserError(f"{path}: expected a regular file, found {found}")

    size = status.st_size
    allocated = 512 * getattr(status, "st_blocks", size)  # Windows has no blocks.
    if size > MAX_BYTES and allocated < size // 4:
        # Compressed files, and files whose blocks are not counted, have few blocks but no holes.
        if os.lseek(descriptor, 0, os.SEEK_HOLE) < size:
            raise UserError(f"{path}: expected a file with content, found a sparse one")
        os.lseek(descriptor, 0, os.SEEK_SET)
    if size <= _LFS_MAX_BYTES:
        _refuse_lfs_pointer(path, descriptor)


@contextlib.contextmanager
def explain_read_errors(path: pathlib.Path) -> Iterator[None]:
    """Raises a UserError if reading the file within the context fails."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def resolve_inside(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Returns a path without links; refuses one that leads out of the folder."""
    resolved = pathlib.Path(os.path.realpath(path))
    if not resolved.is_relative_to(os.path.realpath(folder)):
        raise UserError(
            f"{path}: expected a file or folder within {folder}, found a link to {resolved}; move "
            f"all of {folder} there instead, or mount what the link stands for"
        )
    return resolved


def read_whole(
    path: pathlib.Path,
    inside: pathlib.Path | None = None,
    *,
    limit: int = MAX_BYTES,
) -> bytes:
    """Reads a file of limited size, as :func:`open_file`; all errors are UserErrors."""
    with explain_read_errors(path):
        return _read_limited(path, inside, limit)


def _read_limited(path: pathlib.Path, inside: pathlib.Path | None, limit: int) -> bytes:
    with open_file(path, inside) as file:
        content = file.read(limit + 1)

    if len(content) > limit:
        raise UserError(f"{path}: expected a file of at most {limit:,} bytes, found a larger one")
    return content


def read_json(path: pathlib.Path, inside: pathlib.Path | None = None) -> Any:
    """Reads a JSON file; see :func:`open_file`."""
    content = _read_limited(path, inside, MAX_JSON_BYTES)

    # Not UTF-8, not JSON, or nested too deeply.
    with prefix_errors(f"{path}: expected JSON", ValueError, RecursionError):
        return json.loads(content.decode("utf-8-sig"))


def read_object(
    path: pathlib.Path,
    inside: pathlib.Path | None = None,
    *,
    advice: str,
) -> dict[str, Any]:
    """Reads a JSON object; the message about a missing file ends with ``advice``."""
    with explain_read_errors(path):
        try:
            values = read_json(path, inside)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; {advice}") from None

    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(values).__name__}")
    return values


def file_sha256(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file, hexadecimal."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_output(path: pathlib.Path) -> None:
    """Checks that a file can be written here: the path is not a folder, link or device."""
    is_other = path.is_symlink() or (path.exists() and not path.is_file())
    if not path.name or is_other:
        raise UserError(f"expected the name of a file to write, not of a folder or link: {path}")

    for folder in path.parents:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: expected a folder, found a file")


def write_file(path: pathlib.Path, content: bytes) -> None:
    """Writes a file, and its folder, durably: even after a power failure it is old or new."""
    check_output(path)
    path.parent.mkdir(parents=True, exist_ok=True)

    # Threads, and processes in other containers, may have the same process id.
    partial = path.with_name(f"{path.name}.{secrets.randbelow(10**12)}.partial")

    try:
        # Mode "x" does not follow a symbolic link that another user may have created.
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            flush_to_disk(file.fileno())

        partial.replace(path)
        # The new name is durable only when the folder is, too. Windows cannot open folders.
        if os.name != "nt":
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                flush_to_disk(folder)
            finally:
                os.close(folder)
    except OSError as error:
        # An error from an open file, such as a full disk, does not name it.
        raise OSError(error.errno, error.strerror, error.filename or str(path)) from None
    finally:
        partial.unlink(missing_ok=True)


def flush_to_disk(descriptor: int) -> None:
    """Calls fsync on a file or folder, where the file system supports it."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise


def check_file_system(folder: pathlib.Path) -> None:
    """Checks that files in a folder can be renamed, locked and synchronized with the disk."""
    with tempfile.TemporaryDirectory(prefix="probe.", dir=folder) as probe:
        try:
            with pathlib.Path(probe, "file").open("wb") as file:
                operation = "fsync"
                os.fsync(file.fileno())

                operation = "lock"
                _flock(file.fileno(), "LOCK_EX")

            operation = "rename"
            os.rename(file.name, f"{file.name}.renamed")
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            raise UserError(
                f"{folder}: expected a file system that can fsync, lock and rename, but it cannot "
                f"{operation}; train in a --workdir on a local disk, and let "
                f"training.mirror={folder} keep a copy here"
            ) from None


def lock_folder(folder: pathlib.Path) -> contextlib.AbstractContextManager[bool]:
    """Creates a folder if needed and locks it; yields whether this process has the lock."""
    folder.mkdir(parents=True, exist_ok=True)

    # Network file systems lock only files that are open for writing.
    path = folder / "lock"
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"{path}: expected a file to lock, found a folder or a link")
    path.touch()

    return lock_file(path, shared=False)


@contextlib.contextmanager
def lock_file(path: pathlib.Path, *, shared: bool) -> Iterator[bool]:
    """Locks a file, exclusively or shared; yields False if another process has the lock.

    On systems and file systems without locks, it yields True.
    """
    # NFS needs write access for an exclusive lock. Opening a pipe does not block, either.
    mode = os.O_RDONLY if shared else os.O_RDWR
    descriptor = os.open(path, mode | getattr(os, "O_NONBLOCK", 0))

    locked = True
    try:
        try:
            _flock(descriptor, "LOCK_SH" if shared else "LOCK_EX")
        except BlockingIOError:
            locked = False
        except OSError:
            pass  # Some network file systems have no locks.
        yield locked
    finally:
        os.close(descriptor)


def _flock(descriptor: int, mode: str) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    fcntl.flock(descriptor, getattr(fcntl, mode) | fcntl.LOCK_NB)
