"""The error type for mistakes that users can fix, and how commands report errors."""

import contextlib
import difflib
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jaxformer.extras import install_command

# Exit code of a stopped run that the same command resumes; EX_TEMPFAIL of BSD's sysexits.h.
RESUMABLE = 75
# Error handler that shows the bytes of file names that are not UTF-8.
NOT_UTF8 = "backslashreplace"
# Extras with packages of optional features, by module. Any other missing module is a bug.
_OPTIONAL = {"matplotlib": "plots", "tensorflow_datasets": "tfds"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class UserError(ValueError):
    """A mistake in the input, in one line: what was expected, what was given, what to do.

    Commands print the message without a traceback and exit with code 2. Control characters, which
    could come from a file and would confuse a terminal, are escaped.
    """

    def __init__(self, message: object = "") -> None:
        escaped = _CONTROL.sub(lambda found: repr(found[0])[1:-1], str(message))
        super().__init__(escaped)


# Errors from the use of a JSON file that holds other values than expected.
MALFORMED = (LookupError, TypeError, ValueError, RecursionError)


@contextlib.contextmanager
def prefix_errors(place: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raises errors of these kinds, UserErrors by default, as UserErrors that begin with a place.

    A place is a file or a field, or more of the message, such as what was expected there.
    """
    kinds = kinds or (UserError,)

    try:
        yield
    except kinds as error:
        raise UserError(f"{place}: {error}") from None


@contextlib.contextmanager
def needs_package(package: str, why: str, *, extra: str = "") -> Iterator[None]:
    """Explains how to install an optional package, or its extra, if the import fails."""
    try:
        yield
    except ImportError:
        command = install_command(package, extra)
        raise UserError(f"expected the package {package}, {why}; install it: {command}") from None


def typed_command(name: str) -> str:
    """Returns a command as the user would type it: ``jaxformer train``, ``python train.py``."""
    program = sys.argv[0].replace(os.sep, "/")

    if program.endswith("train.py") and name == "train":
        return "python train.py"
    if program.endswith("/jaxformer/__main__.py"):
        return f"python -m jaxformer {name}"
    return f"jaxformer {name}"


def did_you_mean(
    name: str,
    known: Iterable[str],
    otherwise: str,
    meaning: Callable[[str], str] = str,
) -> str:
    """Returns advice for an unknown name: a known name that resembles it, or ``otherwise``.

    The advice shows the ``meaning`` of the known name, by default the name itself.
    """
    close = difflib.get_close_matches(name, known, n=1)
    if not close:
        return otherwise
    return f"did you mean {meaning(close[0])}?"


class StoppedError(KeyboardInterrupt):
    """A signal has stopped training; the same command resumes it."""


class SomeLinesError(Exception):
    """Some lines of the input failed, and all others are done; exit code 3."""


def exit_code(command: Callable[[], None]) -> int:
    """Runs a command, reports errors as one line on standard error, and returns the exit code.

    The exit codes of all commands are in docs/runs.md. If the reader of standard error has
    exited, the command keeps running, without messages and progress bars. Its standard output is
    UTF-8, whatever the locale, as are all files it writes.
    """
    _tolerate_closed_stderr()

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors=NOT_UTF8)

    try:
        command()
    except (UserError, AssertionError, RuntimeError) as error:
        # A missing device may only show as the error of a computation, which another error, such as
        # a UserError, may have replaced.
        reason = None
        jax_errors = (AssertionError, RuntimeError)
        may_be_of_jax = any(isinstance(each, jax_errors) for each in _contexts(error))
        if may_be_of_jax:
            reason = missing_device(error)

        if reason is None and not isinstance(error, UserError):
            raise
        code = 2
        message = f"error: {reason or error}"
    except SomeLinesError as error:
        code = 3
        message = f"error: {error}"
    except ModuleNotFoundError as error:
        module = str(error.name).partition(".")[0]
        extra = _OPTIONAL.get(module)
        if extra is None:
            raise

        install = install_command(module, extra)
        code = 2
        message = f"error: expected the package {module}; install it: {install}"
    except (FloatingPointError, OSError) as error:
        code = 1
        message = f"error: {error}"
    except StoppedError as stop:
        code = RESUMABLE
        message = str(stop)
    except KeyboardInterrupt as stop:
        code = 130
        message = str(stop) or "interrupted"
    else:
        return 0

    print(message, file=sys.stderr)
    return code


def _contexts(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, its context, the context of its context, and so on."""
    while error is not None:
        yield error
        error = error.__context__


def missing_device(error: object = "") -> str | None:
    """Returns a message for users if JAX has no device.

    Asks JAX for its devices, but does not import it for this. Even if JAX has some, ``error`` may
    be the error of a backend that JAX could not initialize.

    Returns:
      The message; None if JAX is not imported, or if it has devices and ``error`` is no such error.
    """
    jax = sys.modules.get("jax")
    if jax is None:
        return None

    cause = str(error)
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as reason:  # Which one depends on JAX's version.
        cause = str(reason)
    else:
        if not cause.startswith("Unable to initialize backend"):
            return None

    platforms = jax.config.jax_platforms or ""
    cause = cause.partition(" (set JAX_PLATFORMS")[0].rstrip(".") or "there is none"
    message = (
        f"expected a device of JAX_PLATFORMS={platforms}: {cause}; unset "
        "it to use a device that is there, or install JAX for the accelerator"
    )
    return str(UserError(message))  # without control characters


def _tolerate_closed_stderr() -> None:
    """Replaces the process's standard error with one that drops output it cannot write."""
    if sys.stderr is not sys.__stderr__:
        return  # Captured by a notebook or a test, or already replaced.
    if sys.stderr is None:  # Closed before the program began.
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        return

    file = _DroppingFile(sys.stderr.fileno(), "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=sys.stderr.encoding,
        errors=sys.stderr.errors,
        line_buffering=True,
    )


class _DroppingFile(io.FileIO):
    """A file to which writing never fails, even if its reader has exited."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            reader_has_exited = error.errno in (errno.EPIPE, errno.EIO)  # of a pipe, of a terminal
            if reader_has_exited:
                # Redirect the descriptor, because others write to it directly: XLA, older logging
                # handlers, and the interpreter, which flushes every stream when it exits.
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.fileno())
                os.close(null)
            return memoryview(data).nbytes
