"""Candidates: the one-token continuations that beam search chooses from at every step."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxformer.layout import expand_like
from jaxformer.search.state import Candidates, where_rows
from jaxformer.search.step_loop import log_probs_of

_BLOCK = 32  # values of a block of ``top_k``


def expand(
    logits: Float[Array, "B N V"],
    log_probs: Float[Array, "B N"],
    preferred: Float[Array, "B N V"],
    most: float = 0.0,
) -> Candidates:
    """Returns the best 2N candidates (1 if N = 1) of the hypotheses.

    It takes the top k per hypothesis, and then over hypotheses. For a single top-k, whose indices
    are divided by V, XLA would sort all N * V values. The first top-k uses raw scores, so that
    greedy search is exactly argmax.

    The choice is by ``preferred``: ``logits``, or others for forbidden and penalized tokens, which
    give log probabilities of at most ``most``. The result has the log probabilities of ``logits``.
    """
    batch, beams, vocabulary = logits.shape
    wanted = 2 * beams if beams > 1 else 1
    best, tokens = top_k(preferred, min(wanted, vocabulary))
    totals = log_probs[:, :, None] + log_probs_of(best, logits, most)
    _, index = lax.top_k(totals.reshape(batch, -1), wanted)
    if preferred is not logits:  # Otherwise the totals are the log probabilities.
        own = jnp.take_along_axis(logits, tokens, axis=2)
        own = log_probs[:, :, None] + log_probs_of(own, logits)
        totals = jnp.where(totals == -jnp.inf, -jnp.inf, own)
    return Candidates(
        log_probs=jnp.take_along_axis(totals.reshape(batch, -1), index, axis=1),
        tokens=jnp.take_along_axis(tokens.reshape(batch, -1), index, axis=1),
        parents=index // tokens.shape[-1],
    )


def take_first(candidates: Candidates, keep: Bool[Array, "B M"], size: int) -> Candidates:
    """Returns the first ``size`` candidates to keep, in their order."""
    # XLA's top-k of float32 values does not sort all of them.
    kept, index = lax.top_k(keep.astype(jnp.float32), size)
    first = jax.tree.map(lambda rows: jnp.take_along_axis(rows, index, axis=1), candidates)
    return dataclasses.replace(first, log_probs=jnp.where(kept > 0, first.log_probs, -jnp.inf))


def mask_finished(
    done: Bool[Array, " B"], before: Candidates, alive: Candidates, ended: Candidates, pad_id: int
) -> tuple[Candidates, Candidates]:
    """Returns both, but in sentences that are done hypotheses stay in place, and none ends."""
    unchanged = Candidates(
        log_probs=before.log_probs,
        tokens=jnp.full_like(alive.tokens, pad_id),
        parents=lax.broadcasted_iota(jnp.int32, alive.parents.shape, 1),
    )
    none = dataclasses.replace(ended, log_probs=jnp.full_like(ended.log_probs, -jnp.inf))
    return where_rows(done, (unchanged, none), (alive, ended))


def top_k(
    values: Float[Array, "*rows V"], k: int
) -> tuple[Float[Array, "*rows K"], Int[Array, "*rows K"]]:
    """Computes ``lax.top_k(values, k)`` by blocks; the order of equal values is the same.

    The k greatest values are in the k blocks with the greatest maxima, and equal values in the
    first of these blocks. Finding the maxima takes one pass that vectorizes well and leaves little
    to sort.
    """
    size = values.shape[-1]
    blocks = -(-size // _BLOCK)
    if blocks < 4 * k:
        best, places = lax.top_k(values, k)
        return best, places
    padding = [(0, 0)] * (values.ndim - 1) + [(0, blocks * _BLOCK - size)]
    table = jnp.pad(values, padding, constant_values=-jnp.inf)
    table = table.reshape(*values.shape[:-1], blocks, _BLOCK)
    _, chosen = lax.top_k(table.max(axis=-1), k)
    # Sort blocks by index, to keep the order of equal values. Counting is faster than XLA's sort.
    rank = (chosen[..., None] > chosen[..., None, :]).sum(axis=-1, dtype=jnp.int32)
    rank = rank[..., None, :]
    at_rank = rank == expand_like(jnp.arange(k, dtype=jnp.int32)[:, None], rank)
    chosen = (chosen[..., None, :] * at_rank.astype(jnp.int32)).sum(axis=-1, dtype=jnp.int32)
    left = jnp.take_along_axis(table, chosen[..., None], axis=-2)
    best, places = lax.top_k(left.reshape(*values.shape[:-1], -1), k)
    block = jnp.take_along_axis(chosen, places // _BLOCK, axis=-1)
    return best, block * _BLOCK + places % _BLOCK
