"""Texts as an encoder with token types takes them, and batches of annotated ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Shaped

from jaxformer.data.batch import Shape
from jaxformer.data.tokenizer import PAD


class EncodedText(NamedTuple):
    """Token ids of a text or of a pair of texts, with special tokens, and the token types."""

    tokens: Int32[np.ndarray, " T"]
    types: Int32[np.ndarray, " T"]

    @classmethod
    def of(cls, tokens: Sequence[int], types: Sequence[int], num_types: int) -> "EncodedText":
        """Returns arrays; a model with one type of tokens, such as RoBERTa, has 0 for all."""
        last_type = max(num_types - 1, 0)
        return cls(
            np.array(tokens, np.int32),
            np.minimum(np.array(types, np.int32), last_type),
        )


class AnnotatedText(NamedTuple):
    """An encoded text and what a model learns to predict for it.

    Attributes:
      text: The text.
      target: Arrays or numbers; equal in shape for all texts of a batch, or one for each token.
      number: Number of the example in its file that the text is of, from 0.
    """

    text: EncodedText
    target: Any
    number: int

    @property
    def length(self) -> int:
        return self.text.tokens.shape[-1]


class AnnotatedBatch(NamedTuple):
    """Texts of a batch, padded with 0, and their targets.

    Attributes:
      tokens: Token ids; a row of padding has no text.
      types: Token types.
      targets: Targets of the rows.
    """

    tokens: Int32[Any, "B T"]
    types: Int32[Any, "B T"]
    targets: Shaped[Any, "B ..."]


def pad_rows(rows: Sequence[EncodedText], shape: tuple[int, int]) -> EncodedText:
    """Returns the tokens and types of texts in rows, [B, T], padded with 0."""
    tokens = np.full(shape, PAD, np.int32)
    types = np.zeros(shape, np.int32)
    for number, row in enumerate(rows):
        end = len(row.tokens)
        tokens[number, :end] = row.tokens
        types[number, :end] = row.types
    return EncodedText(tokens, types)


def make_annotated_batch(
    rows: Sequence[Sequence[AnnotatedText]],
    shape: Shape,
    empty: np.ndarray,
) -> AnnotatedBatch:
    """Arranges texts, one in each row, with a target for each row.

    Args:
      rows: Lists of one text.
      shape: Number of rows, and twice their length.
      empty: Target of a row without a text.
    """
    num_rows, length, _ = shape
    padded = pad_rows([row.text for [row] in rows], (num_rows, length))

    targets = np.repeat(empty[None], num_rows, axis=0)
    for number, [row] in enumerate(rows):
        targets[number] = row.target
    return AnnotatedBatch(padded.tokens, padded.types, targets)
