"""Candidates: the one-token continuations that beam search chooses from at every step."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxformer.search.settings import BeamSettings
from jaxformer.search.state import Candidates
from jaxformer.search.step_loop import log_probs_of
from jaxformer.search.top_k import top_k


def choose(
    settings: BeamSettings,
    logits: Float[Array, "B N V"],
    allowed: Float[Array, "B N V"],
    log_probs: Float[Array, "B N"],
    at_limit: Bool[Array, " B"],
) -> tuple[Candidates, Candidates]:
    """Returns the N best candidates that stay alive, and at most N that end, of each sentence.

    Groups choose one after the other. Each chooses among the continuations of its own hypotheses,
    N / G of all N.

    Args:
      settings: Settings of the search.
      logits: Scores of the next token, float32.
      allowed: The same scores with -inf for forbidden tokens.
      log_probs: Log probabilities of the hypotheses so far.
      at_limit: True for sentences whose limit this token reaches.
    """
    most = math.inf if settings.constraints else 0.0
    if settings.diversity_groups == 1:
        return split(settings, expand(logits, log_probs, allowed, most), at_limit)
    size = settings.beam_size // settings.diversity_groups
    sentences = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
    times_chosen = jnp.zeros_like(logits[:, 0])
    groups = []
    for first in range(0, settings.beam_size, size):
        group = slice(first, first + size)
        preferred = allowed[:, group] - settings.diversity_penalty * times_chosen[:, None]
        candidates = expand(logits[:, group], log_probs[:, group], preferred, most)
        alive, ended = split(settings, candidates, at_limit)
        exists = (alive.log_probs > -jnp.inf).astype(jnp.float32)
        times_chosen = times_chosen.at[sentences, alive.tokens].add(exists)
        groups.append([dataclasses.replace(c, parents=c.parents + first) for c in (alive, ended)])
    alive, ended = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *groups)
    return alive, ended


def expand(
    logits: Float[Array, "B N V"],
    log_probs: Float[Array, "B N"],
    preferred: Float[Array, "B N V"],
    most: float = 0.0,
) -> Candidates:
    """Returns the best 2N candidates (1 if N = 1) of the hypotheses.

    It takes the top k per hypothesis, and then over hypotheses. For a single top-k, whose indices
    are divided by V, XLA would sort all N * V values. The first top-k uses raw logits, so that
    greedy search is exactly argmax.

    Args:
      logits: Scores of the next token, float32, which log probabilities are computed from.
      log_probs: Log probabilities of the hypotheses so far.
      preferred: Scores that the choice is based on: ``logits``, or others with -inf for forbidden
        tokens and lower scores for penalized tokens.
      most: Upper bound of the log probabilities that the choice is based on; infinity if
        ``preferred`` may exceed the logits.
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


def split(
    settings: BeamSettings, candidates: Candidates, at_limit: Bool[Array, " B"]
) -> tuple[Candidates, Candidates]:
    """Returns the first N of the 2N candidates that stay alive, and the first N that end."""
    size = settings.beam_size // settings.diversity_groups
    finished = candidates.tokens == settings.eos_id
    if settings.unfinished == "compete":
        finished |= at_limit[:, None]
    ends = finished
    if settings.ends_within == "N":
        ends &= jnp.arange(finished.shape[1])[None] < size
    return _first(candidates, ~finished, size), _first(candidates, ends, size)


def _first(candidates: Candidates, keep: Bool[Array, "B M"], size: int) -> Candidates:
    """Returns the first ``size`` candidates to keep, in their order."""
    # XLA's top-k of float32 values does not sort all of them.
    kept, index = lax.top_k(keep.astype(jnp.float32), size)

    def take(values: Array) -> Array:
        return jnp.take_along_axis(values, index, axis=1)

    return Candidates(
        log_probs=jnp.where(kept > 0, take(candidates.log_probs), -jnp.inf),
        tokens=take(candidates.tokens),
        parents=take(candidates.parents),
    )


def mask_finished(
    done: Bool[Array, " B"],
    before: Candidates,
    alive: Candidates,
    ended: Candidates,
    pad_id: int,
) -> tuple[Candidates, Candidates]:
    """Returns both, but in sentences that are done hypotheses stay in place, and none ends."""
    finished = done[:, None]
    in_place = jnp.arange(alive.parents.shape[1], dtype=jnp.int32)[None]
    alive = Candidates(
        log_probs=jnp.where(finished, before.log_probs, alive.log_probs),
        tokens=jnp.where(finished, pad_id, alive.tokens),
        parents=jnp.where(finished, in_place, alive.parents),
    )
    return alive, dataclasses.replace(
        ended, log_probs=jnp.where(finished, -jnp.inf, ended.log_probs)
    )
