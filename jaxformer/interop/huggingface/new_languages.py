"""New languages of a model of many: a token, whose embedding begins as a known language's.

A model of 200 languages writes the language of a text as a token, its code. A language that the
model lacks gets a new code, and training teaches its meaning. Until then, the model treats it as
the language whose embedding it copies.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from jaxformer.data.huggingface_tokenizer import (
    HuggingFaceTokenizer,
    language_ids,
    open_tokenizer_json,
)
from jaxformer.data.tokenizer import find_language
from jaxformer.errors import UserError
from jaxformer.interop.huggingface.foreign_layout import ImportedTokenizer

# As in NLLB and mBART: letters or digits, and a script or a region.
_CODE = re.compile(r"[A-Za-z]\w*", re.ASCII)


class Languages(NamedTuple):
    """The languages of sources and targets.

    Attributes:
      codes: Their codes.
      copied: A known code for each new one among them, whose embedding is a copy of the known one.
    """

    codes: tuple[str, ...]
    copied: dict[str, str]


def parse_languages(words: Sequence[str]) -> Languages:
    """Returns the languages that words such as eng_Latn, or tyv_Cyrl=kir_Cyrl for a new one, name.

    >>> parse_languages(["eng_Latn", "tyv_Cyrl=kir_Cyrl"])
    Languages(codes=('eng_Latn', 'tyv_Cyrl'), copied={'tyv_Cyrl': 'kir_Cyrl'})
    """
    codes: list[str] = []
    copied: dict[str, str] = {}
    for word in words:
        code, is_new, known = word.partition("=")
        if is_new:
            if not _CODE.fullmatch(code):
                raise UserError(
                    f"expected the code of a new language, such as tyv_Cyrl: got {code!r:.80}"
                )
            copied[code] = known
        codes.append(code)
    return Languages(tuple(codes), copied)


def add_codes(json_text: str, vocab_size: int, copied: Mapping[str, str]) -> tuple[str, int]:
    """Returns a tokenizer.json with new codes, and the size of the vocabulary with them.

    A new code has the first id after all tokens. Models may have embeddings for a few more ids than
    they have tokens, as NLLB does, so that the vocabulary need not grow.

    Raises:
      UserError: The model has a code already, or lacks the language that it is a copy of.
    """
    tokenizer = open_tokenizer_json(json_text)
    known_ids = language_ids(tokenizer, vocab_size)

    size = vocab_size
    for code, known in copied.items():
        find_language(known, known_ids)
        if tokenizer.token_to_id(code) is not None:
            raise UserError(
                f"expected a new language, but the model has the token {code}; give {code} "
                f"without ={known}, or choose another code"
            )

        tokenizer.add_special_tokens([code])
        size = max(size, tokenizer.token_to_id(code) + 1)
    return tokenizer.to_str(), size


def rows_of_tokens(
    tokenizer: ImportedTokenizer | None,
    copied: Mapping[str, str],
) -> Int[np.ndarray, " V"]:
    """Returns the row in a file's embeddings for each of our ids; -1 for a token that it lacks."""
    if tokenizer is None:
        return np.arange(0)

    rows = np.array(tokenizer.their_ids)
    if not copied:
        return rows

    assert isinstance(tokenizer, HuggingFaceTokenizer), "other tokenizers take no new languages"
    size = len(tokenizer.our_ids)
    ids = language_ids(open_tokenizer_json(tokenizer.json), size)
    for code, known in copied.items():
        our_id = tokenizer.our_ids[ids[code]]
        rows[our_id] = ids[known]
    return rows
