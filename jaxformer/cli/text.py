"""Lines of text: from a file or a stream, a block at a time, and to a file or standard output."""

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

from jaxformer.data.text_files import read_file, read_lines
from jaxformer.errors import UserError

T = TypeVar("T")
Writer: TypeAlias = Callable[[Iterable[str]], None]

# Lines that are translated together: enough for full batches of every length.
BLOCK = 4096
# How long a block waits for another line of a stream, in seconds: less than a person notices, and
# more than a program needs to write the next.
_PATIENCE = 0.05


class Text:
    """Lines of a file or of standard input.

    Attributes:
      name: What to call it in messages.
      stream: Whether it can be read only once, as it arrives: a pipe or a terminal.
      interactive: Whether a person types it.
    """

    def __init__(self, path: pathlib.Path | None) -> None:
        """Takes a file, or standard input if None; nothing is read yet.

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
        """All lines; from the start again at each call, unless this is a stream.

        Raises:
          UserError: The text cannot be read, or is not UTF-8.
        """
        if self._path is not None:
            return read_file(self._path)
        if not self.stream:
            sys.stdin.buffer.seek(self._start)
            return read_lines(sys.stdin.buffer, self.name)
        # A handle of its own: at exit Python would wait for the one that a thread is reading.
        return read_lines(_reopened(sys.stdin.buffer), self.name)


def is_stream(path: pathlib.Path | None) -> bool:
    """Whether a file can be read only once: a pipe, as of a shell's ``<(command)``."""
    return path is not None and path.exists() and not path.is_file()


def is_on_screen(output: pathlib.Path | None) -> bool:
    """Whether output, standard output if None, goes to a terminal: a bar would be in its way."""
    return output is None and sys.stdout is not None and sys.stdout.isatty()


def _reopened(stream: BinaryIO) -> BinaryIO:
    return open(stream.fileno(), "rb", closefd=False)


class Line(NamedTuple):
    """A line to translate, and how its translation has to begin."""

    text: str
    prefix: str


def lines_with_prefixes(
    text: Text, prefix: str | None, prefixes: pathlib.Path | None
) -> Iterator[Line]:
    """Every line with the one prefix, or with its own from a file.

    Raises:
      UserError: A file cannot be read, is not UTF-8, or has another number of lines.
    """
    if prefixes is None:
        return (Line(line, prefix or "") for line in text.lines())
    pairs = paired(text.lines(), read_file(prefixes), text.name, str(prefixes))
    return (Line(line, start) for line, start in pairs)


def paired(
    first: Iterator[str], second: Iterator[str], first_name: str, second_name: str
) -> Iterator[tuple[str, str]]:
    """Line n of one text with line n of the other.

    Raises:
      UserError: One has more lines than the other.
    """
    for number, (one, other) in enumerate(itertools.zip_longest(first, second)):
        if one is None or other is None:
            # What is left of the longer one, with the line that has just been taken from it.
            rest = number + 1 + sum(1 for _ in itertools.chain(first, second))
            counts = (number, rest) if one is None else (rest, number)
            raise UserError(
                f"expected as many lines in {first_name} as in {second_name}: got "
                f"{counts[0]} and {counts[1]}"
            )
        yield one, other


def blocks(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """All items in lists of ``size``, the last one shorter."""
    while block := list(itertools.islice(items, size)):
        yield block


def blocks_as_they_arrive(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """What there is so far, at most ``size`` items; waits for the first of each block only.

    Items are taken in a thread, at most ``size`` ahead, while the caller deals with a block. An
    exception while taking one is raised after the block of those before it.
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
    """A file that gets its name when it is whole; standard output if None.

    Until then it is named after the process, ``NAME.123.partial``; if something goes wrong, or the
    user interrupts, what has been written stays there, and a message says so.

    Yields:
      What to call with lines without ends: they are written at once, in UTF-8.

    Raises:
      UserError: Something other than a file has this name: a folder, a link, a device; or standard
        output is closed.
    """
    if path is None:
        if sys.stdout is None:
            raise UserError("standard output is closed: expected --output FILE")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # like the input, whatever the locale says
        yield _writer(sys.stdout)
        return
    if not path.name or path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"expected the name of a file to write, not of a folder or link: {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    try:
        # "x" follows no symbolic link that somebody may have put there.
        with partial.open("x", encoding="utf-8", newline="\n") as file:
            yield _writer(file)
        partial.replace(path)
    except BaseException:
        if partial.is_file() and not partial.stat().st_size:
            partial.unlink()
        elif partial.is_file():
            print(f"{partial}: what was finished so far", file=sys.stderr)
        raise


def _writer(file) -> Writer:
    def write(lines: Iterable[str]) -> None:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()

    return write


def check_outputs(
    inputs: list[pathlib.Path | None], outputs: dict[str, pathlib.Path | None]
) -> None:
    """Refuses to write over what is read, or twice to one file.

    Args:
      inputs: Files that are read.
      outputs: Files to write, by their options.

    Raises:
      UserError: Names the option and the file.
    """
    reads = {path.resolve() for path in inputs if path is not None}
    writes = [(option, path) for option, path in outputs.items() if path is not None]
    for n, (option, path) in enumerate(writes):
        if path.resolve() in reads:
            raise UserError(f"{option} {path} is an input; name another file")
        for other, taken in writes[:n]:
            if path.resolve() == taken.resolve():
                raise UserError(f"{option} {path} is that of {other}; name another file")
