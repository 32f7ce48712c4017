"""Reading of lines from files or streams in blocks, and writing to files or standard output."""

import contextlib
import io
import itertools
import os
import pathlib
import queue
import sys
import threading
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from tqdm import tqdm

from jaxformer.data.findings import listed
from jaxformer.data.text_files import COMPRESSED, check_format, decode_line, open_bytes, paired
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import NOT_UTF8, SomeLinesError, UserError
from jaxformer.files import check_output

T = TypeVar("T")
Writer: TypeAlias = Callable[[Iterable[str]], None]

# Number of lines that are translated together, enough for full batches of every length.
BLOCK = 4096
# Seconds that a block waits for another line of a stream: less than a person notices, and more
# than a program needs to write the next line.
_PATIENCE = 0.05
# Bytes of a line that are read at once; a longer line is bad. It bounds the memory of a block.
_LONGEST_LINE = 1 << 18
# Number of notes about each block of lines.
_MOST_NOTES = 10
_TOO_LONG = f"expected a line of less than {_LONGEST_LINE} bytes; split it into sentences"


class Line(NamedTuple):
    """A line of text.

    Attributes:
      text: The line without its end; empty if it cannot be done.
      prefix: The forced prefix of its translation.
      error: The reason why the line cannot be done, with its number; None if it can.
    """

    text: str
    prefix: str = ""
    error: str | None = None


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

    def lines(self) -> Iterator[Line]:
        """Yields all lines; unless this is a stream, each call starts anew.

        Raises:
          UserError: The text cannot be read, or is not UTF-8 but in another format.
        """
        with contextlib.ExitStack() as stack:
            if self._path is not None:
                stream: Any = stack.enter_context(open_bytes(self._path))
            elif self.stream:
                # At exit Python would wait for a thread that reads sys.stdin itself.
                stream = stack.enter_context(open(sys.stdin.fileno(), "rb", closefd=False))
                # After a look ahead, the end would have to be typed twice.
                check_format(b"" if self.interactive else stream.peek(1), self.name)
            else:
                stream = sys.stdin.buffer
                stream.seek(self._start)
                check_format(stream.read(io.DEFAULT_BUFFER_SIZE), self.name)
                stream.seek(self._start)
            yield from lines_with_errors(stream.readline, self.name)


def lines_with_errors(readline: Callable[[int], bytes], name: str) -> Iterator[Line]:
    r"""Yields every line of an open file; the text of a bad line is replaced by its error.

    Only ``\n`` and ``\r\n`` end a line. A byte order mark before the first line is skipped.

    Args:
      readline: The method of the file, which takes the number of bytes to read at most.
      name: Name of the file in error messages.
    """
    for number in itertools.count(1):
        line = rest = readline(_LONGEST_LINE)
        while len(rest) == _LONGEST_LINE and not rest.endswith(b"\n"):
            rest = readline(_LONGEST_LINE)
        if not line:
            return
        place = f"{name}:{number}"
        if rest is not line:
            yield Line("", error=f"{place}: {_TOO_LONG}")
            continue
        try:
            yield Line(decode_line(line.removeprefix(b"" if number > 1 else BOM_UTF8), place))
        except UserError as error:
            yield Line("", error=str(error))


def is_stream(path: pathlib.Path | None) -> bool:
    """Returns True for a pipe, such as a shell's ``<(command)``, which can be read only once."""
    return path is not None and path.exists() and not path.is_file()


def is_on_screen(output: pathlib.Path | None) -> bool:
    """Returns True if output, by default standard output, goes to a terminal."""
    return output is None and sys.stdout is not None and sys.stdout.isatty()


def lines_with_prefixes(
    text: Text, prefix: str | None, prefixes: pathlib.Path | None
) -> Iterator[Line]:
    """Returns every line with the one prefix, or with its line of the file ``prefixes``.

    Raises:
      UserError: A file cannot be read, or the numbers of lines differ.
    """
    if prefixes is None:
        return (line._replace(prefix=prefix or "") for line in text.lines())
    pairs = paired(text.lines(), Text(prefixes).lines(), text.name, str(prefixes))
    return (
        line._replace(prefix=start.text, error=line.error or start.error) for line, start in pairs
    )


@runtime_checkable
class Checked(Protocol):
    """A line of the input, read and checked.

    Attributes:
      error: The reason why the line cannot be done, with its number; None if it can.
    """

    @property
    def error(self) -> str | None: ...


C = TypeVar("C", bound=Checked)


def refuse_bad(lines: Iterator[C]) -> Iterator[C]:
    """Yields lines up to the first that cannot be done.

    Raises:
      UserError: A line cannot be done.
    """
    for line in lines:
        if line.error is not None:
            raise UserError(line.error)
        yield line


@contextlib.contextmanager
def bad_lines() -> Iterator[Callable[[Sequence[Checked]], None]]:
    """Reports lines that cannot be done, and continues with the others.

    Yields:
      A function that takes lines and reports their errors on standard error.

    Raises:
      SomeLinesError: All work is done, except for these lines.
    """
    total = bad = 0

    def report(lines: Sequence[Checked]) -> None:
        nonlocal total, bad
        total += len(lines)
        for line in lines:
            if line.error is not None:
                bad += 1
                tqdm.write(f"error: {line.error}", file=sys.stderr)  # Above a progress bar.

    yield report
    if bad:
        raise SomeLinesError(f"{bad} of {total} lines could not be done; see above")


def report_unknown(tokenizer: Tokenizer, texts: Iterable[str], name: str, first: int = 1) -> None:
    """Reports lines with characters outside the vocabulary, numbered from ``first``."""
    found = [(n, tokenizer.unknown_characters(text)) for n, text in enumerate(texts, first)]
    unknown = [(n, characters) for n, characters in found if characters]
    for n, characters in unknown[:_MOST_NOTES]:
        shown = listed([f"{c!r} (U+{ord(c):04X})" for c in characters[:3]], len(characters))
        what = f"{shown} {'is' if len(characters) == 1 else 'are'} not in the vocabulary"
        tqdm.write(f"note: {name}:{n}: {what} and may disturb the translation", file=sys.stderr)
    if (more := len(unknown) - _MOST_NOTES) > 0:
        tqdm.write(f"note: {name}: {more:,} more lines with such characters", file=sys.stderr)


def read_in_blocks(
    lines: Callable[[], Iterator[C]], *, stream: bool, strict: bool
) -> tuple[int | None, Iterator[list[C]]]:
    """Reads lines in blocks, a file twice: the first time, to count and check its lines.

    Args:
      lines: Returns an iterator over all lines.
      stream: True if the lines can be read only once, as they arrive.
      strict: Refuse a line that cannot be done, in a file before the first block.

    Returns:
      The number of lines, None for a stream, and the blocks.

    Raises:
      UserError: The lines cannot be read, or one is refused.
    """

    def accepted() -> Iterator[C]:
        return refuse_bad(lines()) if strict else lines()

    if stream:
        return None, blocks_as_they_arrive(accepted(), BLOCK)
    return sum(1 for _ in accepted()), blocks(accepted(), BLOCK)


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
      UserError: The path is not the name of a text file, or standard output is closed.
    """
    if path is None:
        if sys.stdout is None:
            raise UserError("standard output is closed: expected --output FILE")
        yield _writer(sys.stdout)
        return
    _check_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    try:
        # Mode "x" does not follow a symbolic link that somebody may have put there.
        with partial.open("x", encoding="utf-8", errors=NOT_UTF8, newline="\n") as file:
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
    """Checks that all outputs can be files, and none is also an input or another output.

    Args:
      inputs: Files to read.
      outputs: Files to write, by their options.

    Raises:
      UserError: An output is an input or another output, or not the name of a text file.
    """
    reads = {path.resolve() for path in inputs if path is not None}
    writes = [(option, path) for option, path in outputs.items() if path is not None]
    for n, (option, path) in enumerate(writes):
        if path.resolve() in reads:
            raise UserError(f"{option} {path} is an input; name another file")
        for other, taken in writes[:n]:
            if path.resolve() == taken.resolve():
                raise UserError(f"{option} {path} is also {other}; name another file")
        _check_name(path)


def _check_name(path: pathlib.Path) -> None:
    """Checks that a text file may have this name.

    Raises:
      UserError: The path is a folder, a link or a device, lies in a file, or ends as if compressed.
    """
    check_output(path)
    if path.suffix in COMPRESSED:
        raise UserError(
            f"{path}: expected a name without {path.suffix}, since the output is plain text"
        )
