"""The tokenizer of Marian: a SentencePiece model for each side, and one list of pieces.

Pieces are numbered by this list, not by SentencePiece's ids.
"""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, TypeVar

from jaxformer.checks import check_tokens
from jaxformer.data.tokenizer import (
    SPECIAL_PIECES,
    UNK,
    Tokenizer,
    Vocabulary,
    encode_all,
    open_processor,
)
from jaxformer.errors import MALFORMED, UserError, prefix_errors

MarianT = TypeVar("MarianT", bound="MarianTokenizer")


class MarianTokenizer(Tokenizer):
    """Converts text to token ids and back, like the class of the same name in transformers.

    The pieces follow the special ids. The serialized form is one JSON object with both
    SentencePiece models. A leading language code such as ``>>fra<<`` is one token. Other words in
    angle brackets are ordinary text, even if they look like special tokens.
    """

    form = "marian"
    # Models with several target languages expect the code of one at the beginning of a sentence.
    _code = re.compile(r"\s*(>>.*?<<)", re.DOTALL)

    def __init__(self, serialized: bytes) -> None:
        pieces, source_model, target_model = _parse(serialized)

        self._source = _open("source", source_model)
        self._target = _open("target", target_model)

        self._pieces = [*SPECIAL_PIECES, *pieces]
        self._ids = {piece: i for i, piece in enumerate(self._pieces) if i > UNK}
        if len(self._ids) != len(pieces):
            raise UserError("expected a Marian tokenizer with different pieces: some are the same")

        Vocabulary.__init__(self, serialized)
        self.vocab_size = len(self._pieces)
        self.target_vocab_size = self.vocab_size
        self.language_codes = tuple(filter(self._code.fullmatch, pieces))

    @classmethod
    def assemble(
        cls: type[MarianT],
        source: bytes,
        target: bytes,
        pieces: Sequence[str],
        **more: str,
    ) -> MarianT:
        """Creates a tokenizer from the SentencePiece models of both sides, and all pieces."""
        values = {
            "tokenizer": cls.form,
            **more,
            "source": base64.b64encode(source).decode(),
            "target": base64.b64encode(target).decode(),
            "pieces": list(pieces),
        }
        serialized = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        return cls(serialized.encode())

    def check_language(self, text: str, place: str) -> None:
        code = self._code.match(text)
        if code and code[1] not in self._ids:
            known = ", ".join(self.language_codes) or "text, since the model has no language codes"
            raise UserError(f"{place}: expected {known}: got {code[1]}")

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        tokens = check_tokens(ids, self.vocab_size, "token ids")
        pieces = [self._pieces[token] for token in tokens if token > UNK]

        # SentencePiece leaves unknown pieces unchanged, such as pieces of the source side.
        return self._target.decode_pieces(pieces).replace("▁", " ").strip()

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        codes = [self._code.match(text) for text in texts]
        rest = []
        for code, text in zip(codes, texts, strict=True):
            start = code.end() if code else 0
            rest.append(text[start:])

        processor = self._target if target else self._source
        rows = []
        pieces_of_texts = encode_all(processor, rest, out_type=str)
        for code, pieces in zip(codes, pieces_of_texts, strict=True):
            if code:
                pieces = [code[1], *pieces]
            rows.append([self._ids.get(piece, UNK) for piece in pieces])
        return rows


def _open(side: str, model: bytes) -> Any:
    try:
        return open_processor(model)
    except UserError:
        raise UserError(
            f"expected a Marian tokenizer with a SentencePiece model as {side}: found none"
        ) from None


def _parse(serialized: bytes) -> tuple[list[str], bytes, bytes]:
    """Returns the pieces of a serialized tokenizer, and its models of source and target."""
    expected = "a JSON object with pieces and two SentencePiece models"
    with prefix_errors(f"expected a Marian tokenizer, {expected}", *MALFORMED):
        values = json.loads(serialized)

        pieces = values["pieces"]
        if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
            raise ValueError("its pieces are not a list of strings")

        source = base64.b64decode(values["source"], validate=True)
        target = base64.b64decode(values["target"], validate=True)
        return pieces, source, target


TOKENIZER = MarianTokenizer
