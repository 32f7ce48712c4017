"""The tokenizer of M2M-100: a SentencePiece model, a list of pieces, and languages."""

import json
from collections.abc import Iterable
from typing import SupportsIndex

import numpy as np

from jaxformer.checks import check_tokens
from jaxformer.data.huggingface_tokenizer import begin
from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.tokenizer import UNK, encode_all
from jaxformer.errors import UserError


class M2M100Tokenizer(MarianTokenizer):
    """Converts text to token ids and back, like the class of the same name in transformers.

    The serialized form is a MarianTokenizer's with the languages of source and target, such as "en
    to de". Their codes begin the two sides.

    Attributes:
      their_ids: The id in transformers for each of our ids.
      our_ids: Our id for each of their ids.
      absent: "bos", since their decoder begins with the end of sentence.
    """

    absent = "bos"

    def __init__(self, serialized: bytes) -> None:
        super().__init__(serialized)
        languages = str(json.loads(serialized)["languages"])
        try:
            self._codes = [self._ids[f"__{name}__"] for name in languages.split(" to ")]
        except LookupError:
            raise UserError(f"expected two languages, got {languages!r:.80}") from None
        self.language_codes, self.target_start = (), tuple(self._codes[1:])
        self.their_ids = np.array([1, 2, 2, 3, 0, *range(4, self.vocab_size - 1)])
        self.our_ids = np.array([4, 0, 1, 3, *range(5, self.vocab_size)])

    def check_language(self, text: str, place: str) -> None:
        return None

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        tokens = check_tokens(ids, self.vocab_size, "token ids")
        pieces = [self._pieces[i] for i in tokens if i > UNK and i not in self.target_start]
        return self._target.decode_pieces(pieces).strip()

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        rows = encode_all(self._target, texts, out_type=str)
        rows = [[self._ids.get(piece, UNK) for piece in row] for row in rows]
        return [begin(row, self._codes, target=target) for row in rows]
