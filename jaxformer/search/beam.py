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
(So by default: :attr:`~jaxformer.search.rules.Rules.early_stop` has other toolkits' ways too.)

Ties go to what was found first: an older finished hypothesis, then the continuation of the better
alive one, then the greater logit, then the smaller token id. Sentences never look at one another.

A diverse beam search (Vijayakumar et al. 2016) is several small ones, the groups, that keep out of
each other's way: each avoids tokens that earlier groups go on with at the same step. Every group
keeps its own finished hypotheses, and a sentence is over when it is for all its groups.

:func:`beam_search` does all of it. For more control compose it of its three verbs: between calls
of :func:`advance` a caller may make room in ``state.cache``, or drop sentences that are ``done``.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxformer.layout import take_rows, zeros_beside
from jaxformer.search.cache import gather_beams, reorder_cache
from jaxformer.search.constraints import constrain
from jaxformer.search.continuations import choose, freeze
from jaxformer.search.penalties import Penalty, length_penalties
from jaxformer.search.rules import EarlyStop, EndsWithin, Rules, Unfinished
from jaxformer.search.state import (
    BeamResult,
    BeamState,
    Candidates,
    Limits,
    Prefix,
    best_first,
    prepare,
)
from jaxformer.search.stepping import StepFn, append, call, check_prefix, repeat


def beam_search(
    step_fn: StepFn,
    cache: Any,
    *,
    limits: Limits,
    max_length: int,
    beam_size: int,
    length_penalty: float,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    prefix: Prefix | None = None,
    penalty: Penalty = "gnmt",
    min_length: int = 0,
    no_repeat_ngram: int = 0,
    diversity_groups: int = 1,
    diversity_penalty: float = 0.0,
    ends_within: EndsWithin = "2N",
    unfinished: Unfinished = "fallback",
    early_stop: EarlyStop = "proven",
) -> BeamResult:
    """The best hypotheses under ``step_fn`` that beam search finds; greedy with ``beam_size=1``.

    Works inside the caller's ``jit`` and ``vmap``; outside, wrap it in ``jax.jit`` to compile once.
    Arguments not described here are the attributes of :class:`~jaxformer.search.rules.Rules`.

    >>> log_probs = jnp.log(jnp.array([[0.0, 0.4, 0.6], [0.0, 0.9, 0.1], [0.0, 0.5, 0.5]]))
    >>> step_fn = lambda tokens, cache: (log_probs[tokens], cache)  # a Markov chain; 1 is EOS
    >>> result = beam_search(
    ...     step_fn, (), limits=jnp.array([4]), max_length=4, beam_size=2, length_penalty=0.0,
    ...     bos_id=0, eos_id=1, pad_id=0)
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
      limits: The most tokens that each sentence may get, EOS included; more than ``max_length``
        counts as ``max_length``. A sentence with limit 0 costs no step and comes out empty.
      max_length: Room for tokens, EOS included, T.
      beam_size: Hypotheses kept per sentence, N.
      length_penalty: alpha of the penalty, 0 or more.
      bos_id: Token that starts every hypothesis; not part of the result.
      eos_id: Token that ends a hypothesis.
      pad_id: Fills the result after EOS; also fed to ``step_fn`` for sentences that are over.
      prefix: Tokens that every hypothesis of a sentence starts with, padded on the right with
        ``pad_id``; they count for length, score and limit. A limit that is not longer cuts them:
        the hypothesis is unfinished.
      penalty: See Rules, like all that follow.
      min_length: Fewest tokens before EOS.
      no_repeat_ngram: Longest repetition, plus one.
      diversity_groups: Groups of a diverse beam search.
      diversity_penalty: How much these avoid each other's tokens.
      ends_within: Which continuations may end.
      unfinished: What hypotheses at the limit are worth.
      early_stop: When to stop before the limit.

    Returns:
      The N best hypotheses per sentence.

    Raises:
      UserError: An argument is out of range, or the cache or the logits have other axes.
    """
    rules = Rules(
        beam_size=beam_size,
        length_penalty=length_penalty,
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
        penalty=penalty,
        min_length=min_length,
        no_repeat_ngram=no_repeat_ngram,
        diversity_groups=diversity_groups,
        diversity_penalty=diversity_penalty,
        ends_within=ends_within,
        unfinished=unfinished,
        early_stop=early_stop,
    )
    state = start(rules, cache, limits, max_length, prefix)
    return finalise(rules, advance(rules, step_fn, state, max_length))


def start(
    rules: Rules,
    cache: Any,
    limits: Limits,
    max_length: int,
    prefix: Prefix | None = None,
) -> BeamState:
    """One alive hypothesis per sentence, the empty one, and none finished.

    Arguments and errors are those of :func:`beam_search`.
    """
    cache, limits, prefix = prepare(cache, limits, rules.beam_size, max_length, prefix)
    none = zeros_beside(limits, (rules.beam_size,), jnp.int32)
    tokens = zeros_beside(limits, (rules.beam_size, max_length), jnp.int32) + rules.pad_id
    impossible = none - jnp.float32(jnp.inf)
    # Each group starts with an empty hypothesis of its own.
    firsts = slice(None, None, rules.beam_size // rules.diversity_groups)
    return BeamState(
        step=jnp.zeros((), jnp.int32),
        limits=limits,
        prefix=prefix,
        done=limits == 0,
        alive=Candidates(
            log_probs=impossible.at[:, firsts].set(0.0),
            tokens=none + rules.bos_id,
            parents=none,
        ),
        alive_tokens=tokens,
        finished=BeamResult(tokens=tokens, lengths=none, scores=impossible, log_probs=impossible),
        cache=cache,
    )


def advance(
    rules: Rules, step_fn: StepFn, state: BeamState, until: int | Int[Array, ""]
) -> BeamState:
    """Steps until hypotheses have ``until`` tokens, or every sentence is over.

    Args:
      rules: Those of :func:`start`.
      step_fn: As for :func:`beam_search`.
      state: From :func:`start`, or an earlier call; its cache may have been given more room.
      until: Value of ``state.step`` to stop at.

    Raises:
      UserError: The logits have other axes than expected, or EOS or a token of the prefix is not
        among them.
    """
    check_prefix(step_fn, state.alive.tokens, state.cache, state.prefix, rules)
    return repeat(lambda state: step(rules, step_fn, state), state, until)


def step(rules: Rules, step_fn: StepFn, state: BeamState) -> BeamState:
    """One step: every sentence that is not over gets its hypotheses continued by one token."""
    logits, cache = call(step_fn, state.alive.tokens, state.cache, rules.eos_id)
    allowed = constrain(rules, logits, state.alive_tokens, state.prefix, state.step)
    length = state.step + 1
    at_limit = length >= state.limits
    alive, ended = choose(rules, logits, allowed, state.alive.log_probs, at_limit)
    alive, ended = freeze(state.done, state.alive, alive, ended, rules.pad_id)
    penalties = _penalties(rules, state)
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
        rules.diversity_groups,
    )
    over = decided(rules, alive, finished, penalties[length], take_rows(penalties, state.limits))
    return dataclasses.replace(
        state,
        step=length,
        done=state.done | at_limit | over,
        alive=alive,
        alive_tokens=append(
            gather_beams(state.alive_tokens, alive.parents), alive.tokens, state.step
        ),
        finished=finished,
        cache=reorder_cache(cache, alive.parents),
    )


def merge_finished(finished: BeamResult, ended: BeamResult, groups: int) -> BeamResult:
    """The best of the finished hypotheses and those that just ended, as many per group."""
    batch, size = finished.scores.shape[0], finished.scores.shape[1] // groups

    def merge(old: Array, new: Array) -> Array:
        rows = (batch * groups, size, *old.shape[2:])
        return jnp.concatenate([old.reshape(rows), new.reshape(rows)], axis=1)

    merged = jax.tree.map(merge, finished, ended)
    _, index = lax.top_k(merged.scores, size)
    return jax.tree.map(
        lambda rows, old: gather_beams(rows, index).reshape(old.shape), merged, finished
    )


def decided(
    rules: Rules,
    alive: Candidates,
    finished: BeamResult,
    penalty_now: Float[Array, ""],
    penalty_at_limit: Float[Array, " B"],
) -> Bool[Array, " B"]:
    """Whether a sentence may stop before its limit, given what is alive and finished."""
    groups = (-1, rules.diversity_groups, rules.beam_size // rules.diversity_groups)
    best = alive.log_probs.reshape(groups).max(axis=2)
    worst = finished.scores.reshape(groups)[:, :, -1]
    if rules.early_stop == "never":
        return jnp.zeros(best.shape[0], jnp.bool_)
    bound = best / penalty_now
    if rules.early_stop == "proven":
        # No score still to come exceeds this: log probabilities only fall, penalties only grow.
        bound = best / penalty_at_limit[:, None]
    over = bound <= worst
    if rules.early_stop == "full":
        over |= worst > -jnp.inf
    return over.all(axis=1)


def finalise(rules: Rules, state: BeamState) -> BeamResult:
    """The finished hypotheses, best first; where there are none, those alive at the limit."""
    alive, length = state.alive, jnp.minimum(state.step, state.limits)[:, None]
    unfinished = BeamResult(
        tokens=state.alive_tokens,
        lengths=jnp.broadcast_to(length, alive.tokens.shape),
        scores=alive.log_probs / take_rows(_penalties(rules, state), length),
        log_probs=alive.log_probs,
    )
    none_finished = (state.finished.scores == -jnp.inf).all(axis=1)

    def pick(unfinished: Array, finished: Array) -> Array:
        return jnp.where(
            jnp.expand_dims(none_finished, range(1, finished.ndim)), unfinished, finished
        )

    return best_first(jax.tree.map(pick, unfinished, state.finished), rules.pad_id)


def _penalties(rules: Rules, state: BeamState) -> Array:
    room = state.alive_tokens.shape[2]
    return jnp.asarray(length_penalties(rules.penalty, rules.length_penalty, room))
