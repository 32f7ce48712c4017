"""One text as a stream of tokens: a lossless vocabulary, training rows and validation windows.

Ids 0 to 3 have the same meaning as in :mod:`jaxformer.data.tokenizer`. A stream has no 0, which
pads rows, and EOS only at the ends of documents.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator, Sized
from typing import Literal

import numpy as np
from jaxtyping import Int, Integer

from jaxformer.data.bpe import train_byte_pair_model
from jaxformer.data.characters import unusual_kinds
from jaxformer.data.corpus import DataSection
from jaxformer.data.documents import encode_documents, lines_of, map_token_ids, text_sha256
from jaxformer.data.findings import Findings
from jaxformer.data.held_out import check_no_number, parse_share
from jaxformer.data.text_files import find_file, open_bytes
from jaxformer.data.tokenizer import (
    PAD,
    SENTENCEPIECE,
    SPACE_SYMBOL,
    Tokenizer,
    Vocabulary,
    form_of,
    open_tokenizer,
)
from jaxformer.errors import UserError, prefix_errors
from jaxformer.fields import check_values, setting
from jaxformer.files import file_sha256, local_path, read_whole

_MAX_LINE_BYTES = 4192  # SentencePiece skips longer lines
# Text that the tokenizers of translation models would change.
_PROBE = f"  a  b\n\n\tc {SPACE_SYMBOL}é "


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamConfig(DataSection):
    """One text as a stream of tokens, to train a language model on.

    Training rows begin anywhere in the training split.

    Attributes:
      corpus: "stream"; distinguishes this config from :class:`~jaxformer.data.corpus.DataConfig`.
      file: Text file, UTF-8, plain or compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``); or token
        ids of ``tokenizer`` without a header, ``.bin``, which are read from the disk as needed.
      valid: Validation file, in the same form, or a share of the end of ``file``, such as "5%". By
        default, the last tenth of ``file`` is for validation.
      separator: Line between two documents, such as ``<|endoftext|>``; it becomes the end-of-text
        token, as does the end of a file, and generated texts can end. By default, a file is one
        document without an end.
      token_dtype: Dtype of a ``.bin`` file, little-endian.
      tokens: "characters", or "bpe" for BPE tokens that preserve line breaks and spaces.
      tokenizer: Tokenizer of a new run, as in :class:`~jaxformer.data.corpus.DataConfig`; then
        ``tokens`` is ignored.
      length: Predicted tokens per row, each from the tokens before it in the row.
      rows: Rows of a global batch. Empty rows may be added so that they divide evenly among
        devices.
    """

    corpus: Literal["stream"] = "stream"
    file: str = setting("", may_change=True)
    valid: str = setting("", may_change=True)
    separator: str = ""
    token_dtype: Literal["uint16", "uint32"] = "uint16"
    tokens: Literal["characters", "bpe"] = "characters"
    length: int = setting(256, "positive")
    rows: int = setting(64, "positive")
    length_field = "length"

    def __post_init__(self) -> None:
        check_values(self, "data")
        self.check_paths("file", "valid", "tokenizer")

        if self.valid_file and self.valid_file.endswith(".bin") != self.has_token_ids:
            raise UserError(f"data.valid must be text or .bin, like data.file: got {self.valid}")

        if self.separator and (self.has_token_ids or "\n" in self.separator):
            raise UserError(
                f"data.separator must be one line of a text: got {self.separator!r} for {self.file}"
            )

    @property
    def valid_share(self) -> float | None:
        """The fraction of ``file`` that is for validation, if ``valid`` is a share."""
        return parse_share(self.valid)

    @property
    def valid_file(self) -> str:
        """The validation file; "" if a part of ``file`` is for validation."""
        if self.valid_share is not None:
            return ""
        return self.valid

    def check_named(self) -> None:
        if not self.file:
            raise UserError(
                "data.file: expected your own text, got none; give --config.data.file=my/text.txt, "
                "for example; docs/language_model.md describes its form"
            )
        if self.valid_file and not local_path(self.valid_file).exists():
            check_no_number(self.valid_file)

    @property
    def has_token_ids(self) -> bool:
        """True if the files have token ids."""
        return self.file.endswith(".bin")

    @property
    def batch(self) -> tuple[str, str]:
        return f"{self.rows:,} rows of {self.length:,} tokens", "data.rows or data.length"


class ByteFallbackTokenizer(Tokenizer):
    """Converts text to BPE tokens and back, without loss, by a SentencePiece model."""

    def __init__(self, model: bytes) -> None:
        """Takes a serialized SentencePiece model, from :func:`train_byte_pairs`."""
        super().__init__(model)
        if self.decode(self.encode(_PROBE)) != _PROBE:
            raise UserError(
                "expected a SentencePiece model that keeps all of a text; this one changes spaces "
                "or line breaks"
            )

        crosses_lines = any("\n" in piece[:-1] for piece in self._pieces)
        self.keeps_lines = not crosses_lines


def train_byte_pairs(text: str, vocab_size: int) -> ByteFallbackTokenizer:
    """Learns a byte-pair encoding. The same text gives the same tokenizer, bit for bit."""
    pieces_of_lines = map(short_lines, lines_of(text))
    lines = itertools.chain.from_iterable(pieces_of_lines)
    # A text without spaces gives no token for a space.
    symbols = ["\n"] if " " in text else ["\n", SPACE_SYMBOL]
    model = train_byte_pair_model(
        lines,
        vocab_size,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        user_defined_symbols=symbols,
    )
    return ByteFallbackTokenizer(model)


def short_lines(line: str) -> list[str]:
    """Cuts a line that SentencePiece would skip, before spaces if there are any."""
    if not line:
        return []
    if len(line.encode()) <= _MAX_LINE_BYTES:
        return [line]

    # A character has up to four bytes.
    size = _MAX_LINE_BYTES // 4
    return re.findall(rf".{{1,{size}}}(?= |$)|.{{1,{size}}}", line, flags=re.DOTALL)


def load_stream_tokenizer(path: pathlib.Path) -> Vocabulary:
    """Reads the tokenizer of a language model.

    Raises:
      UserError: There is no such file, or it is not such a tokenizer.
    """
    content = read_whole(path)
    if form_of(content) == SENTENCEPIECE:
        with prefix_errors(f"{path}: expected the tokenizer of a language model"):
            return ByteFallbackTokenizer(content)

    with prefix_errors(str(path)):
        return open_tokenizer(content, "stream")


def read_text(path: pathlib.Path) -> str:
    """Reads a whole text unchanged, except for a byte-order mark at its beginning."""
    path = find_file(path)
    with open_bytes(path) as stream:
        content = stream.read()

    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: not UTF-8, at byte {error.start}; convert it, for example with iconv "
            "-f WINDOWS-1252 -t UTF-8"
        ) from None

    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(f"{path}:{line}: expected text, got a NUL byte; remove it")

    if len(text) < 100:
        raise UserError(f"{path}: expected at least 100 characters of text, found {len(text)}")

    return text


def training_length(text: Sized, share: float | None = None) -> int:
    """Returns the length of the beginning of a text without the ``share`` for validation.

    By default, a tenth is for validation, and at least one token in any case.
    """
    if share is None:
        return len(text) * 9 // 10

    held_out = max(1, round(len(text) * share))
    return len(text) - held_out


@dataclasses.dataclass(frozen=True)
class TokenStream:
    """A text as token ids, split into training and validation."""

    tokenizer: Vocabulary
    train: Integer[np.ndarray, " N"]
    valid: Integer[np.ndarray, " M"]
    valid_characters: int  # in ``valid``; 0 if unknown
    text_sha256: str
    # Lines of the text with unusual characters.
    findings: Findings = dataclasses.field(default_factory=Findings)
    valid_sha256: str = ""  # of a validation file
    # The tokenizer's id for each id in ``train`` and ``valid``; None if they are the same.
    our_ids: Int[np.ndarray, " V"] | None = None

    @classmethod
    def of(
        cls,
        text: str,
        tokenizer: Vocabulary,
        separator: str = "",
        valid: str = "",
        share: float | None = None,
    ) -> "TokenStream":
        """Encodes a text, each split separately; by default, its end is the validation split."""
        # The validation split is a text of its own, or the end of this one.
        if valid:
            train_span = range(len(text))
            valid_text = valid
            valid_span = range(len(valid))
            valid_sha256 = text_sha256(valid)
        else:
            train_end = training_length(text, share)
            train_span = range(train_end)
            valid_text = text
            valid_span = range(train_end, len(text))
            valid_sha256 = ""

        return cls(
            tokenizer=tokenizer,
            train=encode_documents(text, tokenizer, separator, span=train_span),
            valid=encode_documents(valid_text, tokenizer, separator, span=valid_span),
            valid_characters=len(valid_span),
            text_sha256=text_sha256(text),
            findings=_find_unusual_lines(text),
            valid_sha256=valid_sha256,
        )

    @classmethod
    def of_files(
        cls,
        file: pathlib.Path,
        valid: pathlib.Path | None,
        dtype: str,
        tokenizer: Vocabulary,
        share: float | None = None,
    ) -> "TokenStream":
        """Opens files of token ids; a tokenizer from Hugging Face has its original ids there."""
        ids = getattr(tokenizer, "our_ids", np.arange(tokenizer.vocab_size))
        train_tokens = map_token_ids(file, dtype, ids)

        if valid is None:
            train_end = training_length(train_tokens, share)
            valid_tokens = train_tokens[train_end:]
            train_tokens = train_tokens[:train_end]
            valid_sha256 = ""
        else:
            valid_tokens = map_token_ids(valid, dtype, ids)
            valid_sha256 = file_sha256(valid)

        return cls(
            tokenizer=tokenizer,
            train=train_tokens,
            valid=valid_tokens,
            valid_characters=0,
            text_sha256=file_sha256(file),
            findings=Findings(),
            valid_sha256=valid_sha256,
            our_ids=ids,
        )

    def _ids(self, tokens: Integer[np.ndarray, "*X"]) -> Int[np.ndarray, "*X"]:
        if self.our_ids is not None:
            tokens = self.our_ids[tokens]
        return tokens.astype(np.int32)

    def first_tokens(self, split: Literal["train", "valid"], count: int) -> Int[np.ndarray, " _"]:
        """Returns the first tokens of a split."""
        tokens = getattr(self, split)
        return self._ids(tokens[:count])

    def row_starts(
        self,
        step: int,
        rows: int,
        length: int,
        seed: int,
    ) -> Int[np.ndarray, " B"]:
        """Returns the random positions in ``train`` where the rows of a training batch begin."""
        generator = np.random.default_rng((seed, step))
        return generator.integers(0, len(self.train) - length, rows)

    def training_batch(
        self,
        step: int,
        rows: int,
        length: int,
        seed: int,
    ) -> Int[np.ndarray, "B _"]:
        """Returns rows of ``length`` tokens and the next one, from random positions.

        A pure function of its arguments. A row does not depend on the number of rows.
        """
        starts = self.row_starts(step, rows, length, seed=seed)
        places = starts[:, None] + np.arange(length + 1)  # [B, length + 1]
        return self._ids(self.train[places])

    def validation_windows(self, rows: int, length: int) -> Iterator[Int[np.ndarray, "B _"]]:
        """Yields batches of consecutive windows, without overlap, padded with 0.

        Every token of ``valid`` is a target once. The first input of a window is the last token of
        the previous window, and in the first window the last training token.
        """
        tokens = self._ids(np.concatenate([self.train[-1:], self.valid]))

        batches = -(-len(self.valid) // (length * rows))
        count = batches * rows
        padded = np.full(count * length + 1, PAD, np.int32)
        padded[: len(tokens)] = tokens

        starts = np.arange(count) * length
        places = starts[:, None] + np.arange(length + 1)  # [windows, length + 1]
        yield from padded[places].reshape(-1, rows, length + 1)


def _find_unusual_lines(text: str) -> Findings:
    findings = Findings()
    for number, line in enumerate(lines_of(text)):
        for kind in unusual_kinds(line):
            findings.add(kind, number, 0)
    return findings
