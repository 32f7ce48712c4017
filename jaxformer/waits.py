"""Lines about work: where they go, and those about work that takes long without other output."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

SECONDS = 5.0  # work that is faster needs no line


@runtime_checkable
class TextStream(Protocol):
    """A stream to print to, such as standard output; notebooks have streams of their own."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


def log_stream() -> TextStream:
    """Returns the stream of lines about work: standard error, but standard output in notebooks.

    Notebooks show standard error in red, as if a run that trains had failed.
    """
    is_notebook = type(sys.stderr).__module__ == "ipykernel.iostream"
    return sys.stdout if is_notebook else sys.stderr


@contextlib.contextmanager
def announce(work: str) -> Iterator[None]:
    """Logs a description of the block if it takes longer than a few seconds.

    >>> with announce("reading the data"):
    ...     pass  # too fast for a line
    """

    def write() -> None:
        # Imported late, since a model loads no library for progress bars.
        from tqdm import tqdm

        with contextlib.suppress(OSError, ValueError):  # Standard error may be closed.
            tqdm.write(f"{work} ...", file=log_stream())

    timer = threading.Timer(SECONDS, write)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
