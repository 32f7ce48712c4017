"""Reads lines from files or streams in blocks, and writes to files or standard output."""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import pathlib
import queue
import re
import sys
import threading
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxformer.cli.options import InputFile
from jaxformer.cli.outputs import Writer, is_standard_output, open_output
from jaxformer.data.findings import list_first
from jaxformer.data.text_files import check_format, decode_line, open_bytes, zip_lines
from jaxformer.errors import SomeLinesError, UserError
from jaxformer.files import STDIN, STDOUT, is_stream

if TYPE_CHECKING:
    from tqdm import tqdm

    from jaxformer.data.tokenizer import Vocabulary

# Number of lines that are translated together, enough for full batches of every length.
LINES_PER_BLOCK = 4096
# Seconds that a block waits for another line of a stream: long for a program, short for a person.
_BLOCK_TIMEOUT = 0.05
_SECONDS_TO_COMPILE = 2.0  # a shorter compilation is not worth a message
_MAX_LINE_BYTES = 1 << 18  # longer lines are bad, which bounds the memory of a block
_MAX_NOTES = 10  # number of notes about each block of lines
_TOO_LONG = f"expected a line of less than {_MAX_LINE_BYTES} bytes; split it into sentences"


class Line(NamedTuple):
    """A line of text, with the corresponding lines of other files."""

    number: int  # from 1
    text: str  # without the line end; empty if the line is bad
    other: str = ""  # by command: forced prefix, translation to score, or parts of speech
    gold: str = ""  # reference or gold tree
    error: str | None = None  # the reason why the line is bad, with its number
    encoded: Any = None  # the command's result for the line, such as token ids; None if it is bad


class Text(NamedTuple):
    """Lines of a file, of standard input, or of two files side by side."""

    name: str  # in error messages
    lines: Callable[[], Iterator[Line]]  # from the first line; for a stream, the remaining lines
    stream: bool = False  # a pipe or a terminal, which can be read only once, as it arrives
    prompt: str = ""  # shown before lines are typed in a terminal

    def zip_with(self, second: "Text", field: str = "other") -> "Text":
        """Returns this text with the lines of a second text, of equal length, in ``field``."""

        def lines() -> Iterator[Line]:
            pairs = zip_lines(
                self.lines(),
                second.lines(),
                first_name=self.name,
                second_name=second.name,
            )
            for line, second_line in pairs:
                error = line.error or second_line.error
                yield line._replace(**{field: second_line.text}, error=error)

        return self._replace(lines=lines, stream=self.stream or second.stream)


class OpenBlocks(NamedTuple):
    """Blocks of lines to work on, and the output for their results."""

    blocks: Iterator[list[Line]]
    write: Writer
    report: Callable[[int], object]  # to call with the number of newly finished lines


def read_text(path: pathlib.Path | None, typed: str = "a sentence") -> Text:
    """Returns the text of a file or, if None, of standard input; a terminal asks for ``typed``."""
    if path is None or path == STDIN:
        return _standard_input(typed)

    def lines() -> Iterator[Line]:
        with open_bytes(path) as file:
            yield from lines_with_errors(file.readline, str(path))

    return Text(str(path), lines, is_stream(path))


def _standard_input(typed: str) -> Text:
    if sys.stdin is None:
        raise UserError("expected text on standard input, but it is closed")

    name = "standard input"
    interactive = sys.stdin.isatty()
    stream = interactive or not sys.stdin.seekable()
    # A redirected file may have been read in part before this command began.
    start = 0 if stream else sys.stdin.buffer.tell()

    def lines() -> Iterator[Line]:
        if stream:
            # At exit Python would wait for a thread that reads sys.stdin itself.
            raw = io.FileIO(sys.stdin.fileno(), closefd=False)
            file = io.BufferedReader(raw)
            # Peeking at a terminal would require that Ctrl-D be typed twice.
            if not interactive:
                check_format(file.peek(1), name)
        else:
            file = sys.stdin.buffer
            file.seek(start)
            check_format(file.read(io.DEFAULT_BUFFER_SIZE), name)
            file.seek(start)

        yield from lines_with_errors(file.readline, name)

    prompt = f"Type {typed} and press Enter; Ctrl-D ends." if interactive else ""
    return Text(name, lines, stream=stream, prompt=prompt)


def lines_with_errors(readline: Callable[[int], bytes], name: str) -> Iterator[Line]:
    r"""Yields lines, ended by ``\n`` or ``\r\n``; a bad one has an error instead of text."""
    for number in itertools.count(1):
        line = readline(_MAX_LINE_BYTES)
        if not line:
            return

        # The rest of a line that is too long is read and dropped.
        is_too_long = not _reaches_end(line)
        if is_too_long:
            while not _reaches_end(readline(_MAX_LINE_BYTES)):
                pass

        place = f"{name}:{number}"
        try:
            if is_too_long:
                raise UserError(f"{place}: {_TOO_LONG}")
            if number == 1:
                line = line.removeprefix(BOM_UTF8)
            yield Line(number, decode_line(line, place))
        except UserError as error:
            yield Line(number, "", error=str(error))


def _reaches_end(chunk: bytes) -> bool:
    """Returns whether a chunk of at most ``_MAX_LINE_BYTES`` has the end of its line or file."""
    return len(chunk) < _MAX_LINE_BYTES or chunk.endswith(b"\n")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixOptions:
    """Options for the beginning of every translation.

    Forced prefix:
      prefix: every translation begins with this text
      prefixes: each translation begins with its line of this file
    """

    prefix: str | None = None
    prefixes: InputFile | None = None

    def __post_init__(self) -> None:
        if self.prefix is not None and self.prefixes is not None:
            raise UserError("--prefix and --prefixes exclude each other; leave one of them out")

    def check_none(self, option: str, reason: str) -> None:
        """Refuses prefixes beside an option, for a reason."""
        if self.prefix is not None or self.prefixes is not None:
            flag = "--prefix" if self.prefix is not None else "--prefixes"
            raise UserError(f"{flag} excludes {option}, which {reason}; leave one of them out")

    def text(self, path: pathlib.Path | None) -> Text:
        """Returns the text of a file or of standard input, with the prefix of each line."""
        text = read_text(path)
        if self.prefixes is None:
            return text
        return text.zip_with(read_text(self.prefixes))

    def prefixes_of(self, lines: Iterable[Line]) -> list[str] | None:
        """Returns the prefix of each line, "" for a line without one; None if no line has one.

        A search without prefixes is another compiled program.
        """
        prefixes = [self.prefix or line.other for line in lines]
        return prefixes if any(prefixes) else None


def report_unknown(
    tokenizer: "Vocabulary",
    lines: Iterable[Line],
    name: str,
    ids: Iterable[Sequence[int] | None] = itertools.repeat(None),
) -> None:
    """Reports lines with characters outside the vocabulary.

    ``ids`` are the token ids of each line; by default, they are not known, and lines are encoded.
    """
    from tqdm import tqdm

    unknown = []
    for line, tokens in zip(lines, ids, strict=False):
        characters = tokenizer.unknown_characters(line.text, tokens)
        if characters:
            unknown.append((line.number, characters))

    for number, characters in unknown[:_MAX_NOTES]:
        first = [f"{character!r} (U+{ord(character):04X})" for character in characters[:3]]
        shown = list_first(first, len(characters))
        verb = "is" if len(characters) == 1 else "are"
        note = f"{shown} {verb} not in the vocabulary and may disturb the translation"
        tqdm.write(f"note: {name}:{number}: {note}", file=sys.stderr)

    more = len(unknown) - _MAX_NOTES
    if more > 0:
        tqdm.write(f"note: {name}: {more:,} more lines with such characters", file=sys.stderr)


@contextlib.contextmanager
def blocks_of(
    text: Text,
    encode: Callable[[Line], object],
    output: pathlib.Path | None,
    *,
    strict: bool,
) -> Iterator[OpenBlocks]:
    """Reads lines in blocks, with the result of ``encode`` for each line.

    A line is bad if it cannot be read, or if ``encode`` raises a UserError for it. It is reported
    on standard error, and is blank in its block; if ``strict``, its error is raised instead. A file
    is read twice: first to count its lines and, if ``strict``, to encode them all, so that no block
    precedes a bad line.

    Args:
      text: Lines of a file or a stream.
      encode: Called with each line that could be read.
      output: File for the results; by default standard output.
      strict: Raise the error of the first bad line.

    Raises:
      SomeLinesError: Some lines were bad, after all blocks.
    """
    to_stdout = is_standard_output(output or STDOUT)
    if to_stdout and sys.stdout is None:
        raise UserError("expected standard output to write to, but it is closed")

    if text.prompt:
        print(text.prompt, file=sys.stderr)

    total = None  # number of lines, which a stream does not know
    if not text.stream:
        lines = checked_lines(text, encode, strict=True) if strict else text.lines()
        total = sum(1 for _ in lines)

    # A bar would be mixed with what a person types or reads.
    hidden = bool(text.prompt) or (to_stdout and sys.stdout.isatty())
    counts = _Counts()
    blocks = _counted_blocks(text, encode, strict=strict, counts=counts)
    with open_output(output or STDOUT) as write, progress_bar(total, hidden=hidden) as bar:
        yield OpenBlocks(blocks, write, report=bar.update)

    if counts.bad:
        raise SomeLinesError(f"{counts.bad} of {counts.read} lines failed; see above")


@dataclasses.dataclass
class _Counts:
    """Numbers of lines so far."""

    read: int = 0
    bad: int = 0


def _counted_blocks(
    text: Text,
    encode: Callable[[Line], object],
    *,
    strict: bool,
    counts: _Counts,
) -> Iterator[list[Line]]:
    """Yields blocks of lines; counts the lines, and reports the bad ones on standard error."""
    from tqdm import tqdm

    lines = checked_lines(text, encode, strict=strict)
    make_blocks = blocks_as_they_arrive if text.stream else _full_blocks

    for block in make_blocks(lines, LINES_PER_BLOCK):
        for line in block:
            if line.error is not None:
                tqdm.write(f"error: {line.error}", file=sys.stderr)  # Above a progress bar.
                counts.bad += 1
        counts.read += len(block)
        yield block


def checked_lines(text: Text, encode: Callable[[Line], object], *, strict: bool) -> Iterator[Line]:
    """Yields all lines; a bad line is blank, or, if ``strict``, its error is raised.

    A line is bad if it could not be read, or if ``encode`` raises a UserError for it.
    """
    for line in text.lines():
        try:
            if line.error is not None:
                raise UserError(line.error)
            line = line._replace(encoded=encode(line))
        except UserError as error:
            if strict:
                raise
            line = line._replace(text="", other="", error=str(error))
        yield line


@functools.cache  # Only the first call registers the listener.
def announce_compilations() -> None:
    """Prints a line to a terminal whenever a compilation takes longer than two seconds."""
    from jax import monitoring
    from tqdm import tqdm

    timers: list[threading.Timer] = []

    def report() -> None:
        tqdm.write("compiling; the program is kept for later calls", file=sys.stderr)

    def listen(event: str, *_: float, **__: object) -> None:
        if event.endswith("/jaxpr_to_mlir_module_duration"):  # XLA begins to compile.
            timer = threading.Timer(_SECONDS_TO_COMPILE, report)
            timer.daemon = True
            timers.append(timer)
            timer.start()
        elif event.endswith("/backend_compile_duration"):
            while timers:
                timers.pop().cancel()

    # A progress bar, too, is shown only in a terminal.
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if is_terminal:
        monitoring.register_event_duration_secs_listener(listen)


def progress_bar(total: int | None, *, hidden: bool = False) -> "tqdm":
    """Returns a progress bar of finished sentences, as a context manager."""
    from jaxformer.progress import ProgressBar

    announce_compilations()

    # smoothing=0 shows the mean rate, since batches of long sentences come first and are slower.
    return ProgressBar(total=total, unit="sentence", smoothing=0, disable=hidden or None)


def _full_blocks(lines: Iterator[Line], size: int) -> Iterator[list[Line]]:
    """Yields blocks of ``size`` lines; the last may have fewer."""
    while block := list(itertools.islice(lines, size)):
        yield block


def blocks_as_they_arrive(lines: Iterator[Line], size: int) -> Iterator[list[Line]]:
    """Yields blocks of the lines that have arrived, at least one and at most ``size``.

    A thread reads the lines. A block waits for its first line, and then shortly for each further
    one.
    """
    # Lines, and then None or the error of the reader.
    arrived: queue.Queue[Line | Exception | None] = queue.Queue(maxsize=size)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()

    while True:
        items = [arrived.get()]
        with contextlib.suppress(queue.Empty):
            while isinstance(items[-1], Line) and len(items) < size:
                items.append(arrived.get(timeout=_BLOCK_TIMEOUT))

        block = [item for item in items if isinstance(item, Line)]
        if block:
            yield block

        last = items[-1]
        if isinstance(last, Exception):
            raise last
        if last is None:
            return


def json_line(values: Any) -> str:
    """Returns values as one line of JSON, which no program can mistake for several."""
    line = json.dumps(values, ensure_ascii=False)
    # JSON escapes control characters up to U+001F itself.
    return re.sub(r"[\x7f-\x9f\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", line)
