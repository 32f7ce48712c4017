"""Writes lines to files, which are replaced when complete, to streams and to devices."""

import contextlib
import io
import os
import pathlib
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TextIO, TypeAlias

from jaxformer.data.text_files import COMPRESSED
from jaxformer.errors import NOT_UTF8, UserError
from jaxformer.files import STDOUT, check_output, descriptor_of, is_stream

Writer: TypeAlias = Callable[[Iterable[str]], None]


@contextlib.contextmanager
def open_output(path: pathlib.Path | None) -> Iterator[Writer]:
    """Opens a file that is named ``NAME.<process id>.partial`` until it is complete.

    Devices, pipes and open files, such as /dev/stdout, are written directly.
    """
    if path is None:
        yield lambda lines: None
        return
    if is_stream(path):
        with _name_errors(path), _open_stream(path) as file:
            yield _writer(file)
        return
    path.parent.mkdir(parents=True, exist_ok=True)

    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    # Mode "x" does not follow a symbolic link, which another user may have created.
    opened = partial.open("x", encoding="utf-8", errors=NOT_UTF8, newline="\n")
    with _name_errors(path), opened as file:
        try:
            yield _writer(file)
        except BaseException:
            if partial.stat().st_size:
                print(f"{partial}: finished lines", file=sys.stderr)
            else:
                partial.unlink()
            raise
    partial.replace(path)


def is_standard_output(path: pathlib.Path) -> bool:
    return descriptor_of(path) == descriptor_of(STDOUT)


def _open_stream(path: pathlib.Path) -> contextlib.AbstractContextManager[TextIO]:
    if is_standard_output(path):
        return contextlib.nullcontext(sys.stdout)
    # A path such as /dev/fd/3 would open its file again, and empty it.
    descriptor = descriptor_of(path)
    opened = path if descriptor is None else os.dup(descriptor)
    return open(opened, "w", encoding="utf-8", errors=NOT_UTF8, newline="\n")


@contextlib.contextmanager
def _name_errors(path: pathlib.Path) -> Iterator[None]:
    """Adds the path to errors of writing, which have none."""
    try:
        yield
    except BrokenPipeError:  # The reader has exited, which is not an error of standard output.
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or str(path)) from None


def _writer(file: TextIO | io.TextIOBase) -> Writer:
    def write(lines: Iterable[str]) -> None:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()

    return write


def check_outputs(
    inputs: Iterable[pathlib.Path | None], outputs: Mapping[str, pathlib.Path | None]
) -> None:
    """Refuses outputs, given by option, that cannot be written, are inputs, or occur twice.

    A stream has one reader and one writer, since its lines would be lost or mixed otherwise.
    """
    streams: set[object] = set()
    uses: dict[object, str] = {}  # by the identity of the file

    for path in inputs:
        if path is None:
            continue
        identity = _identity(path)
        if identity is None:
            continue
        if is_stream(path):
            if identity in streams:
                raise UserError(f"{path} can be read only once: name a file for one of its uses")
            streams.add(identity)
        if not _has_two_ways(path):
            uses[identity] = "an input"

    for option, path in outputs.items():
        if path is None:
            continue
        identity = _identity(path)
        if use := uses.get(identity):
            raise UserError(f"{option} {path} is {use}; name another file")
        if identity is not None:
            uses[identity] = f"also {option}"
        _check_output(option, path)


def _check_output(option: str, path: pathlib.Path) -> None:
    if is_stream(path):
        if is_standard_output(path):
            return  # If it is closed, the writer reports that.
        if not os.access(path, os.W_OK):
            raise UserError(f"{option} {path}: expected an open file to write to; name another")
        return

    check_output(path)
    if path.suffix in COMPRESSED:
        raise UserError(
            f"{path}: expected a name without {path.suffix}, since the output is plain text"
        )


def _status(path: pathlib.Path) -> os.stat_result | None:
    """Returns the status of a file or an open file, or None if there is none."""
    descriptor = descriptor_of(path)
    try:
        if descriptor is None:
            return path.stat()
        return os.fstat(descriptor)
    except OSError:
        return None


def _identity(path: pathlib.Path) -> object:
    """Returns an object that is equal for names of one file; None for /dev/null."""
    status = _status(path)
    if status is None:
        return path.resolve()

    has_null = os.path.exists(os.devnull)
    if has_null and os.path.samestat(status, os.stat(os.devnull)):
        return None
    return status.st_dev, status.st_ino


def _has_two_ways(path: pathlib.Path) -> bool:
    """Returns True for a terminal or socket, whose input is not its output."""
    status = _status(path)
    if status is None:
        return False
    return stat.S_ISCHR(status.st_mode) or stat.S_ISSOCK(status.st_mode)
