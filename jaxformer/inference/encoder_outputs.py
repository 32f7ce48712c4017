"""Outputs of an encoder for texts, in batches of similar length."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, PyTree

from jaxformer.data.encoded_text import EncodedText, pad_rows
from jaxformer.data.loader import round_up
from jaxformer.layout import global_mesh
from jaxformer.models.architecture import Architecture

# Texts are padded to multiples of this length.
_LENGTH_STEP = 16


@global_mesh(None)
def encoder_outputs(
    program: Callable[..., Float[np.ndarray, "B ..."]],
    model: Architecture,
    params: PyTree,
    texts: Sequence[EncodedText],
    *,
    batch_size: int = 64,
    report: Callable[[int], object] = lambda _: None,
) -> list[Float[np.ndarray, "..."]]:
    """Returns the output of a program for each text; outputs of tokens include padding.

    Args:
      program: A jitted function of the model, which is static, the parameters, and tokens and types
        of a batch.
      model: The architecture.
      params: Parameters.
      texts: The texts.
      batch_size: Number of texts of a batch.
      report: Called with the number of texts after each batch.
    """
    results: dict[int, np.ndarray] = {}
    by_length = sorted(range(len(texts)), key=lambda number: len(texts[number].tokens))

    for start in range(0, len(texts), batch_size):
        chosen = by_length[start : start + batch_size]
        longest = len(texts[chosen[-1]].tokens)
        length = min(round_up(longest, _LENGTH_STEP), model.max_length)

        # The last batch has rows of padding, so that it needs no other program.
        padded = pad_rows([texts[number] for number in chosen], (batch_size, length))
        found = np.asarray(program(model, params, padded.tokens, padded.types))
        for row, number in enumerate(chosen):
            results[number] = found[row]
        report(len(chosen))

    return [results[number] for number in range(len(texts))]
