"""Texts as an encoder with token types takes them, and batches of annotated ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Shaped

from jaxformer.data.tokenizer import PAD


class EncodedText(NamedTuple):
    """Token ids of a text or of a pair of texts, with special tokens, and the token types.

    There may be several texts, padded with 0: the choices of one example.
    """

    tokens: Int32[np.ndarray, "... T"]
    types: Int32[np.ndarray, "... T"]

    @classmethod
    def of(cls, tokens: Sequence[int], types: Sequence[int], num_types: int) -> "EncodedText":
        """Returns arrays; a model with one type of tokens, such as RoBERTa, has 0 for all."""
        last_type = max(num_types - 1, 0)
        all_types = np.array(types, np.int32)
        return cls(
            tokens=np.array(tokens, np.int32),
            types=np.minimum(all_types, last_type),
        )


class AnnotatedText(NamedTuple):
    """An encoded text and what a model learns to predict for it.

    Attributes:
      text: The text.
      target: A number, or an array with a number for each token, for example.
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

    tokens: Int32[Any, "B ... T"]
    types: Int32[Any, "B ... T"]
    targets: Shaped[Any, "B ..."]


def pad_rows(rows: Sequence[EncodedText], shape: Sequence[int]) -> EncodedText:
    """Returns the tokens and types of texts in rows of this shape, [B, ..., T], padded with 0."""
    tokens = np.full(shape, PAD, np.int32)
    types = np.zeros(shape, np.int32)

    for number, row in enumerate(rows):
        end = row.tokens.shape[-1]
        tokens[number, ..., :end] = row.tokens
        types[number, ..., :end] = row.types
    return EncodedText(tokens, types)


def make_annotated_batch(
    rows: Sequence[Sequence[AnnotatedText]],
    shape: Sequence[int],
    targets: np.ndarray,
) -> AnnotatedBatch:
    """Arranges texts, one in each row, with their targets.

    Args:
      rows: Lists of one text.
      shape: Shape of the tokens of the batch.
      targets: Targets of rows without a text, [B, ...], which is overwritten.
    """
    texts = [row.text for [row] in rows]
    padded = pad_rows(texts, shape)

    for number, [row] in enumerate(rows):
        target = np.asarray(row.target)
        if target.ndim:
            end = len(target)
            targets[number, :end] = target
        else:
            targets[number] = target

    return AnnotatedBatch(
        tokens=padded.tokens,
        types=padded.types,
        targets=targets,
    )
