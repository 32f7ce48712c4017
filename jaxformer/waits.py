"""Lines about work that takes longer than a few seconds without any other output."""

import contextlib
import sys
import threading
from collections.abc import Iterator

SECONDS = 5.0  # work that is faster needs no line


@contextlib.contextmanager
def announce(work: str) -> Iterator[None]:
    """Prints a description of the block to standard error if it takes longer than a few seconds.

    >>> with announce("reading the data"):
    ...     pass  # too fast for a line
    """

    def write() -> None:
        # Imported late, since a model loads no library for progress bars.
        from tqdm import tqdm

        with contextlib.suppress(OSError, ValueError):  # Standard error may be closed.
            tqdm.write(f"{work} ...", file=sys.stderr)

    timer = threading.Timer(SECONDS, write)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
