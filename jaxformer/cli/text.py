"""Reading of lines from files or streams in blocks, and writing to files or standard output."""

import contextlib
import io
import itertools
import os
import pathlib
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple, TypeAlias, TypeVar

from jaxformer.data.text_files import bounded_lines, read_file, read_lines
from jaxformer.errors import UserError

T = TypeVar("T")
Writer: TypeAlias = Callable[[Iterable[str]], None]

# Number of lines that are translated together, enough for full batches of every length.
BLOCK = 4096
# Seconds that a block waits for another line of a stream: less than a person notices, and more
# than a program needs to write the next line.
_PATIENCE = 0.05


class Text:
    """Lines of a file or of standard input.

    Attributes:
      name: Name in error messages.
      stream: True for a pipe or a terminal, which can be read only once, as it arrives.
      interactive: True for a terminal.
    """

    def __init__(self, path: pathlib.Path | None) -> None:
        """Initializes from a file, or from standard input if None, without reading it.

        Raises:
          UserError: Standard input is closed.
        """
        self.name = "standard input" if path is None else str(path)
        self._path = path
        self.interactive = False
        if path is not None:
            self.stream = is_stream(path)
            return
        if sys.stdin is None:
            raise UserError("expected text on standard input, but it is closed")
        self.interactive = sys.stdin.isatty()
        self.stream = self.interactive or not sys.stdin.seekable()
        self._start = 0 if self.stream else sys.stdin.buffer.tell()

    def lines(self) -> Iterator[str]:
        """Returns an iterator over all lines; unless this is a stream, each call starts anew.

        Raises:
          UserError: The text cannot be read, or is not UTF-8.
        """
        if self._path is not None:
            return read_file(self._path)
        if not self.stream:
            sys.stdin.buffer.seek(self._start)
            return read_lines(bounded_lines(sys.stdin.buffer.readline, self.name), self.name)
        # At exit Python would wait for a thread that reads sys.stdin itself.
        stream = _reopened(sys.stdin.buffer)
        return read_lines(bounded_lines(stream.readline, self.name), self.name)


def is_stream(path: pathlib.Path | None) -> bool:
    """Returns True for a pipe, such as a shell's ``<(command)``, which can be read only once."""
    return path is not None and path.exists() and not path.is_file()


def is_on_screen(output: pathlib.Path | None) -> bool:
    """Returns True if output, by default standard output, goes to a terminal."""
    return output is None and sys.stdout is not None and sys.stdout.isatty()


def _reopened(stream: BinaryIO) -> BinaryIO:
    return open(stream.fileno(), "rb", closefd=False)


class Line(NamedTuple):
    """A line to translate, and the forced prefix of its translation."""

    text: str
    prefix: str


def lines_with_prefixes(
    text: Text, prefix: str | None, prefixes: pathlib.Path | None
) -> Iterator[Line]:
    """Returns every line with the one prefix, or with its line of the file ``prefixes``.

    Raises:
      UserError: A file cannot be read, is not UTF-8, or the numbers of lines differ.
    """
    if prefixes is None:
        return (Line(line, prefix or "") for line in text.lines())
    pairs = paired(text.lines(), read_file(prefixes), text.name, str(prefixes))
    return (Line(line, start) for line, start in pairs)


def paired(
    first: Iterator[str], second: Iterator[str], first_name: str, second_name: str
) -> Iterator[tuple[str, str]]:
    """Zips the lines of two texts.

    Raises:
      UserError: One text has more lines than the other.
    """
    for number, (one, other) in enumerate(itertools.zip_longest(first, second)):
        if one is None or other is None:
            # Counts the line that was just taken from the longer text, and the remaining ones.
            rest = number + 1 + sum(1 for _ in itertools.chain(first, second))
            counts = (number, rest) if one is None else (rest, number)
            raise UserError(
                f"expected as many lines in {first_name} as in {second_name}: got "
                f"{counts[0]} and {counts[1]}"
            )
        yield one, other


def blocks(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """Yields all items in lists of ``size``; the last list may be shorter."""
    while block := list(itertools.islice(items, size)):
        yield block


def blocks_as_they_arrive(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """Yields the items available so far, at most ``size``, waiting only for each block's first.

    A thread reads at most ``size`` items ahead while the caller processes a block. An exception of
    ``items`` is raised after the items before it have been yielded.
    """
    arrived: queue.Queue = queue.Queue(maxsize=size)
    end = object()

    def take() -> None:
        try:
            for item in items:
                arrived.put(item)
            arrived.put(end)
        except Exception as error:
            arrived.put(error)

    threading.Thread(target=take, daemon=True).start()
    last = None
    while last is None:
        block = []
        with contextlib.suppress(queue.Empty):
            while last is None and len(block) < size:
                item = arrived.get(timeout=_PATIENCE if block else None)
                if item is end or isinstance(item, Exception):
                    last = item
                else:
                    block.append(item)
        if block:
            yield block
    if isinstance(last, Exception):
        raise last


@contextlib.contextmanager
def writing(path: pathlib.Path | None) -> Iterator[Writer]:
    """Opens a file that gets its name once it is complete; None: standard output.

    Until then its name includes the process id, ``NAME.123.partial``. After an error or an
    interrupt, the finished lines stay in this file, and a message names it.

    Yields:
      A function that writes lines, given without line breaks, at once and in UTF-8.

    Raises:
      UserError: The path is a folder, a link or a device, or standard output is closed.
    """
    if path is None:
        if sys.stdout is None:
            raise UserError("standard output is closed: expected --output FILE")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # The input is UTF-8 whatever the locale.
        yield _writer(sys.stdout)
        return
    if not path.name or path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"expected the name of a file to write, not of a folder or link: {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    try:
        # Mode "x" does not follow a symbolic link that somebody may have put there.
        with partial.open("x", encoding="utf-8", newline="\n") as file:
            yield _writer(file)
        partial.replace(path)
    except BaseException:
        if partial.is_file() and not partial.stat().st_size:
            partial.unlink()
        elif partial.is_file():
            print(f"{partial}: finished lines", file=sys.stderr)
        raise


def _writer(file) -> Writer:
    def write(lines: Iterable[str]) -> None:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()

    return write


def check_outputs(
    inputs: list[pathlib.Path | None], outputs: dict[str, pathlib.Path | None]
) -> None:
    """Checks that no output is also an input or another output.

    Args:
      inputs: Files to read.
      outputs: Files to write, by their options.

    Raises:
      UserError: An output is an input or another output.
    """
    reads = {path.resolve() for path in inputs if path is not None}
    writes = [(option, path) for option, path in outputs.items() if path is not None]
    for n, (option, path) in enumerate(writes):
        if path.resolve() in reads:
            raise UserError(f"{option} {path} is an input; name another file")
        for other, taken in writes[:n]:
            if path.resolve() == taken.resolve():
                raise UserError(f"{option} {path} is also {other}; name another file")
