"""One text as a stream of tokens: vocabularies that keep every character, rows, and windows.

Ids 0 to 3 are those of :mod:`jaxformer.data.tokenizer`. None of them is in a stream, so that 0 pads
rows.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Literal, SupportsIndex

import numpy as np
from jaxtyping import Int

from jaxformer.checks import check_text, check_tokens
from jaxformer.data.tokenizer import PAD, UNK, train_byte_pair_model
from jaxformer.errors import UserError
from jaxformer.fields import check_choices, check_positive
from jaxformer.files import local_path, write_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """One text as a stream of tokens, to train a language model on.

    The last tenth of the characters is for validation. Training rows begin anywhere in the rest.

    Attributes:
      corpus: "stream", which tells this kind of data from sentence pairs in files.
      file: The text, UTF-8.
      tokens: "characters", or "bpe" for byte pairs with line breaks and spaces kept.
      length: Tokens of a row that are predicted, each from those before it in the row.
      rows: Rows of a global batch; empty rows that make them divisible among devices come on top.
    """

    corpus: Literal["stream"] = "stream"
    file: str = ""
    tokens: Literal["characters", "bpe"] = "characters"
    length: int = 256
    rows: int = 64

    def __post_init__(self) -> None:
        """Refuses sizes that are no sizes, and a text that is not on a local disk."""
        check_choices(self, "data")
        if not self.file:
            raise UserError("data.file must name a text, to train a language model on: got ''")
        try:
            local_path(self.file)
        except UserError as error:
            raise UserError(f"data.file: {error}") from None
        check_positive(self, "data", "length", "rows")


class CharacterTokenizer:
    """Characters to token ids and back, exactly.

    Attributes:
      vocab_size: Number of ids.
      serialized: The vocabulary, as it lies in a file.
      sha256: Hash of it, hexadecimal.
    """

    def __init__(self, characters: Iterable[str]) -> None:
        """Takes the characters in the order of their ids, which begin after the special ones."""
        self._characters = list(characters)
        self._ids = {character: i for i, character in enumerate(self._characters, UNK + 1)}
        self.vocab_size = UNK + 1 + len(self._characters)
        self.serialized = json.dumps({"characters": "".join(self._characters)}).encode()
        self.sha256 = hashlib.sha256(self.serialized).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text.

        Raises:
          UserError: The vocabulary lacks one of its characters.
        """
        check_text(text, "text")
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            known = "".join(self._characters)
            raise UserError(
                f"the model has never seen the character {error.args[0]!r}; it knows {known!r}"
            ) from None

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text of token ids; special ids leave no trace.

        Raises:
          UserError: An id is out of range.
        """
        found = check_tokens(ids, self.vocab_size, "token ids")
        return "".join(self._characters[i - UNK - 1] for i in found if i > UNK)


class ByteFallbackTokenizer:
    """Byte pairs of a SentencePiece model that keeps spaces and line breaks; exact, too.

    Attributes:
      vocab_size: Number of ids.
      serialized: The SentencePiece model, as it lies in a file.
      sha256: Hash of it, hexadecimal.
    """

    def __init__(self, model: bytes) -> None:
        """Takes a serialized SentencePiece model, from :func:`train_byte_pairs`."""
        import sentencepiece

        # Without a model it would be made, and fail later.
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model or b"none")
        self.vocab_size: int = self._processor.vocab_size()
        self.serialized = model
        self.sha256 = hashlib.sha256(model).hexdigest()
        # SentencePiece writes a space as this character, so that the character itself needs bytes.
        piece_of = self._processor.piece_to_id
        self._escaped = [piece_of(f"<0x{byte:02X}>") for byte in _SPACE_SYMBOL.encode()]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text.

        Raises:
          UserError: This is no text, or it holds half a character.
        """
        check_text(text, "text")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError("text: not UTF-8") from None
        first, *others = (self._processor.encode(part) for part in text.split(_SPACE_SYMBOL))
        return first + [i for part in others for i in (*self._escaped, *part)]

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text of token ids; special ids leave no trace.

        Raises:
          UserError: An id is out of range.
        """
        found = check_tokens(ids, self.vocab_size, "token ids")
        return self._processor.decode([i for i in found if i > UNK])


_SPACE_SYMBOL = "\u2581"
StreamTokenizer = CharacterTokenizer | ByteFallbackTokenizer


def train_byte_pairs(text: str, vocab_size: int) -> ByteFallbackTokenizer:
    """Learns byte pairs from a text; the same text gives the same tokenizer, bit for bit.

    Raises:
      UserError: The text is too small, or too varied, for a vocabulary of this size.
    """
    try:
        model = train_byte_pair_model(
            (line for line in text.split("\n") if line),
            vocab_size,
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            user_defined_symbols=["\n"],
        )
    except RuntimeError as error:
        raise UserError(
            f"model.vocab_size={vocab_size}: SentencePiece cannot learn so many byte pairs from "
            f"the text: {error}"
        ) from None
    return ByteFallbackTokenizer(model)


def load_stream_tokenizer(path: pathlib.Path) -> StreamTokenizer:
    """Reads a tokenizer of either kind, which its first byte tells.

    Raises:
      UserError: There is no such file, or it is no such tokenizer.
    """
    try:
        content = path.read_bytes()
        if content[:1] == b"{":
            return CharacterTokenizer(json.loads(content)["characters"])
        return ByteFallbackTokenizer(content)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RuntimeError):
        raise UserError(f"{path}: expected the tokenizer of a language model") from None


def read_text(path: pathlib.Path) -> str:
    """Reads a whole text, as it is.

    Raises:
      UserError: The file cannot be read, is not UTF-8, or is too short to be split.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise UserError(f"data.file: {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"data.file: {path}: not UTF-8, at byte {error.start}") from None
    if len(text) < 100:
        raise UserError(
            f"data.file: {path}: expected at least 100 characters of text, found {len(text)}"
        )
    return text


def split_text(text: str) -> tuple[str, str]:
    """The first nine tenths of the characters, to train on, and the rest, to validate on."""
    place = len(text) * 9 // 10
    return text[:place], text[place:]


@dataclasses.dataclass(frozen=True)
class TokenStream:
    """A text as token ids, split into training and validation.

    Attributes:
      tokenizer: Its vocabulary.
      train: Token ids to train on.
      valid: Token ids to validate on, which follow them.
      valid_characters: Characters that ``valid`` spells.
      text_sha256: Hash of the text, hexadecimal.
    """

    tokenizer: StreamTokenizer
    train: Int[np.ndarray, " N"]
    valid: Int[np.ndarray, " M"]
    valid_characters: int
    text_sha256: str

    @classmethod
    def of(cls, text: str, tokenizer: StreamTokenizer) -> "TokenStream":
        """Encodes a text, both parts of it by themselves."""
        train, valid = split_text(text)
        ids = [np.asarray(tokenizer.encode(part), np.int32) for part in (train, valid)]
        digest = hashlib.sha256(text.encode()).hexdigest()
        return cls(tokenizer, ids[0], ids[1], len(valid), digest)

    def training_batch(
        self, step: int, rows: int, length: int, seed: int
    ) -> Int[np.ndarray, "B _"]:
        """Rows of ``length`` tokens and the one after them, from random places.

        A pure function of its arguments. Rows do not depend on how many of them there are.
        """
        generator = np.random.default_rng((seed, step))
        starts = generator.integers(0, len(self.train) - length, rows)
        return self.train[starts[:, None] + np.arange(length + 1)]

    def validation_windows(self, rows: int, length: int) -> Iterator[Int[np.ndarray, "B _"]]:
        """Batches of windows that follow one another, without overlap, padded with 0.

        Every token of ``valid`` is a target once. The first target of a window follows the last
        token of the window before it, and in the first window the last training token.
        """
        tokens = np.concatenate([self.train[-1:], self.valid])
        count = -(-len(self.valid) // length)
        count = -(-count // rows) * rows
        padded = np.full(count * length + 1, PAD, np.int32)
        padded[: len(tokens)] = tokens
        starts = np.arange(count) * length
        windows = padded[starts[:, None] + np.arange(length + 1)]
        yield from windows.reshape(-1, rows, length + 1)


def save_tokenizer(tokenizer: StreamTokenizer, path: pathlib.Path) -> None:
    """Writes a vocabulary, whole or not at all."""
    write_file(path, tokenizer.serialized)
