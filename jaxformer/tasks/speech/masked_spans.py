"""Random spans of frames that training masks."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxformer.nn.dropout import random_bits


def masked_spans(
    key: Array,
    row_ids: Int[Array, " B"],
    size: int,
    *,
    rate: float,
    length: int,
) -> Bool[Array, "B T"]:
    """Returns frames to mask: spans that begin anywhere and may overlap (Baevski et al. 2020).

    A frame is masked unless none of the ``length`` frames up to it begins a span. A span begins
    with the probability for which this gives ``rate``, the fraction of masked frames; the first
    frames of a row are masked less. The spans of a row depend only on the key and the row id.
    """
    start_rate = 1 - (1 - rate) ** (1 / length)
    bits = random_bits(jax.random.bits(key, (2,), jnp.uint32), row_ids, (size,))
    starts = bits < jnp.uint32(start_rate * 2**32)

    # The number of spans that begin up to each frame, minus those that have ended.
    begun = jnp.cumsum(starts.astype(jnp.int32), axis=1)
    ended = jnp.pad(begun, ((0, 0), (length, 0)))[:, :size]
    return begun > ended
