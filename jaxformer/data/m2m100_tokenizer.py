"""The tokenizer of M2M-100: Marian's with one SentencePiece model, and codes of languages."""

import json
import re
from collections.abc import Iterable
from typing import SupportsIndex

import numpy as np

from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.tokenizer import find_language


class M2M100Tokenizer(MarianTokenizer):
    """Converts text to token ids and back, like the class of the same name in transformers.

    The serialized form is a MarianTokenizer's with the languages of source and target, such as "en
    to de". Their codes, which are pieces such as ``__en__``, begin the two sides.
    ``their_ids``, ``our_ids`` and ``absent`` are as in HuggingFaceTokenizer.
    """

    form = "m2m100"
    absent = "bos"  # Their decoder begins with the end of sentence.
    _code = re.compile("(?!)")  # Texts have none.

    def __init__(self, serialized: bytes) -> None:
        super().__init__(serialized)

        # Their pieces for languages look like "__en__".
        ids_by_language = {}
        for piece, number in self._ids.items():
            if piece.startswith("__"):
                ids_by_language[piece.strip("_")] = number

        languages = str(json.loads(serialized)["languages"]).split(" to ")
        self._codes = [find_language(name, ids_by_language) for name in languages]

        self.language_codes = ()
        self.target_start = tuple(self._codes[1:])

        self.their_ids = np.array([1, 2, 2, 3, 0, *range(4, self.vocab_size - 1)])
        self.our_ids = np.array([4, 0, 1, 3, *range(5, self.vocab_size)])

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        return super().decode(i for i in ids if i not in self.target_start)

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        rows = super()._encode(texts, target=target)
        return [self._add_language(row, target=target) for row in rows]


TOKENIZER = M2M100Tokenizer
