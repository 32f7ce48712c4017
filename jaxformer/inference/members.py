"""The models of an ensemble or a single model, and log probabilities of given tokens."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.errors import UserError
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.models.architecture import Architecture

_LOGITS_AT_ONCE = 1 << 22  # number of logits per chunk, 16 MB in float32


class Member(NamedTuple):
    config: Architecture
    params: PyTree  # cast or quantized for decoding

    @property
    def model(self) -> Any:
        return TRANSLATION.build(self.config)

    def __call__(self, *inputs: Any, method: str, **options: Any) -> Any:
        variables = {"params": self.params}
        return self.model.apply(variables, *inputs, method=method, **options)


# Only the parameters are traced: a jitted function is compiled for each architecture.
jax.tree_util.register_pytree_node(
    Member,
    lambda member: ((member.params,), member.config),
    lambda config, children: Member(config, *children),
)


def recorded_weights(
    network: Any,
    recorded: Mapping[str, Any],
    stack: str,
    sublayer: str,
) -> Float[Array, "L B H T S"]:
    """Returns the attention weights of all layers of a stack, which a call of a model recorded.

    Args:
      network: The model, for the error message.
      recorded: The variables of the call, with ``mutable="intermediates"``.
      stack: "encoder" or "decoder".
      sublayer: "self_attention" or "cross_attention".

    Raises:
      UserError: The layers do not sow their weights, as
        :class:`~jaxformer.MultiHeadAttention` does.
    """
    path = ("intermediates", stack, "layers", sublayer, "weights")
    found: Any = recorded
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None

    if found is None:
        raise UserError(
            f'expected a model that records {stack}/{sublayer} as "weights", as attention of '
            f"softmax does: {type(network).__name__} records none"
        )
    return found[0]


def token_log_probs(
    members: Sequence[Member],
    features: Sequence[Float[Array, "B T _"]],
    targets: Int[Array, "B T"],
) -> Float[Array, "B T"]:
    """Returns the log of the mean probability of targets, given each member's decoder outputs."""
    vocab_size = max(member.config.output_size for member in members)
    logits = [functools.partial(member, method="logits") for member in members]
    return log_probs_of_tokens(
        logits,
        vocab_size,
        features=features,
        targets=targets,
    )


def log_probs_of_tokens(
    logits: Sequence[Callable[[Float[Array, "C D"]], Float[Array, "C V"]]],
    vocab_size: int,
    features: Sequence[Float[Array, "B T _"]],
    targets: Int[Array, "B T"],
) -> Float[Array, "B T"]:
    """Returns log probabilities under the models' mean; logits come in chunks, to bound memory."""

    def log_probs_of_chunk(chunk: tuple[list[Array], Array]) -> Float[Array, " C"]:
        features_of_models, targets = chunk
        log_probs_of_models = []
        for logits_of, features in zip(logits, features_of_models, strict=True):
            scores = logits_of(features).astype(jnp.float32)  # [C, V]
            chosen = jnp.take_along_axis(scores, targets[:, None], axis=1)[:, 0]
            normalizer = jax.nn.logsumexp(scores, axis=1)
            log_probs_of_models.append(chosen - normalizer)

        # The log of the mean probability.
        stacked = jnp.stack(log_probs_of_models)
        log_sum = jax.nn.logsumexp(stacked, axis=0)
        return log_sum - math.log(len(log_probs_of_models))

    num_tokens = targets.size
    most_tokens = max(8, _LOGITS_AT_ONCE // vocab_size)
    chunk_size = min(num_tokens, most_tokens)
    num_chunks = -(-num_tokens // chunk_size)
    num_padding = num_chunks * chunk_size - num_tokens

    def split_into_chunks(rows: Array) -> Array:
        padding = [(0, 0)] * rows.ndim
        padding[0] = (0, num_padding)
        padded = jnp.pad(rows, padding)
        return padded.reshape(num_chunks, chunk_size, *rows.shape[1:])

    feature_chunks = []
    for features_of_model in features:
        depth = features_of_model.shape[-1]
        rows = features_of_model.reshape(-1, depth)
        feature_chunks.append(split_into_chunks(rows))
    target_chunks = split_into_chunks(targets.reshape(-1))

    chunks = (feature_chunks, target_chunks)
    log_probs = jax.lax.map(log_probs_of_chunk, chunks)
    log_probs = log_probs.reshape(-1)[:num_tokens]
    return log_probs.reshape(targets.shape)
