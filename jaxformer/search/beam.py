"""Beam search over any step function (section 6.1 of the paper), as one XLA program.

Per sentence, at most N hypotheses are *alive* (without end of sentence, EOS) and at most N are
*finished*. One step takes the 2N best one-token continuations of the alive ones, by log
probability. Those that end in EOS compete with the finished ones by score, which is the log
probability divided by the length penalty; the N best of the others stay alive. 2N are enough
for N to survive, since each alive hypothesis has only one continuation that ends. A beam of one
takes only the best continuation, so that it is greedy search: argmax until EOS.

A sentence is done at its length limit, or earlier, when its best alive hypothesis could not
displace its worst finished one even if everything to come had probability one. Stopping early
therefore never changes the result, n-best lists included. From then on nothing of it changes.
(By default; ``early_stop`` of :class:`~jaxformer.search.settings.BeamSettings` has other toolkits'
ways too.)

Ties go to what was found first: an older finished hypothesis, then the continuation of the better
alive one, then the greater logit, then the smaller token id. Sentences never look at one another.

A diverse beam search (Vijayakumar et al. 2016) is several small ones, the groups, that keep out of
each other's way: each avoids tokens that earlier groups take at the same step. Every group keeps
its own finished hypotheses, and a sentence is done when all its groups are.

:class:`~jaxformer.search.algorithm.BeamSearch` has the verbs :func:`start`, :func:`advance` and
:func:`finalize` as methods; their arguments are described there.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxformer.layout import take_rows, zeros_beside
from jaxformer.search import step_loop
from jaxformer.search.beam_cache import gather_beams, reorder_cache
from jaxformer.search.candidates import choose, mask_finished
from jaxformer.search.constraints import constrain, number_rows
from jaxformer.search.penalties import length_penalties
from jaxformer.search.settings import BeamSettings
from jaxformer.search.state import (
    BeamResult,
    BeamState,
    Candidates,
    Limits,
    Prefix,
    best_first,
    prepare,
)
from jaxformer.search.step_loop import PrefillFn, StepFn, append, call, check_prefix, first, repeat


def start(
    settings: BeamSettings,
    cache: Any,
    limits: Limits,
    max_length: int,
    prefix: Prefix | None = None,
    keys: object = None,
    rows: Int[Array, " B"] | None = None,
    first_tokens: Int[Array, " B"] | None = None,
) -> BeamState:
    """Returns one alive hypothesis per sentence, the empty one, and none finished.

    Random ``keys`` are not used.
    """
    most = min(max_length, settings.max_length or max_length)
    cache, limits, prefix = prepare(cache, limits, settings.beam_size, most, prefix)
    none = zeros_beside(limits, (settings.beam_size,), jnp.int32)
    tokens = zeros_beside(limits, (settings.beam_size, max_length), jnp.int32) + settings.pad_id
    impossible = none - jnp.float32(jnp.inf)
    # Each group starts with an empty hypothesis of its own.
    firsts = slice(None, None, settings.beam_size // settings.diversity_groups)
    return BeamState(
        step=jnp.zeros((), jnp.int32),
        limits=limits,
        prefix=prefix,
        rows=number_rows(settings, prefix, limits, rows),
        done=limits == 0,
        alive=Candidates(
            log_probs=impossible.at[:, firsts].set(0.0),
            tokens=none + first(settings, first_tokens),
            parents=none,
        ),
        alive_tokens=tokens,
        finished=BeamResult(tokens=tokens, lengths=none, scores=impossible, log_probs=impossible),
        cache=cache,
    )


def prefill(settings: BeamSettings, prefill_fn: PrefillFn, state: BeamState) -> BeamState:
    """Returns the state after the forced tokens that all sentences share the position of."""
    if not state.prefix.shape[1]:
        return state
    read = step_loop.prefill(settings, prefill_fn, state, state.alive.tokens[:, :1])
    alive, width = state.alive, min(state.prefix.shape[1], state.alive_tokens.shape[2])
    return dataclasses.replace(
        state,
        step=read.length,
        alive=dataclasses.replace(
            alive,
            log_probs=alive.log_probs + read.log_probs[:, None],
            tokens=jnp.broadcast_to(read.newest[:, None], alive.tokens.shape),
        ),
        alive_tokens=state.alive_tokens.at[:, :, :width].set(read.tokens[:, None, :width]),
        cache=read.cache,
    )


def advance(
    settings: BeamSettings, step_fn: StepFn, state: BeamState, until: int | Int[Array, ""]
) -> BeamState:
    """Returns the state when hypotheses have ``until`` tokens, or every sentence is done."""
    check_prefix(step_fn, state.alive.tokens, state.cache, state.prefix, settings)
    return repeat(lambda state: step(settings, step_fn, state), state, until)


def step(settings: BeamSettings, step_fn: StepFn, state: BeamState) -> BeamState:
    """Takes one step: hypotheses of sentences that are not done get one token more."""
    logits, cache = call(step_fn, state.alive.tokens, state.cache, settings.eos_id)
    allowed = constrain(settings, logits, state.alive_tokens, state)
    length = state.step + 1
    at_limit = length >= state.limits
    alive, ended = choose(settings, logits, allowed, state.alive.log_probs, at_limit)
    alive, ended = mask_finished(state.done, state.alive, alive, ended, settings.pad_id)
    penalties = _penalties(settings, state)
    finished = merge_finished(
        state.finished,
        BeamResult(
            tokens=append(
                gather_beams(state.alive_tokens, ended.parents), ended.tokens, state.step
            ),
            lengths=jnp.full_like(ended.tokens, length),
            scores=ended.log_probs / penalties[length],
            log_probs=ended.log_probs,
        ),
        settings.diversity_groups,
    )
    penalty_now, penalty_at_limit = penalties[length], take_rows(penalties, state.limits)
    stopped = can_stop(settings, alive, finished, penalty_now, penalty_at_limit)
    return dataclasses.replace(
        state,
        step=length,
        done=state.done | at_limit | stopped,
        alive=alive,
        alive_tokens=append(
            gather_beams(state.alive_tokens, alive.parents), alive.tokens, state.step
        ),
        finished=finished,
        cache=reorder_cache(cache, alive.parents),
    )


def merge_finished(finished: BeamResult, ended: BeamResult, groups: int) -> BeamResult:
    """Returns the best of the finished hypotheses and those that just ended, as many per group."""
    batch, size = finished.scores.shape[0], finished.scores.shape[1] // groups

    def merge(old: Array, new: Array) -> Array:
        rows = (batch * groups, size, *old.shape[2:])
        return jnp.concatenate([old.reshape(rows), new.reshape(rows)], axis=1)

    merged = jax.tree.map(merge, finished, ended)
    _, index = lax.top_k(merged.scores, size)
    return jax.tree.map(
        lambda rows, old: gather_beams(rows, index).reshape(old.shape), merged, finished
    )


def can_stop(
    settings: BeamSettings,
    alive: Candidates,
    finished: BeamResult,
    penalty_now: Float[Array, ""],
    penalty_at_limit: Float[Array, " B"],
) -> Bool[Array, " B"]:
    """Returns which sentences may stop before their limits, given what is alive and finished."""
    groups = (-1, settings.diversity_groups, settings.beam_size // settings.diversity_groups)
    best = alive.log_probs.reshape(groups).max(axis=2)
    worst = finished.scores.reshape(groups)[:, :, -1]
    if settings.early_stop == "never":
        return jnp.zeros(best.shape[0], jnp.bool_)
    bound = best / penalty_now
    if settings.early_stop == "proven":
        # No score still to come exceeds this: log probabilities only fall, penalties only grow.
        bound = best / penalty_at_limit[:, None]
    stop = bound <= worst
    if settings.early_stop == "full":
        stop |= worst > -jnp.inf
    return stop.all(axis=1)


def finalize(settings: BeamSettings, state: BeamState) -> BeamResult:
    """Returns the finished hypotheses, or those alive at the limit if there are none."""
    alive, length = state.alive, jnp.minimum(state.step, state.limits)[:, None]
    unfinished = BeamResult(
        tokens=state.alive_tokens,
        lengths=jnp.broadcast_to(length, alive.tokens.shape),
        scores=alive.log_probs / take_rows(_penalties(settings, state), length),
        log_probs=alive.log_probs,
    )
    none_finished = (state.finished.scores == -jnp.inf).all(axis=1)

    def pick(unfinished: Array, finished: Array) -> Array:
        return jnp.where(
            jnp.expand_dims(none_finished, range(1, finished.ndim)), unfinished, finished
        )

    return best_first(jax.tree.map(pick, unfinished, state.finished), settings.pad_id)


def _penalties(settings: BeamSettings, state: BeamState) -> Array:
    room = state.alive_tokens.shape[2]
    return jnp.asarray(length_penalties(settings.penalty, settings.length_penalty, room))
