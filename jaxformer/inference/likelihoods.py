"""Log probabilities of given tokens, computed in chunks to bound the memory for logits."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.config import ModelConfig
from jaxformer.models.transformer import Transformer

# Number of logits per chunk, 16 MB in float32.
_LOGITS_AT_ONCE = 1 << 22


def token_log_probs(
    configs: Sequence[ModelConfig],
    params: Sequence[PyTree],
    features: Sequence[Float[Array, "B T _"]],
    targets: Int[Array, "B T"],
) -> Float[Array, "B T"]:
    """Returns the log probability of every target under the mean probability of several models.

    ``features`` are the decoder outputs of each model, at the positions that predict the targets.
    """
    vocab_size = max(config.output_size for config in configs)

    def of_chunk(chunk: tuple[list[Array], Array]) -> Float[Array, " C"]:
        rows, targets = chunk
        each = []
        for config, own, row in zip(configs, params, rows, strict=True):
            logits: Any = Transformer(config).apply({"params": own}, row, method="logits")
            logits = logits.astype(jnp.float32)
            chosen = jnp.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
            each.append(chosen - jax.nn.logsumexp(logits, axis=1))
        return jax.nn.logsumexp(jnp.stack(each), axis=0) - math.log(len(each))

    tokens = targets.size
    chunk = min(tokens, max(8, _LOGITS_AT_ONCE // vocab_size))
    count = -(-tokens // chunk)

    def chunked(rows: Array) -> Array:
        padding = [(0, count * chunk - tokens)] + [(0, 0)] * (rows.ndim - 1)
        return jnp.pad(rows, padding).reshape(count, chunk, *rows.shape[1:])

    flat = [chunked(rows.reshape(-1, rows.shape[-1])) for rows in features]
    log_probs = jax.lax.map(of_chunk, (flat, chunked(targets.reshape(-1))))
    return log_probs.reshape(-1)[:tokens].reshape(targets.shape)
