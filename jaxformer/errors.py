"""What goes wrong: the one error type for what a user can mend, and how commands report errors."""

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any


class UserError(ValueError):
    """A mistake in the input, said in one line: what was expected, what came, what to do.

    Commands print the message without a traceback and exit with code 2.
    """


def exit_code(command: Callable[[], None]) -> int:
    """Runs a command; what goes wrong is one line on standard error.

    Messages and progress bars are not worth a training run: a command carries on without them when
    whoever read its standard error is gone.

    Returns:
      Its exit code: 0, 2 for a mistake in the input, 1 if a file cannot be written or training
      does not converge, 130 if it was interrupted.
    """
    _outlive_reader_of_stderr()
    try:
        command()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (FloatingPointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print(str(stop) or "interrupted", file=sys.stderr)
        return 130
    return 0


def _outlive_reader_of_stderr() -> None:
    """Replaces the process's own standard error with one that drops what cannot be written."""
    if sys.stderr is not sys.__stderr__:
        return  # captured by a notebook or a test, or replaced already
    if sys.stderr is None:  # closed before the program began
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        return
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_DroppingFile(sys.stderr.fileno(), "w", closefd=False)),
        encoding=sys.stderr.encoding,
        errors=sys.stderr.errors,
        line_buffering=True,
    )


class _DroppingFile(io.FileIO):
    """A file to which writing never fails, even if its reader or its terminal is gone."""

    def write(self, data: Any) -> int | None:
        """Writes what it can."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                # Also for those who write to the descriptor themselves: XLA, older handlers of
                # logging, and the interpreter, which flushes every stream at its end.
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.fileno())
                os.close(null)
            return memoryview(data).nbytes
