"""Outputs of an encoder for texts, in batches of similar length."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.data.encoded_text import EncodedText, pad_rows
from jaxformer.data.loader import round_up
from jaxformer.kinds.kind import Kind
from jaxformer.layout import global_mesh
from jaxformer.models.architecture import Architecture

# Texts are padded to multiples of this length.
_LENGTH_STEP = 16


@global_mesh(None)
def encoder_outputs(
    program: Callable[..., Any],
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
        of a batch; it returns an array with a row for each text.
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


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def method_outputs(
    kind: Kind,
    method: str,
    config: Architecture,
    params: PyTree,
    tokens: Int[Array, "B T"],
    types: Int[Array, "B T"],
) -> Float[Array, "B ..."]:
    """Returns what a method of a model computes of tokens and their types, in float32.

    With its first two arguments given, it is a program of :func:`encoder_outputs`.
    """
    model = kind.build(config)
    outputs: Any = model.apply({"params": params}, tokens, token_types=types, method=method)
    return outputs.astype(jnp.float32)
