"""Beam search over any step function (section 6.1 of the paper), as one XLA program.

Each sentence has at most N *alive* hypotheses (without end of sentence, EOS) and at most N
*finished* ones. A step considers the 2N best one-token continuations of the alive hypotheses, by
log probability. Continuations that end in EOS compete with the finished hypotheses by score, the
log probability divided by the length penalty. The N best of the others stay alive. 2N candidates
are enough to keep N alive, since each alive hypothesis has only one continuation with EOS. A beam
of one considers only the best continuation, which is greedy search: argmax until EOS.

A sentence is done at its length limit, or earlier, when its best alive hypothesis could not
displace its worst finished one even if all further tokens had probability one. Stopping early
therefore never changes the result, including n-best lists. ``early_stop`` of
:class:`~jaxformer.search.settings.BeamSettings` has the rules of other toolkits, too. Sentences
that are done no longer change.

Ties go to the earlier candidate: an older finished hypothesis, then the continuation of the better
alive hypothesis, then the greater logit, then the smaller token id. Sentences are independent.

Diverse beam search (Vijayakumar et al. 2016) splits the beam into groups. Each group penalizes
tokens that earlier groups choose at the same step. Every group has its own finished hypotheses, and
a sentence is done when all its groups are.

:class:`~jaxformer.search.algorithm.BeamSearch` has the functions :func:`start`, :func:`prefill`,
:func:`advance` and :func:`finalize` as methods, which describe the arguments.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxformer.layout import map_rows, take_rows, zeros_beside
from jaxformer.search import step_loop
from jaxformer.search.beam_cache import gather_beams, reorder_cache
from jaxformer.search.candidates import choose, mask_finished
from jaxformer.search.constraints import constrain, number_sentences
from jaxformer.search.penalties import length_penalties
from jaxformer.search.settings import BeamSettings
from jaxformer.search.state import (
    BeamResult,
    BeamState,
    Candidates,
    MaxLengths,
    Prefix,
    best_first,
    prepare,
)
from jaxformer.search.step_loop import PrefillFn, StepFn, append, call, check_prefix, first, repeat


def start(
    settings: BeamSettings,
    cache: Any,
    max_lengths: MaxLengths,
    capacity: int,
    prefix: Prefix | None = None,
    keys: object = None,
    sentence_ids: Int[Array, " B"] | None = None,
    first_tokens: Int[Array, " B"] | None = None,
) -> BeamState:
    """Returns the state with one alive hypothesis per sentence or group, which is empty.

    ``keys`` is not used.
    """
    most = min(capacity, settings.max_length or capacity)
    cache, max_lengths, prefix = prepare(cache, max_lengths, settings.beam_size, most, prefix)
    none = zeros_beside(max_lengths, (settings.beam_size,), jnp.int32)
    tokens = zeros_beside(max_lengths, (settings.beam_size, capacity), jnp.int32) + settings.pad_id
    impossible = none.astype(jnp.float32) - jnp.inf
    # Each group starts with its own empty hypothesis.
    firsts = slice(None, None, settings.beam_size // settings.diversity_groups)
    return BeamState(
        step=jnp.zeros((), jnp.int32),
        max_lengths=max_lengths,
        prefix=prefix,
        sentence_ids=number_sentences(settings, prefix, max_lengths, sentence_ids),
        done=max_lengths == 0,
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
    """Returns the state after reading forced tokens in one pass."""
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
    """Returns the state after ``until`` tokens, or when every sentence is done."""
    check_prefix(step_fn, state.alive.tokens, state.cache, state.prefix, settings)
    return repeat(lambda state: step(settings, step_fn, state), state, until)


def step(settings: BeamSettings, step_fn: StepFn, state: BeamState) -> BeamState:
    """Takes one step: hypotheses of sentences that are not done get one more token."""
    logits, cache = call(step_fn, state.alive.tokens, state.cache, settings.eos_id)
    state = dataclasses.replace(state, cache=())
    state = map_rows(lambda _, *rows: _extend(settings, *rows), (), state, logits)
    return dataclasses.replace(state, cache=reorder_cache(cache, state.alive.parents))


def _extend(settings: BeamSettings, state: BeamState, logits: Float[Array, "B N V"]) -> BeamState:
    """Returns the state, without its cache, with one more token."""
    allowed = constrain(settings, logits, state.alive_tokens, state)
    length = state.step + 1
    at_limit = length >= state.max_lengths
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
    penalty_now, penalty_at_limit = penalties[length], take_rows(penalties, state.max_lengths)
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
    )


def merge_finished(finished: BeamResult, ended: BeamResult, groups: int) -> BeamResult:
    """Returns the best of the finished and newly ended hypotheses; their number stays the same."""
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
    """Returns the mask of sentences that may stop before their limit."""
    groups = (-1, settings.diversity_groups, settings.beam_size // settings.diversity_groups)
    best = alive.log_probs.reshape(groups).max(axis=2)
    worst = finished.scores.reshape(groups)[:, :, -1]
    if settings.early_stop == "never":
        return jnp.zeros(best.shape[0], jnp.bool_)
    bound = best / penalty_now
    if settings.early_stop == "proven":
        # No future score exceeds this bound: log probabilities only fall, penalties only grow.
        bound = best / penalty_at_limit[:, None]
    stop = bound <= worst
    if settings.early_stop == "full":
        stop |= worst > -jnp.inf
    return stop.all(axis=1)


def finalize(settings: BeamSettings, state: BeamState) -> BeamResult:
    """Returns the finished hypotheses, or the unfinished ones of sentences without any."""
    alive, length = state.alive, jnp.minimum(state.step, state.max_lengths)[:, None]
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
    capacity = state.alive_tokens.shape[2]
    return jnp.asarray(length_penalties(settings.penalty, settings.length_penalty, capacity))
