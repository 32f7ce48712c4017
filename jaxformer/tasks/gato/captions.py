"""Writes captions of pictures with a multi-task agent."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, UInt8

from jaxformer.layout import global_mesh
from jaxformer.models.gato import Gato, GatoConfig
from jaxformer.models.stepwise import step_fn
from jaxformer.search import BeamSearch, Sampling

_BATCH_SIZE = 64
_LONGEST = 32  # tokens of a caption, the end included


@global_mesh(None)
def write_captions(
    config: GatoConfig,
    params: PyTree,
    pictures: UInt8[np.ndarray, "N Y X C"],
    *,
    search: BeamSearch | Sampling,
) -> list[Int[np.ndarray, " n"]]:
    """Returns the token ids of the best caption, or of the first sample, of each picture."""
    found = []
    for start in range(0, len(pictures), _BATCH_SIZE):
        rows = pictures[start : start + _BATCH_SIZE]
        # All batches have one shape, so that there is one program.
        padding = ((0, _BATCH_SIZE - len(rows)), (0, 0), (0, 0), (0, 0))
        numbers = np.arange(start, start + _BATCH_SIZE, dtype=np.int32)
        tokens = _search(config, search, params, np.pad(rows, padding), numbers)
        found += list(np.asarray(tokens)[: len(rows)])
    return found


@functools.partial(jax.jit, static_argnums=(0, 1))
def _search(
    config: GatoConfig,
    search: BeamSearch | Sampling,
    params: PyTree,
    pictures: UInt8[Array, "B Y X C"],
    numbers: Int[Array, " B"],
) -> Int[Array, "B T"]:
    model = Gato(config)
    variables: Any = {"params": params}
    longest = _LONGEST
    if config.window is None:
        longest = min(_LONGEST, config.max_length - config.num_patches)

    cache = model.apply(
        variables,
        numbers,
        num_beams=search.num_hypotheses,
        capacity=config.num_patches + longest,
        method="start",
    )
    cache = model.apply(variables, pictures, cache, method="prefill_picture")

    # Only tokens of texts are candidates.
    candidates = jnp.arange(config.vocab_size)
    result = search(
        step_fn(model, params, candidates),
        cache,
        max_lengths=jnp.full(len(pictures), longest),
        capacity=longest,
        sentence_ids=numbers,
    )
    return result.tokens[:, 0]
