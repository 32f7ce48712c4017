"""Reading of lines from files or streams in blocks, and writing to files or standard output."""

import contextlib
import dataclasses
import io
import itertools
import os
import pathlib
import queue
import sys
import threading
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from jaxformer.cli.options import File
from jaxformer.data.findings import listed
from jaxformer.data.text_files import COMPRESSED, check_format, decode_line, open_bytes, paired
from jaxformer.errors import NOT_UTF8, SomeLinesError, UserError
from jaxformer.files import check_output

if TYPE_CHECKING:
    from jaxformer.data.tokenizer import Tokenizer

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixOptions:
    """Options for the beginning of every translation.

    Forced prefix:
      prefix: every translation begins with this text
      prefixes: each translation begins with its line of this file
    """

    prefix: str | None = None
    prefixes: File | None = None

    def __post_init__(self) -> None:
        if self.prefix is not None and self.prefixes is not None:
            raise UserError("--prefix and --prefixes exclude each other; leave one of them out")

    def lines(self, text: Text) -> Iterator[Line]:
        """Returns every line of the text with its prefix.

        Raises:
          UserError: A file cannot be read, or the numbers of lines differ.
        """
        if self.prefixes is None:
            return (line._replace(prefix=self.prefix or "") for line in text.lines())
        starts = Text(self.prefixes).lines()
        return (
            line._replace(prefix=start.text, error=line.error or start.error)
            for line, start in paired(text.lines(), starts, text.name, str(self.prefixes))
        )


@runtime_checkable
class Checked(Protocol):
    """A line of the input, with the reason why it cannot be done; None if it can."""

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


def report_unknown(tokenizer: "Tokenizer", texts: Iterable[str], name: str, first: int = 1) -> None:
    """Reports lines with characters outside the vocabulary, numbered from ``first``."""
    from tqdm import tqdm

    found = [(n, tokenizer.unknown_characters(text)) for n, text in enumerate(texts, first)]
    unknown = [(n, characters) for n, characters in found if characters]
    for n, characters in unknown[:_MOST_NOTES]:
        shown = listed([f"{c!r} (U+{ord(c):04X})" for c in characters[:3]], len(characters))
        what = f"{shown} {'is' if len(characters) == 1 else 'are'} not in the vocabulary"
        tqdm.write(f"note: {name}:{n}: {what} and may disturb the translation", file=sys.stderr)
    if (more := len(unknown) - _MOST_NOTES) > 0:
        tqdm.write(f"note: {name}: {more:,} more lines with such characters", file=sys.stderr)


@contextlib.contextmanager
def reading(
    lines: Callable[[], Iterator[C]], *, stream: bool, strict: bool, hidden: bool
) -> Iterator[tuple[Iterator[list[C]], Callable[[int], None]]]:
    """Reads lines in blocks, a file twice: the first time, to count and check its lines.

    Lines that cannot be done are reported on standard error, and the others follow.

    Args:
      lines: Returns an iterator over all lines.
      stream: True if the lines can be read only once, as they arrive.
      strict: Refuses a line that cannot be done, in a file before the first block.
      hidden: Hides the progress bar even if standard error is a terminal.

    Yields:
      The blocks, and a function to call with the number of newly finished lines.

    Raises:
      UserError: The lines cannot be read, or one is refused.
      SomeLinesError: All work is done, except for lines that cannot be done.
    """
    from tqdm import tqdm

    def accepted() -> Iterator[C]:
        return refuse_bad(lines()) if strict else lines()

    def reported() -> Iterator[list[C]]:
        nonlocal read, bad
        items = accepted()
        blocks = iter(lambda: list(itertools.islice(items, BLOCK)), [])
        for block in blocks_as_they_arrive(items, BLOCK) if stream else blocks:
            errors = [line.error for line in block if line.error is not None]
            for error in errors:
                tqdm.write(f"error: {error}", file=sys.stderr)  # Above a progress bar.
            read, bad = read + len(block), bad + len(errors)
            yield block

    read = bad = 0
    with progress(None if stream else sum(1 for _ in accepted()), hidden=hidden) as finished:
        yield reported(), finished
    if bad:
        raise SomeLinesError(f"{bad} of {read} lines could not be done; see above")


@contextlib.contextmanager
def progress(total: int | None, *, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """Shows the number of finished sentences, and yields a function that adds to it."""
    from tqdm import tqdm

    # smoothing=0 shows the mean rate, since batches of long sentences come first and are slower.
    with tqdm(total=total, unit="sentence", smoothing=0, disable=hidden or None) as bar:

        def report(finished: int) -> None:
            bar.update(finished)

        yield report


def blocks_as_they_arrive(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """Yields the items available so far, at most ``size``, waiting only for each block's first.

    A thread reads at most ``size`` items ahead while the caller processes a block. An exception of
    ``items`` is raised after the items before it have been yielded.
    """
    arrived: queue.Queue = queue.Queue(maxsize=size)

    def take() -> None:
        error = None
        try:
            for item in items:
                arrived.put((item, False, None))
        except Exception as reason:
            error = reason
        arrived.put((None, True, error))

    threading.Thread(target=take, daemon=True).start()
    ended, error = False, None
    while not ended:
        block = []
        with contextlib.suppress(queue.Empty):
            while len(block) < size:
                item, ended, error = arrived.get(timeout=_PATIENCE if block else None)
                if ended:
                    break
                block.append(item)
        if block:
            yield block
    if error is not None:
        raise error


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


def writing_if_named(
    path: pathlib.Path | None,
) -> contextlib.AbstractContextManager[Writer | None]:
    """Opens a file as :func:`writing` does; None: yields None."""
    return contextlib.nullcontext() if path is None else writing(path)


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
