"""The tokenizer of M2M-100: Marian's with one SentencePiece model, and codes of languages."""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import SupportsIndex

import numpy as np

from jaxformer.checks import is_unicode
from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.tokenizer import UNK, find_language

_THEIR_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # in the order of their ids


class M2M100Tokenizer(MarianTokenizer):
    """Converts text to token ids and back, like the class of the same name in transformers.

    The serialized form is a MarianTokenizer's with the languages of source and target, such as "en
    to de". Their codes, which are pieces such as ``__en__``, begin the two sides.
    ``their_ids``, ``our_ids`` and ``absent`` are as in HuggingFaceTokenizer.
    """

    form = "m2m100"
    absent = "bos"  # Their decoder begins with the end of sentence.
    special = {"pad": 1, "eos": 2, "bos": 2, "unk": 3}  # noqa: RUF012 - as in HuggingFaceTokenizer
    their_class = "M2M100Tokenizer"
    forced_start = None  # other than the code of the target language
    has_types = False
    _code = re.compile("(?!)")  # Texts have none.

    def __init__(self, serialized: bytes) -> None:
        super().__init__(serialized)

        # Their pieces for languages look like "__en__".
        ids_by_language = {}
        for piece, number in self._ids.items():
            if piece.startswith("__"):
                ids_by_language[piece.strip("_")] = number

        languages = json.loads(serialized)["languages"]
        self.languages = tuple(str(languages).split(" to "))
        self._codes = [find_language(name, ids_by_language) for name in self.languages]

        self.language_codes = ()
        self.target_start = tuple(self._codes[1:])

        # Ours begin with pad, eos, bos and unk. Their "<s>", which begins no text, follows.
        other_theirs = range(4, self.vocab_size - 1)
        other_ours = range(5, self.vocab_size)
        self.their_ids = np.array([1, 2, 2, 3, 0, *other_theirs])
        self.our_ids = np.array([4, 0, 1, 3, *other_ours])

    def files(self) -> dict[str, bytes]:
        """Returns the files that the class in transformers reads, by their names."""
        vocabulary: dict[str, int] = {}
        for number, piece in enumerate(_THEIR_SPECIAL):
            vocabulary[piece] = number

        others = self._pieces[UNK + 2 :]
        for number, piece in enumerate(others, start=len(_THEIR_SPECIAL)):
            if piece.startswith("__"):
                break  # Languages and unused ids follow.
            if is_unicode(piece):  # Others stand for ids without a piece.
                vocabulary[piece] = number

        model = json.loads(self.serialized)["source"]
        text = json.dumps(vocabulary, ensure_ascii=False)
        return {
            "sentencepiece.bpe.model": base64.b64decode(model),
            "vocab.json": text.encode(),
        }

    def special_pieces(self, names: Mapping[str, str]) -> dict[str, str]:
        """Returns the special tokens that the vocabulary has, under other names."""
        pieces = {}
        for ours, theirs in names.items():
            if ours in self.special:
                number = self.special[ours]
                pieces[theirs] = _THEIR_SPECIAL[number]
        return pieces

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        text_ids = (i for i in ids if i not in self.target_start)
        return super().decode(text_ids)

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        rows = super()._encode(texts, target=target)
        return [self._add_language(row, target=target) for row in rows]


TOKENIZER = M2M100Tokenizer
