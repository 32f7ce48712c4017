"""States of a search between two steps, and its result.

Axes: B sentences, N hypotheses of a sentence, M candidates of a sentence, P tokens of a prefix,
T capacity for tokens. Every array of a state leads with B, or is a scalar.
"""

import reprlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from jaxformer.errors import UserError
from jaxformer.search.beam_cache import check_cache, gather_beams

# What callers may give; lists and NumPy's arrays become JAX's.
Limits: TypeAlias = Int[Array, " B"] | Int[np.ndarray, " B"] | Sequence[int]
Prefix: TypeAlias = Int[Array, "B P"] | Int[np.ndarray, "B P"] | Sequence[Sequence[int]]


class BeamResult(NamedTuple):
    """N hypotheses of each sentence, best first.

    A hypothesis that does not exist has score and log probability -inf, length 0 and only padding.
    """

    tokens: Int[Array, "B N T"]  # int32; without BOS, with EOS, padding after
    lengths: Int[Array, "B N"]  # int32; tokens that are not padding, EOS included
    scores: Float[Array, "B N"]  # float32; log probability / length penalty
    log_probs: Float[Array, "B N"]  # float32; as the step function has it, whatever the settings


@flax.struct.dataclass
class Candidates:
    """One-token continuations of alive hypotheses, in the order of preference."""

    log_probs: Float[Array, "B M"]  # float32; of the whole hypothesis; -inf: does not exist
    tokens: Int[Array, "B M"]  # int32; the token that is added
    parents: Int[Array, "B M"]  # int32; the alive hypothesis that is continued, 0 to N - 1


@flax.struct.dataclass
class BeamState:
    """State of beam search between two steps."""

    step: Int[Array, ""]  # int32; tokens decoded so far
    limits: Int[Array, " B"]  # int32; most tokens of the sentence, at most T
    prefix: Int[Array, "B P"]  # int32; tokens to start with, padding leaves a position free
    rows: Int[Array, " B"] | None  # int32; numbers of the sentences; None without constraints
    done: Bool[Array, " B"]  # the sentence is finished and stays as it is
    alive: Candidates  # axes B N; the newest token of each alive hypothesis
    alive_tokens: Int[Array, "B N T"]  # int32; all their tokens, padding after
    finished: BeamResult  # axes B N; the best finished hypotheses of each group so far, in order
    cache: Any  # the step function's own


@flax.struct.dataclass
class SampleState:
    """State of sampling between two steps."""

    step: Int[Array, ""]  # int32; tokens decoded so far
    limits: Int[Array, " B"]  # int32; most tokens of the sentence, at most T
    prefix: Int[Array, "B P"]  # int32; tokens to start with, padding leaves a position free
    rows: Int[Array, " B"] | None  # int32; numbers of the sentences; None without constraints
    done: Bool[Array, " B"]  # the sentence is finished and stays as it is
    keys: Key[Array, " B"]  # of the sentence, not of the step
    newest: Int[Array, "B N"]  # int32; the token to feed next
    tokens: Int[Array, "B N T"]  # int32; without BOS, padding after
    lengths: Int[Array, "B N"]  # int32; tokens that are not padding
    finished: Bool[Array, "B N"]  # with EOS, or because nothing could follow
    log_probs: Float[Array, "B N"]  # float32; -inf: does not exist
    cache: Any  # the step function's own


State = TypeVar("State", BeamState, SampleState)


def take_sentences(state: State, rows: Int[Array, " R"]) -> State:
    """Returns the state of these sentences only, in this order; they may be fewer, or come twice.

    Args:
      state: Of beam search or sampling, between two calls of ``advance``.
      rows: int32; numbers of the sentences to keep.
    """
    return jax.tree.map(lambda leaf: leaf[rows] if leaf.ndim else leaf, state)


def prepare(
    cache: Any,
    limits: Limits | Array,
    hypotheses: int,
    max_length: int,
    prefix: Prefix | Array | None,
) -> tuple[Any, Int[Array, " B"], Int[Array, "B P"]]:
    """Returns the cache, limits and prefix of a new state, checked, in the types it keeps them in.

    Raises:
      UserError: An argument is out of range or has other axes than the others.
    """
    if max_length < 1:
        raise UserError(f"max_length must be at least 1: got {max_length}")
    limits = _integers(limits, "limits")
    if limits.ndim != 1 or not limits.size:
        raise UserError(
            f"limits must hold one number per sentence, of one at least: got shape {limits.shape}"
        )
    (batch,) = limits.shape
    prefix = jnp.zeros((batch, 0), jnp.int32) if prefix is None else _integers(prefix, "prefix")
    if prefix.ndim != 2 or prefix.shape[0] != batch:
        raise UserError(
            f"prefix must hold one row per sentence, shape [{batch}, tokens]: got {prefix.shape}"
        )
    cache = jax.tree.map(jnp.asarray, cache)
    check_cache(cache, batch, hypotheses)
    limits = jnp.clip(limits, 0, max_length).astype(jnp.int32)
    return cache, limits, prefix.astype(jnp.int32)


def _integers(values: Limits | Prefix | Array, name: str) -> Array:
    try:
        array = jnp.asarray(values)
    except (TypeError, ValueError):
        raise UserError(
            f"{name} must be an array of integers, or lists of equal length: got "
            f"{reprlib.repr(values)}"
        ) from None
    if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
        raise UserError(f"{name} must be integers: got dtype {array.dtype}")
    return array


def best_first(result: BeamResult, pad_id: int) -> BeamResult:
    """Returns the hypotheses sorted by score, with those that do not exist blanked."""
    scores, index = lax.top_k(result.scores, result.scores.shape[1])
    result = jax.tree.map(lambda rows: gather_beams(rows, index), result)
    exists = scores != -jnp.inf
    return result._replace(
        tokens=jnp.where(exists[:, :, None], result.tokens, pad_id),
        lengths=jnp.where(exists, result.lengths, 0),
    )
