"""Beam search over any step function (section 6.1 of the paper), as one XLA program.

Per sentence, at most N hypotheses are *alive* (without end of sentence, EOS) and at most N are
*finished*. One step takes the 2N best one-token continuations of the alive ones, by log
probability. Those that end in EOS compete with the finished ones by score, which is the log
probability divided by the length penalty; the N best of the others stay alive. 2N are enough
for N to survive, since each alive hypothesis has only one continuation that ends. A beam of one
takes only the best continuation, so that it is greedy search: argmax until EOS.

A sentence is over at its length limit, or earlier, when its best alive hypothesis could not
displace its worst finished one even if everything to come had probability one. Stopping early
therefore never changes the result, n-best lists included. From then on nothing of it changes.

Ties go to what was found first: an older finished hypothesis, then the continuation of the better
alive one, then the greater logit, then the smaller token id. Sentences never look at one another.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxformer.errors import UserError
from jaxformer.search.cache import check_cache, gather_beams, reorder_cache
from jaxformer.search.penalties import gnmt_penalty
from jaxformer.search.state import BeamResult, BeamState, Candidates, Rules, initial_state

StepFn: TypeAlias = Callable[[Int[Array, "B N"], Any], tuple[Float[Array, "B N V"], Any]]

# Steps of one scan, which is one round of the outer loop.
STEPS_PER_CHUNK = 8


def beam_search(
    step_fn: StepFn,
    cache: Any,
    *,
    batch_size: int,
    beam_size: int,
    max_length: int,
    limits: Int[Array, " B"],
    length_penalty: float,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    early_stop: bool = True,
) -> BeamResult:
    """The best hypotheses under ``step_fn`` that beam search finds; greedy with ``beam_size=1``.

    Works inside the caller's ``jit`` and ``vmap``; outside, wrap it in ``jax.jit`` to compile once.
    Hypotheses that reach the limit without EOS are returned only for sentences that have no
    finished hypothesis at all.

    >>> log_probs = jnp.log(jnp.array([[0.0, 0.4, 0.6], [0.0, 0.9, 0.1], [0.0, 0.5, 0.5]]))
    >>> step_fn = lambda tokens, cache: (log_probs[tokens], cache)  # a Markov chain; 1 is EOS
    >>> result = beam_search(
    ...     step_fn, (), batch_size=1, beam_size=2, max_length=4, limits=jnp.array([4]),
    ...     length_penalty=0.0, bos_id=0, eos_id=1, pad_id=0)
    >>> result.tokens[0].tolist()
    [[1, 0, 0, 0], [2, 1, 0, 0]]

    Args:
      step_fn: ``(tokens [B, N] int32, cache) -> (logits [B, N, V], cache)``: the newest token of
        each hypothesis, BOS at first, to scores of the next one. Logits of any float dtype are
        normalised in float32; -inf means impossible; V is at least 2.
      cache: What ``step_fn`` needs to remember: any pytree, kept in structure, shapes and dtypes.
        Arrays lead with axes ``[B, N]`` and follow their hypotheses when these move; arrays that
        lead with ``[B, 1]`` are shared by the hypotheses of a sentence, and scalars by all: these
        are never copied or reordered.
      batch_size: Sentences, B.
      beam_size: Hypotheses kept per sentence, N.
      max_length: Room for tokens, EOS included, T.
      limits: The most tokens that each sentence may get, EOS included; more than ``max_length``
        counts as ``max_length``. A sentence with limit 0 costs no step and comes out empty.
      length_penalty: alpha of :func:`~jaxformer.search.penalties.gnmt_penalty`, 0 or more.
      bos_id: Token that starts every hypothesis; not part of the result.
      eos_id: Token that ends a hypothesis.
      pad_id: Fills the result after EOS; also fed to ``step_fn`` for sentences that are over.
      early_stop: False decodes every sentence to its limit: the same result, later.

    Returns:
      The N best hypotheses per sentence.

    Raises:
      UserError: An argument is out of range, or the cache or the logits have other axes.
    """
    _check_arguments(batch_size, beam_size, max_length, limits, length_penalty)
    cache = jax.tree.map(jnp.asarray, cache)
    check_cache(cache, batch_size, beam_size)
    rules = Rules(
        limits=jnp.clip(limits, 0, max_length).astype(jnp.int32),
        # In float64 on the host, so that rounding never lets the penalty fall with the length.
        penalties=jnp.asarray(gnmt_penalty(np.arange(max_length + 1), length_penalty), jnp.float32),
        eos_id=eos_id,
        pad_id=pad_id,
        early_stop=early_stop,
    )

    def advance_chunk(state: BeamState) -> BeamState:
        def step(state: BeamState, _: None) -> tuple[BeamState, None]:
            # A loop of at most one round, since the branches of lax.cond would copy the cache.
            end = state.step + 1
            return lax.while_loop(
                lambda state: ~state.done.all() & (state.step < end),
                lambda state: advance(state, step_fn, rules),
                state,
            ), None

        return lax.scan(step, state, length=STEPS_PER_CHUNK)[0]

    state = initial_state(cache, rules.limits, beam_size, max_length, bos_id, pad_id)
    state = lax.while_loop(lambda state: ~state.done.all(), advance_chunk, state)
    return finalise(state, rules)


def advance(state: BeamState, step_fn: StepFn, rules: Rules) -> BeamState:
    """One step: every sentence that is not over gets its hypotheses continued by one token."""
    logits, cache = step_fn(state.alive.tokens, state.cache)
    _check_logits(logits, state.alive.tokens.shape, rules.eos_id)
    length = state.step + 1
    alive, ended = split(expand(logits, state.alive.log_probs), logits.shape[1], rules.eos_id)
    alive, ended = freeze(state, alive, ended, rules.pad_id)
    ended_tokens = append(gather_beams(state.alive_tokens, ended.parents), ended.tokens, state.step)
    finished = merge_finished(
        state.finished,
        BeamResult(
            tokens=ended_tokens,
            lengths=jnp.full_like(ended.tokens, length),
            scores=ended.log_probs / rules.penalties[length],
            log_probs=ended.log_probs,
        ),
    )
    # No score still to come exceeds this: log probabilities only fall, penalties only grow.
    bound = alive.log_probs[:, 0] / rules.penalties[rules.limits]
    decided = (bound <= finished.scores[:, -1]) & rules.early_stop
    return BeamState(
        step=length,
        done=state.done | (length >= rules.limits) | decided,
        alive=alive,
        alive_tokens=append(
            gather_beams(state.alive_tokens, alive.parents), alive.tokens, state.step
        ),
        finished=finished,
        cache=reorder_cache(cache, alive.parents),
    )


def expand(logits: Float[Array, "B N V"], log_probs: Float[Array, "B N"]) -> Candidates:
    """The best 2N one-token continuations (1 if N = 1) of hypotheses with these log probabilities.

    Top-k per hypothesis, then over hypotheses: XLA sorts all N * V when asked in one go, since
    it must then divide the indices by V. On raw logits, so that greedy search is exactly argmax.
    """
    batch, beams, vocabulary = logits.shape
    wanted = 2 * beams if beams > 1 else 1
    logits = logits.astype(jnp.float32)
    best, tokens = lax.top_k(logits, min(wanted, vocabulary))
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    # Rounding must not yield a probability above one, nor an impossible token NaN (-inf + inf).
    best = jnp.where(best == -jnp.inf, -jnp.inf, jnp.minimum(best - total, 0.0))
    best, index = lax.top_k((log_probs[:, :, None] + best).reshape(batch, -1), wanted)
    return Candidates(
        log_probs=best,
        tokens=jnp.take_along_axis(tokens.reshape(batch, -1), index, axis=1),
        parents=index // tokens.shape[-1],
    )


def split(candidates: Candidates, beam_size: int, eos_id: int) -> tuple[Candidates, Candidates]:
    """The best N of the candidates that go on, and the best N of those that end in EOS."""
    ends = candidates.tokens == eos_id

    def best(keep: Bool[Array, "B M"]) -> Candidates:
        log_probs = jnp.where(keep, candidates.log_probs, -jnp.inf)
        log_probs, index = lax.top_k(log_probs, beam_size)
        return Candidates(
            log_probs=log_probs,
            tokens=jnp.take_along_axis(candidates.tokens, index, axis=1),
            parents=jnp.take_along_axis(candidates.parents, index, axis=1),
        )

    return best(~ends), best(ends)


def freeze(
    state: BeamState, alive: Candidates, ended: Candidates, pad_id: int
) -> tuple[Candidates, Candidates]:
    """For sentences that are over: alive hypotheses stay in place, and none ends."""
    over = state.done[:, None]
    in_place = jnp.arange(alive.parents.shape[1], dtype=jnp.int32)[None]
    alive = Candidates(
        log_probs=jnp.where(over, state.alive.log_probs, alive.log_probs),
        tokens=jnp.where(over, pad_id, alive.tokens),
        parents=jnp.where(over, in_place, alive.parents),
    )
    return alive, dataclasses.replace(ended, log_probs=jnp.where(over, -jnp.inf, ended.log_probs))


def merge_finished(finished: BeamResult, ended: BeamResult) -> BeamResult:
    """The N best by score of the finished hypotheses and those that just ended."""
    merged = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), finished, ended)
    _, index = lax.top_k(merged.scores, finished.scores.shape[1])
    return jax.tree.map(lambda rows: gather_beams(rows, index), merged)


def finalise(state: BeamState, rules: Rules) -> BeamResult:
    """The finished hypotheses; where there are none, those alive at the limit."""
    alive, limits = state.alive, rules.limits[:, None]
    unfinished = BeamResult(
        tokens=state.alive_tokens,
        lengths=jnp.broadcast_to(limits, alive.tokens.shape),
        scores=alive.log_probs / rules.penalties[limits],
        log_probs=alive.log_probs,
    )
    none_finished = state.finished.scores[:, 0] == -jnp.inf

    def choose(unfinished: Array, finished: Array) -> Array:
        return jnp.where(
            jnp.expand_dims(none_finished, range(1, finished.ndim)), unfinished, finished
        )

    result = jax.tree.map(choose, unfinished, state.finished)
    exists = result.scores != -jnp.inf
    return result._replace(
        tokens=jnp.where(exists[:, :, None], result.tokens, rules.pad_id),
        lengths=jnp.where(exists, result.lengths, 0),
    )


def append(
    tokens: Int[Array, "B N T"], new: Int[Array, "B N"], step: Int[Array, ""]
) -> Int[Array, "B N T"]:
    """The token histories with ``new`` at position ``step``."""
    return lax.dynamic_update_slice_in_dim(tokens, new[:, :, None], step, axis=2)


def _check_arguments(
    batch_size: int, beam_size: int, max_length: int, limits: Array, length_penalty: float
) -> None:
    sizes = {"batch_size": batch_size, "beam_size": beam_size, "max_length": max_length}
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"{name} must be at least 1: got {size}")
    if limits.shape != (batch_size,):
        raise UserError(
            f"limits must hold one number per sentence, shape ({batch_size},): got {limits.shape}"
        )
    if length_penalty < 0:
        raise UserError(f"length_penalty must be 0 or more: got {length_penalty}")


def _check_logits(logits: Array, beams: tuple[int, ...], eos_id: int) -> None:
    if logits.ndim != 3 or logits.shape[:2] != beams or logits.shape[2] < 2:
        raise UserError(
            f"step_fn must return logits [batch, beams, vocabulary] = [{beams[0]}, {beams[1]}, "
            f"2 or more]: got shape {logits.shape}"
        )
    if not 0 <= eos_id < logits.shape[2]:
        raise UserError(
            f"eos_id must be a token of the vocabulary, 0 to {logits.shape[2] - 1}: got {eos_id}"
        )
