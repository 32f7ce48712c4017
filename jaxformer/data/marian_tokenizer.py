"""The tokenizer of Marian models: one SentencePiece model per side, and one list of pieces.

Marian numbers the pieces by its own list instead of SentencePiece's ids.
"""

import base64
import binascii
import hashlib
import json
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

from jaxformer.checks import check_text, check_texts, check_tokens
from jaxformer.data.tokenizer import SPECIAL_PIECES, UNK, Tokenizer, open_processor
from jaxformer.errors import UserError
from jaxformer.files import open_file, readable

# Models with several target languages expect the code of one at the beginning of a sentence.
_LANGUAGE_CODE = re.compile(r"\s*(>>.*?<<)", re.DOTALL)


class MarianTokenizer(Tokenizer):
    """Converts text to token ids and back, like the class of the same name in transformers.

    Ids 0 to 3 are padding, end, beginning and unknown, as everywhere in jaxformer; the pieces
    follow. The serialized form is one JSON object with both SentencePiece models.

    Attributes:
      vocab_size: Number of ids.
      serialized: The JSON object.
      sha256: Hash of the JSON object, hexadecimal.
    """

    def __init__(self, serialized: bytes) -> None:
        """Parses the JSON object.

        Raises:
          UserError: The bytes are not such an object.
        """
        values = _parse(serialized)
        self._source = _processor(values, "source")
        self._target = _processor(values, "target")
        pieces = values.get("pieces")
        if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
            raise UserError("expected a Marian tokenizer with a list of strings as pieces")
        self._pieces = [*SPECIAL_PIECES, *pieces]
        self._ids = {piece: i for i, piece in enumerate(self._pieces) if i > UNK}
        if len(self._ids) != len(pieces):
            raise UserError("expected a Marian tokenizer with different pieces: some are the same")
        self.serialized = serialized
        self.vocab_size = self.target_vocab_size = len(self._pieces)
        self.target_symbols = False
        self.language_codes = tuple(filter(_LANGUAGE_CODE.fullmatch, pieces))
        self.sha256 = hashlib.sha256(serialized).hexdigest()

    @classmethod
    def assemble(cls, source: bytes, target: bytes, pieces: Sequence[str]) -> "MarianTokenizer":
        """Creates a tokenizer from its components.

        Args:
          source: SentencePiece model of the source side, serialized.
          target: SentencePiece model of the target side, serialized.
          pieces: Pieces with ids 4, 5, ..., all different.

        Raises:
          UserError: These are not SentencePiece models, or the pieces are not all different.
        """
        values = {
            "source": base64.b64encode(source).decode(),
            "target": base64.b64encode(target).decode(),
            "pieces": list(pieces),
        }
        return cls(json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode())

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a source sentence, without EOS; empty for a blank sentence.

        A leading language code such as ``>>fra<<`` is one token. Other words in angle brackets are
        text, even if they look like special tokens.

        Raises:
          UserError: The argument is not a string.
        """
        check_text(text, "text")
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of many source sentences, using all cores.

        Raises:
          UserError: The argument is a single string, or not strings.
        """
        return self._encode(texts, self._source)

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of many target sentences, using all cores.

        Raises:
          UserError: The argument is a single string, or not strings.
        """
        return self._encode(texts, self._target)

    def check_language(self, text: str, place: str) -> None:
        """Raises a ``UserError`` if a sentence begins with an unknown language code."""
        code = _LANGUAGE_CODE.match(text)
        if code and code[1] not in self._ids:
            known = ", ".join(self.language_codes) or "text, since the model has no language codes"
            raise UserError(f"{place}: expected {known}: got {code[1]}")

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Returns the text of token ids of the target side, without special tokens.

        Raises:
          UserError: An id is out of range.
        """
        tokens = check_tokens(ids, self.vocab_size, "token ids")
        pieces = [self._pieces[i] for i in tokens if i > UNK]
        # SentencePiece leaves unknown pieces unchanged, such as pieces of the source side.
        return self._target.decode_pieces(pieces).replace("▁", " ").strip()

    def piece(self, token: SupportsIndex) -> str:
        """Returns the piece of a token, as a label; "▁" stands for a space.

        Raises:
          UserError: The id is out of range.
        """
        return self._pieces[check_tokens([token], self.vocab_size, "token id")[0]]

    def _encode(self, texts: Sequence[str], processor: Any) -> list[list[int]]:
        texts = check_texts(texts, "texts")
        codes = [_LANGUAGE_CODE.match(text) for text in texts]
        rest = [
            text[code.end() :] if code else text for code, text in zip(codes, texts, strict=True)
        ]
        rows = processor.encode(rest, out_type=str)
        return [
            [self._ids.get(piece, UNK) for piece in ([code[1], *row] if code else row)]
            for code, row in zip(codes, rows, strict=True)
        ]


def load_tokenizer(path: pathlib.Path) -> Tokenizer:
    """Reads a tokenizer of any kind, recognized by its first bytes.

    Raises:
      UserError: There is no such file, or it is not a tokenizer.
    """
    with readable(path), open_file(path) as file:
        start = file.read(8)
    if start == b'{"moses"':
        from jaxformer.data.moses_tokenizer import MosesTokenizer  # sacremoses is slow to import.

        return MosesTokenizer.load(path)
    return (MarianTokenizer if start.startswith(b"{") else Tokenizer).load(path)


def _parse(serialized: bytes) -> dict[str, Any]:
    try:
        values = json.loads(serialized)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deeply
        raise UserError(f"expected a Marian tokenizer, a JSON object: {error}") from None
    if not isinstance(values, dict):
        raise UserError(
            f"expected a Marian tokenizer, a JSON object: found {type(values).__name__}"
        )
    return values


def _processor(values: dict[str, Any], side: str) -> Any:
    try:
        return open_processor(base64.b64decode(values[side], validate=True))
    except (KeyError, TypeError, binascii.Error, ValueError):  # UserError, too
        raise UserError(
            f"expected a Marian tokenizer with a SentencePiece model as {side}: found none"
        ) from None
