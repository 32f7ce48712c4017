"""The part of a step in which beam search chooses: which continuations go on, and which end."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxformer.search.rules import Rules
from jaxformer.search.state import Candidates
from jaxformer.search.stepping import log_probs_of
from jaxformer.search.top_k import top_k


def choose(
    rules: Rules,
    logits: Float[Array, "B N V"],
    allowed: Float[Array, "B N V"],
    log_probs: Float[Array, "B N"],
    at_limit: Bool[Array, " B"],
) -> tuple[Candidates, Candidates]:
    """The N best continuations that go on, and at most N that end, of each sentence.

    Groups choose one after the other, each among its own hypotheses: rows ``g * N / G`` to
    ``(g + 1) * N / G`` of all N.

    Args:
      rules: Beams, groups, and who may end.
      logits: Of the next token, float32.
      allowed: The same with -inf for what is forbidden.
      log_probs: Of the hypotheses so far.
      at_limit: The sentence gets no token after this one.
    """
    if rules.diversity_groups == 1:
        return split(rules, expand(logits, log_probs, allowed), at_limit)
    size = rules.beam_size // rules.diversity_groups
    sentences = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
    times_chosen = jnp.zeros_like(logits[:, 0])
    parts = []
    for first in range(0, rules.beam_size, size):
        group = slice(first, first + size)
        preferred = allowed[:, group] - rules.diversity_penalty * times_chosen[:, None]
        candidates = expand(logits[:, group], log_probs[:, group], preferred)
        alive, ended = split(rules, candidates, at_limit)
        exists = (alive.log_probs > -jnp.inf).astype(jnp.float32)
        times_chosen = times_chosen.at[sentences, alive.tokens].add(exists)
        parts.append([dataclasses.replace(c, parents=c.parents + first) for c in (alive, ended)])
    alive, ended = jax.tree.map(lambda *part: jnp.concatenate(part, axis=1), *parts)
    return alive, ended


def expand(
    logits: Float[Array, "B N V"],
    log_probs: Float[Array, "B N"],
    preferred: Float[Array, "B N V"],
) -> Candidates:
    """The best 2N one-token continuations (1 if N = 1) of hypotheses with these log probabilities.

    Top-k per hypothesis, then over hypotheses: XLA sorts all N * V when asked in one go, since
    it must then divide the indices by V. On raw logits, so that greedy search is exactly argmax.

    Args:
      logits: Of the next token, float32: log probabilities are theirs.
      log_probs: Of the hypotheses so far.
      preferred: What is chosen by: the logits, or the same with -inf for what is forbidden, and
        less for what is disfavoured.
    """
    batch, beams, vocabulary = logits.shape
    wanted = 2 * beams if beams > 1 else 1
    best, tokens = top_k(preferred, min(wanted, vocabulary))
    totals = log_probs[:, :, None] + log_probs_of(best, logits)
    _, index = lax.top_k(totals.reshape(batch, -1), wanted)
    if preferred is not logits:  # else the totals are the log probabilities
        own = jnp.take_along_axis(logits, tokens, axis=2)
        own = log_probs[:, :, None] + log_probs_of(own, logits)
        totals = jnp.where(totals == -jnp.inf, -jnp.inf, own)
    return Candidates(
        log_probs=jnp.take_along_axis(totals.reshape(batch, -1), index, axis=1),
        tokens=jnp.take_along_axis(tokens.reshape(batch, -1), index, axis=1),
        parents=index // tokens.shape[-1],
    )


def split(
    rules: Rules, candidates: Candidates, at_limit: Bool[Array, " B"]
) -> tuple[Candidates, Candidates]:
    """The first N of the 2N candidates that go on, and the first N of those that end."""
    size = rules.beam_size // rules.diversity_groups
    over = candidates.tokens == rules.eos_id
    if rules.unfinished == "compete":
        over |= at_limit[:, None]
    ends = over
    if rules.ends_within == "N":
        ends &= jnp.arange(over.shape[1]) < size
    return _first(candidates, ~over, size), _first(candidates, ends, size)


def _first(candidates: Candidates, keep: Bool[Array, "B M"], size: int) -> Candidates:
    """The first candidates to keep, in their order; as float32, which top-k need not sort."""
    kept, index = lax.top_k(keep.astype(jnp.float32), size)

    def take(values: Array) -> Array:
        return jnp.take_along_axis(values, index, axis=1)

    return Candidates(
        log_probs=jnp.where(kept > 0, take(candidates.log_probs), -jnp.inf),
        tokens=take(candidates.tokens),
        parents=take(candidates.parents),
    )


def freeze(
    done: Bool[Array, " B"],
    before: Candidates,
    alive: Candidates,
    ended: Candidates,
    pad_id: int,
) -> tuple[Candidates, Candidates]:
    """For sentences that are over: alive hypotheses stay in place, and none ends."""
    over = done[:, None]
    in_place = jnp.arange(alive.parents.shape[1], dtype=jnp.int32)[None]
    alive = Candidates(
        log_probs=jnp.where(over, before.log_probs, alive.log_probs),
        tokens=jnp.where(over, pad_id, alive.tokens),
        parents=jnp.where(over, in_place, alive.parents),
    )
    return alive, dataclasses.replace(ended, log_probs=jnp.where(over, -jnp.inf, ended.log_probs))
