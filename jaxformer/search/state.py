"""States of a search between two steps, and results.

Axes: B sentences, N hypotheses per sentence, M candidates per sentence, P prefix tokens, T capacity
in tokens. Every array of a state has the leading axis B, or is a scalar.
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
from jaxformer.layout import shard_rows_like

# Callers may give lists and NumPy arrays, which become JAX arrays.
MaxLengths: TypeAlias = Int[Array, " B"] | Int[np.ndarray, " B"] | Sequence[int]
Prefix: TypeAlias = Int[Array, "B P"] | Int[np.ndarray, "B P"] | Sequence[Sequence[int]]


class BeamResult(NamedTuple):
    """N hypotheses of each sentence, best first.

    A hypothesis that does not exist has score and log probability -inf, length 0 and only padding.
    """

    tokens: Int[Array, "B N T"]  # int32; without BOS, with EOS, padded on the right
    lengths: Int[Array, "B N"]  # int32; number of tokens, EOS included
    scores: Float[Array, "B N"]  # float32; log probability / length penalty
    log_probs: Float[Array, "B N"]  # float32; the step function's, whatever the settings


class ContrastiveScores(NamedTuple):
    """Scores of tokens by the contrast of two models, instead of logits, [B, N, V], all float32."""

    scores: Float[Array, "*tokens"]  # log p_expert - log p_amateur; -inf for impossible tokens
    expert: Float[Array, "*tokens"]  # log p_expert
    alpha: Float[Array, ""]  # least probability, as a fraction of the expert's largest


# The output of a step function: logits, or scores that are summed as they are.
TokenScores: TypeAlias = Float[Array, "B *N V"] | ContrastiveScores


def scores_of(output: TokenScores) -> Float[Array, "B *N V"]:
    """Returns the logits, or the scores of a contrast."""
    if isinstance(output, ContrastiveScores):
        return output.scores
    return output


@flax.struct.dataclass
class SearchState:
    """Fields that the states of all searches have."""

    step: Int[Array, ""]  # int32; tokens decoded so far
    max_lengths: Int[Array, " B"]  # int32; maximum number of tokens, at most T
    prefix: Int[Array, "B P"]  # int32; tokens to start with; padding leaves a position free
    sentence_ids: Int[Array, " B"]  # int32; for constraints and random keys
    done: Bool[Array, " B"]  # the sentence no longer changes
    tokens: Int[Array, "B N T"]  # int32; of all samples or alive hypotheses, padded on the right
    newest: Int[Array, "B N"]  # int32; the next input of the step function
    # float32; of all samples or alive hypotheses; may be -inf; of a contrast, the sum of its scores
    log_probs: Float[Array, "B N"]
    # float32; log probabilities under the expert of a contrast; None without a contrast
    expert_log_probs: Float[Array, "B N"] | None
    n_best: Int[Array, ""]  # int32; hypotheses that the caller needs, 0 for all
    cache: Any  # the step function's cache

    @property
    def own_log_probs(self) -> Float[Array, "B N"]:
        """Log probabilities of all samples or alive hypotheses, of a contrast the expert's."""
        return self.log_probs if self.expert_log_probs is None else self.expert_log_probs

    def reorder(self, cache: Any) -> Any:
        """Returns the cache with the arrays of each hypothesis taken from the one it extends."""
        return cache


@flax.struct.dataclass
class BeamState(SearchState):
    parents: Int[Array, "B N"]  # int32; the hypothesis that each one extended in the last step
    finished: BeamResult  # [B, N]; the best finished hypotheses of each group so far, best first

    def reorder(self, cache: Any) -> Any:
        def reorder(leaf: Array) -> Array:
            is_shared = leaf.ndim == 0 or leaf.shape[1] == 1
            if is_shared:
                return leaf
            return gather_beams(leaf, self.parents)

        return jax.tree.map(reorder, cache)


@flax.struct.dataclass
class SampleState(SearchState):
    keys: Key[Array, " B"]  # one per sentence, the same at every step
    lengths: Int[Array, "B N"]  # int32; number of tokens; outdated until the step after a prefill
    finished: Bool[Array, "B N"]  # with EOS, or because no token is possible


State = TypeVar("State", bound=SearchState)
Tree = TypeVar("Tree")


def take_sentences(state: State, indices: Int[Array, " R"]) -> State:
    """Returns the state of some sentences, in the given order; a sentence may occur twice.

    Args:
      state: State of a search, between two calls of ``advance``.
      indices: Indices of the sentences in the batch, int32.
    """

    def take(leaf: Array) -> Array:
        return leaf[indices] if leaf.ndim else leaf

    return jax.tree.map(take, state)


def initial_fields(
    cache: Any,
    max_lengths: MaxLengths | Array,
    hypotheses: int,
    capacity: int,
    prefix: Prefix | Array | None,
    sentence_ids: Int[Array, " B"] | None = None,
) -> dict[str, Any]:
    """Returns fields of :class:`SearchState`, from checked and converted arguments."""
    if capacity < 1:
        raise UserError(f"capacity must be at least 1: got {capacity}")

    max_lengths = _integers(max_lengths, "max_lengths")
    if max_lengths.ndim != 1 or not max_lengths.size:
        raise UserError(
            "max_lengths must hold one number per sentence, of one at least: got shape "
            f"{max_lengths.shape}"
        )
    (batch,) = max_lengths.shape

    if prefix is None:
        prefix = jnp.zeros((batch, 0), jnp.int32)
    prefix = _integers(prefix, "prefix")
    if prefix.ndim != 2 or prefix.shape[0] != batch:
        raise UserError(
            f"prefix must hold one row per sentence, shape [{batch}, tokens]: got {prefix.shape}"
        )

    cache = jax.tree.map(jnp.asarray, cache)
    _check_cache(cache, batch, hypotheses)

    # Sentences are sharded like the first array with explicit sharding.
    max_lengths = jnp.clip(max_lengths, 0, capacity)
    max_lengths = max_lengths.astype(jnp.int32)
    max_lengths = shard_rows_like(
        max_lengths,
        max_lengths,
        prefix,
        *jax.tree.leaves(cache),
    )

    ids = jnp.arange(batch) if sentence_ids is None else jnp.asarray(sentence_ids)
    return {
        "step": jnp.zeros((), jnp.int32),
        "max_lengths": max_lengths,
        "prefix": shard_rows_like(prefix.astype(jnp.int32), max_lengths),
        "sentence_ids": shard_rows_like(ids.astype(jnp.int32), max_lengths),
        "done": max_lengths == 0,
        "cache": cache,
    }


def _check_cache(cache: Any, batch: int, hypotheses: int) -> None:
    """Checks that arrays belong to hypotheses or sentences, or are scalars."""
    expected = [(batch, hypotheses), (batch, 1)]
    for path, leaf in jax.tree_util.tree_leaves_with_path(cache):
        if leaf.ndim and leaf.shape[:2] not in expected:
            raise UserError(
                f"cache{jax.tree_util.keystr(path)} must lead with axes [batch, beams] = "
                f"[{batch}, {hypotheses}], with [{batch}, 1] if the beams share it, or be a "
                f"scalar: got shape {leaf.shape}"
            )


def _integers(values: MaxLengths | Prefix | Array, name: str) -> Array:
    try:
        array = jnp.asarray(values)
    except (TypeError, ValueError):
        raise UserError(
            f"{name} must be an array of integers, or lists of equal length: got "
            f"{reprlib.repr(values)}"
        ) from None

    # An empty list becomes an array of floats.
    if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
        raise UserError(f"{name} must be integers: got dtype {array.dtype}")
    return array


def best_first(result: BeamResult, pad_id: int) -> BeamResult:
    """Returns the hypotheses sorted by score, with empty tokens if they do not exist."""
    hypotheses = result.scores.shape[1]
    scores, index = lax.top_k(result.scores, hypotheses)
    result = jax.tree.map(lambda rows: gather_beams(rows, index), result)

    exists = scores != -jnp.inf
    tokens = jnp.where(exists[:, :, None], result.tokens, pad_id)
    lengths = jnp.where(exists, result.lengths, 0)
    return result._replace(tokens=tokens, lengths=lengths)


def where_rows(
    rows: Bool[Array, " B"],
    true: Tree,
    false: Tree,
) -> Tree:
    """Returns the rows of one tree of arrays where ``rows`` is True, and of the other elsewhere."""

    def where(true: Array, false: Array) -> Array:
        other_axes = range(1, false.ndim)
        is_true = jnp.expand_dims(rows, other_axes)
        return jnp.where(is_true, true, false)

    return jax.tree.map(where, true, false)


def gather_beams(array: Array, beams: Int[Array, "B M"]) -> Array:
    """Returns ``array[b, beams[b, m]]`` for every b and m: [B, N, ...] to [B, M, ...]."""

    def gather(rows: Array, index: Array) -> Array:
        return rows.at[index].get(mode="promise_in_bounds")

    return jax.vmap(gather)(array, beams)
