"""Beam search over any step function (section 6.1 of the paper), as one XLA program.

Each sentence has at most N *alive* hypotheses (without end of sentence, EOS) and at most N
*finished* ones. A step considers the 2N best one-token continuations of the alive hypotheses, by
log probability. Continuations that end in EOS compete with the finished hypotheses by score, the
log probability divided by the length penalty. The N best of the others stay alive. 2N candidates
are enough to keep N alive, since each alive hypothesis has only one continuation with EOS. A beam
of one considers only the best continuation, which is greedy search: argmax until EOS.

A sentence is done at its length limit, or earlier, when its best alive hypothesis could not
displace its worst finished one even if all further tokens had probability one. Stopping early
therefore never changes the result, including n-best lists. If a caller needs fewer hypotheses,
``n_best``, the last of these counts, and sentences are done sooner. ``early_stop`` also offers the
rules of other toolkits. Sentences that are done no longer change. The scores of a contrast
(:func:`~jaxformer.search.contrast`) have no such bound: a sentence is then done at its limit, or
when none of its hypotheses is alive.

Ties go to the earlier candidate: an older finished hypothesis, then the continuation of the better
alive hypothesis, then the smaller token id. Sentences are independent.

Diverse beam search (Vijayakumar et al. 2016) splits the beam into groups. Each group penalizes
tokens that earlier groups choose at the same step. Every group has its own finished hypotheses, and
a sentence is done when all its groups are done.
"""

import dataclasses
import math
from typing import Any, ClassVar, Literal

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxformer.errors import UserError
from jaxformer.layout import take_rows
from jaxformer.search.algorithm import Algorithm
from jaxformer.search.contrast import ContrastiveStep
from jaxformer.search.state import (
    BeamResult,
    BeamState,
    ContrastiveScores,
    MaxLengths,
    Prefix,
    TokenScores,
    best_first,
    gather_beams,
    scores_of,
    where_rows,
)
from jaxformer.search.step_loop import PrefillFn, StepFn, log_probs_of

_BLOCKS = range(32, 65)  # sizes of a block in ``expand``, in tokens


@flax.struct.dataclass
class Candidates:
    """One-token continuations of alive hypotheses, best first."""

    log_probs: Float[Array, "B M"]  # float32; of the whole hypothesis; -inf if it does not exist
    tokens: Int[Array, "B M"]  # int32; the new token
    parents: Int[Array, "B M"]  # int32; the alive hypothesis that it continues, 0 to N - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSearch(Algorithm):
    """Beam search (section 6.1 of the paper); greedy search with ``beam_size=1``.

    The default is the paper's, ``BeamSearch(beam_size=4, length_penalty=0.6)``. It also has the
    attributes and methods of :class:`Algorithm`. :mod:`jaxformer.search.beam` describes the search.

    Attributes:
      beam_size: Number of hypotheses per sentence, N, at most 1000; 1 is greedy search.
      diversity_groups: Number of groups that share the beam in diverse beam search (Vijayakumar et
        al. 2016); 1 is plain beam search. Groups may find the same hypothesis, which then counts
        for each.
      diversity_penalty: Penalty on the log probability of a token, in the choice only, for each
        hypothesis of an earlier group that chooses it at the same step.
      ends_within: Candidates among the 2N best that may end: all ("2N", as in the paper's
        tensor2tensor), or only the first N ("N", as in Hugging Face).
      unfinished: Use of hypotheses that reach the limit without EOS. "fallback": they are returned
        only if no hypothesis of the sentence has finished. "compete": they count as finished (as in
        Hugging Face). "end": their last token becomes EOS, whatever constraints forbid, with
        probability one (Hugging Face's ``forced_eos_token_id``).
      early_stop: Rule for stopping a sentence before its limit. "proven": when no future hypothesis
        could displace a finished one; never changes the result. "likely": when none could at the
        current length (Hugging Face's ``early_stopping=False``). "full": when N have finished,
        however improbable (Hugging Face's ``early_stopping=True``); with ``ends_within="N"`` only.
        "never": at the limit only.
    """

    beam_size: int = 4
    diversity_groups: int = 1
    diversity_penalty: float = 0.0
    ends_within: Literal["2N", "N"] = "2N"
    unfinished: Literal["fallback", "compete", "end"] = "fallback"
    early_stop: Literal["proven", "likely", "full", "never"] = "proven"

    _size: ClassVar[str] = "beam_size"
    _traced: ClassVar[tuple[str, ...]] = ("diversity_penalty",)

    def __post_init__(self) -> None:
        super().__post_init__()

        self._check("diversity_groups", self.diversity_groups > 0, "be greater than 0")
        self._check("diversity_penalty", 0 <= self.diversity_penalty < math.inf, "be 0 or more")

        if self.early_stop == "full" and self.ends_within != "N":
            raise UserError("early_stop=full needs ends_within=N, or it stops too early: got 2N")

        divides = self.beam_size % self.diversity_groups == 0
        self._check("diversity_groups", divides, f"divide beam_size={self.beam_size}")

        has_effect = self.diversity_groups > 1 or not self.diversity_penalty
        self._check("diversity_penalty", has_effect, "be 0 unless diversity_groups is above 1")

    @property
    def _group_size(self) -> int:
        return self.beam_size // self.diversity_groups

    def initial_state(self, shared: dict[str, Any], keys: object) -> BeamState:
        """Returns the state with one alive hypothesis per sentence or group, which is empty."""
        none = shared["newest"] * 0
        impossible = shared["log_probs"] - jnp.inf

        # Each group starts with its own empty hypothesis.
        first_of_group = slice(None, None, self._group_size)
        log_probs = impossible.at[:, first_of_group].set(0.0)
        alive = shared | {"log_probs": log_probs}

        finished = BeamResult(
            tokens=shared["tokens"],
            lengths=none,
            scores=impossible,
            log_probs=impossible,
        )
        return BeamState(**alive, parents=none, finished=finished)

    def extend(self, state: BeamState, output: TokenScores) -> BeamState:
        allowed = self._constrain(output, state)
        normalized = not isinstance(output, ContrastiveScores)
        length = state.step + 1
        at_limit = length >= state.max_lengths
        alive, ended = self.select_candidates(
            scores_of(output),
            allowed,
            log_probs=state.log_probs,
            at_limit=at_limit,
            normalized=normalized,
        )
        if self.unfinished == "end":
            at_no_cost = self._append_token(state, self.eos_id)
            ended = where_rows(at_limit, at_no_cost, ended)
        alive, ended = self._mask_done(state, alive, ended)

        def append(new: Candidates) -> Int[Array, "B N T"]:
            tokens = gather_beams(state.tokens, new.parents)
            newest = new.tokens[:, :, None]
            return lax.dynamic_update_slice_in_dim(
                tokens,
                newest,
                state.step,
                axis=2,
            )

        capacity = state.tokens.shape[2]
        penalty = self._penalties(capacity)[length]
        scores = ended.log_probs / penalty
        lengths = jnp.full_like(ended.tokens, length)
        newly_finished = BeamResult(
            tokens=append(ended),
            lengths=lengths,
            scores=scores,
            log_probs=self._own_log_probs(state, output, ended, at_limit=at_limit),
        )

        expert_log_probs = state.expert_log_probs
        if expert_log_probs is not None:
            # The alive hypotheses of a sentence that is done do not change.
            new = self._own_log_probs(state, output, alive)
            expert_log_probs = where_rows(state.done, expert_log_probs, new)

        extended = dataclasses.replace(
            state,
            step=length,
            tokens=append(alive),
            newest=alive.tokens,
            log_probs=alive.log_probs,
            expert_log_probs=expert_log_probs,
            parents=alive.parents,
            finished=self._merge_finished(state.finished, newly_finished),
        )
        done = state.done | at_limit
        done |= self._can_stop(extended, normalized=normalized)
        return dataclasses.replace(extended, done=done)

    def _append_token(self, state: BeamState, token: int) -> Candidates:
        """Returns the alive hypotheses, each with a token at no cost."""
        return Candidates(
            log_probs=state.log_probs,
            tokens=jnp.full_like(state.newest, token),
            parents=lax.broadcasted_iota(jnp.int32, state.parents.shape, dimension=1),
        )

    def _mask_done(
        self,
        state: BeamState,
        alive: Candidates,
        ended: Candidates,
    ) -> tuple[Candidates, Candidates]:
        """Replaces candidates of sentences that are done: no hypothesis moves, and none ends."""
        unchanged = self._append_token(state, self.pad_id)
        impossible = jnp.full_like(ended.log_probs, -jnp.inf)
        none_ended = dataclasses.replace(ended, log_probs=impossible)

        alive = where_rows(state.done, unchanged, alive)
        ended = where_rows(state.done, none_ended, ended)
        return alive, ended

    def _own_log_probs(
        self,
        state: BeamState,
        output: TokenScores,
        candidates: Candidates,
        at_limit: Bool[Array, " B"] | None = None,
    ) -> Float[Array, "B M"]:
        """Returns the log probabilities of candidates, of a contrast under its expert."""
        if state.expert_log_probs is None or not isinstance(output, ContrastiveScores):
            return candidates.log_probs

        batch, _, vocabulary = output.expert.shape
        flat = output.expert.reshape(batch, -1)
        new = gather_beams(flat, candidates.parents * vocabulary + candidates.tokens)
        if at_limit is not None and self.unfinished == "end":
            new = where_rows(at_limit, jnp.zeros_like(new), new)
        extended = gather_beams(state.expert_log_probs, candidates.parents) + new

        is_missing = candidates.log_probs == -jnp.inf
        return jnp.where(is_missing, -jnp.inf, extended)

    def select_candidates(
        self,
        logits: Float[Array, "B N V"],
        allowed: Float[Array, "B N V"],
        log_probs: Float[Array, "B N"],
        at_limit: Bool[Array, " B"],
        *,
        normalized: bool = True,
    ) -> tuple[Candidates, Candidates]:
        """Returns, for each sentence, the N best candidates that stay alive and at most N that end.

        Groups choose one after the other. Each chooses among the continuations of its own
        hypotheses, N / G of all N. ``allowed`` is ``logits`` with -inf for forbidden tokens. For
        ``normalized`` see :func:`expand`.
        """
        if self.diversity_groups == 1:
            candidates = expand(logits, log_probs, allowed, normalized=normalized)
            return self._partition_by_eos(candidates, at_limit)

        batch = logits.shape[0]
        sentences = jnp.arange(batch, dtype=jnp.int32)[:, None]  # [B, 1]
        times_chosen = jnp.zeros_like(logits[:, 0])  # [B, V]; by earlier groups at this step
        groups = []
        for first in range(0, self.beam_size, self._group_size):
            group = slice(first, first + self._group_size)

            preferred = allowed[:, group]
            preferred -= self.diversity_penalty * times_chosen[:, None]
            candidates = expand(
                logits[:, group],
                log_probs[:, group],
                preferred,
                normalized=normalized,
            )
            alive, ended = self._partition_by_eos(candidates, at_limit)

            # Every hypothesis that stays alive makes its token less attractive for later groups.
            exists = alive.log_probs > -jnp.inf
            chosen = exists.astype(jnp.float32)
            times_chosen = times_chosen.at[sentences, alive.tokens].add(chosen)

            # Within a group, parents are numbered from 0.
            alive = dataclasses.replace(alive, parents=alive.parents + first)
            ended = dataclasses.replace(ended, parents=ended.parents + first)
            groups.append((alive, ended))

        def concatenate(*leaves: Array) -> Array:
            return jnp.concatenate(leaves, axis=1)

        return jax.tree.map(concatenate, *groups)

    def _partition_by_eos(
        self,
        candidates: Candidates,
        at_limit: Bool[Array, " B"],
    ) -> tuple[Candidates, Candidates]:
        """Returns the first N of the 2N candidates that stay alive, and the first N that end."""
        size = self._group_size
        finished = candidates.tokens == self.eos_id
        if self.unfinished == "compete":
            finished |= at_limit[:, None]

        ends = finished
        if self.ends_within == "N":
            is_among_first = jnp.arange(finished.shape[1])[None] < size
            ends &= is_among_first

        alive = take_first(candidates, ~finished, size)
        ended = take_first(candidates, ends, size)
        return alive, ended

    def _merge_finished(self, finished: BeamResult, ended: BeamResult) -> BeamResult:
        """Returns the best N of the finished and newly ended hypotheses, group by group."""
        size = self._group_size

        def concatenate(old: Array, new: Array) -> Array:
            rows = (-1, size, *old.shape[2:])  # a row for each group of each sentence
            old = old.reshape(rows)
            new = new.reshape(rows)
            return jnp.concatenate([old, new], axis=1)

        merged = jax.tree.map(concatenate, finished, ended)

        # Of equal scores, top_k takes the first: the older hypothesis.
        _, index = lax.top_k(merged.scores, size)

        def take_best(rows: Array, old: Array) -> Array:
            best = gather_beams(rows, index)
            return best.reshape(old.shape)

        return jax.tree.map(take_best, merged, finished)

    def _can_stop(self, state: BeamState, *, normalized: bool) -> Bool[Array, " B"]:
        """Returns the mask of sentences that may stop before their limit.

        Scores that are not ``normalized`` to log probabilities may also grow with more tokens.
        """
        if self.early_stop == "never":
            return jnp.zeros_like(state.done)

        groups = (-1, self.diversity_groups, self._group_size)
        best = state.log_probs.reshape(groups).max(axis=2)  # [B, groups]
        if self.early_stop == "proven" and not normalized:
            # No bound of future scores is known: only a beam without alive hypotheses is done.
            none_alive = best == -jnp.inf
            return none_alive.all(axis=1)

        # The last of those that must not change; without n_best, index -1 is the last of all.
        n_best = state.n_best if self.early_stop == "proven" else 0
        needed = jnp.minimum(n_best, self._group_size)
        finished = state.finished.scores.reshape(groups)
        worst = finished[:, :, needed - 1]  # [B, groups]

        capacity = state.tokens.shape[2]
        penalties = self._penalties(capacity)
        penalty = penalties[state.step]
        if self.early_stop == "proven":
            # No future score exceeds this bound: log probabilities only fall, penalties only grow.
            penalty = take_rows(penalties, state.max_lengths)[:, None]

        stop = best / penalty <= worst
        if self.early_stop == "full":
            stop |= worst > -jnp.inf
        return stop.all(axis=1)

    def finalize(self, state: BeamState) -> BeamResult:
        """Returns the finished hypotheses, or the unfinished ones of sentences without any."""
        capacity = state.tokens.shape[2]
        length = jnp.minimum(state.step, state.max_lengths)[:, None]  # [B, 1]
        penalty = take_rows(self._penalties(capacity), length)

        lengths = jnp.broadcast_to(length, state.newest.shape)
        scores = state.log_probs / penalty
        unfinished = BeamResult(
            tokens=state.tokens,
            lengths=lengths,
            scores=scores,
            log_probs=state.own_log_probs,
        )

        is_missing = state.finished.scores == -jnp.inf
        none_finished = is_missing.all(axis=1)
        result = where_rows(none_finished, unfinished, state.finished)
        return best_first(result, self.pad_id)


def expand(
    logits: Float[Array, "B N V"],
    log_probs: Float[Array, "B N"],
    preferred: Float[Array, "B N V"],
    *,
    normalized: bool = True,
) -> Candidates:
    """Returns the best 2N candidates (1 if N = 1) of the hypotheses.

    Candidates are ranked by the log probability of the hypothesis plus ``preferred``, the
    ``logits`` after constraints and penalties, normalized like these. Greedy search ranks
    ``preferred`` itself, so that it is exactly argmax. Results have the log probabilities of
    ``logits``. If not ``normalized``, ``logits`` are scores that are added as they are, such as a
    contrast's.

    The k greatest values are in the k blocks with the greatest maxima; of equal values, the first
    are in the first of these blocks. Finding the maxima takes one pass that vectorizes well, and
    leaves little to sort.
    """
    batch, beams, vocabulary = logits.shape

    # Without padding, which would copy all values, unless no size divides the vocabulary.
    divisors = (n for n in _BLOCKS if vocabulary % n == 0)
    size = next(divisors, min(vocabulary, _BLOCKS[0]))
    missing = -vocabulary % size
    padding = ((0, 0), (0, 0), (0, missing))
    table = jnp.pad(preferred, padding, constant_values=-jnp.inf)
    table = table.reshape(batch, beams, -1, size)  # [B, N, J, K]

    # Without the barrier, XLA would compute the maxima of blocks and of rows in two passes, as it
    # would for jax.nn.logsumexp.
    greatest = lax.optimization_barrier(table.max(axis=-1))

    # [B, N]: the logsumexp of the logits of each hypothesis.
    if normalized:
        peaks = greatest.max(axis=2) if preferred is logits else logits.max(axis=2)
        peaks = jnp.where(jnp.isfinite(peaks), peaks, 0.0)
        exponentials = jnp.exp(logits - peaks[:, :, None])
        totals = peaks + jnp.log(exponentials.sum(axis=2))
    else:
        totals = jnp.zeros_like(log_probs)

    # Added to the logit of a token, a shift gives the log probability of the longer hypothesis.
    shifts = jnp.where(totals == -jnp.inf, -jnp.inf, log_probs - totals)
    if beams == 1:
        # Greedy search ranks ``preferred`` itself.
        shifts = jnp.zeros_like(shifts)

    wanted = 2 * beams if beams > 1 else 1
    best, parents, tokens = _greatest_of_table(
        table,
        greatest,
        shifts,
        wanted=wanted,
    )
    tokens = jnp.minimum(tokens, vocabulary - 1)

    # The ranking uses ``preferred``; the result has the log probabilities of ``logits``.
    flat_logits = logits.reshape(batch, -1)
    own_logits = gather_beams(flat_logits, parents * vocabulary + tokens)
    own_totals = gather_beams(totals, parents)
    new = log_probs_of(own_logits, own_totals) if normalized else own_logits
    is_impossible = best == -jnp.inf
    extended = gather_beams(log_probs, parents) + new
    return Candidates(
        log_probs=jnp.where(is_impossible, -jnp.inf, extended),
        tokens=tokens,
        parents=parents,
    )


def _greatest_of_table(
    table: Float[Array, "B N J K"],
    greatest: Float[Array, "B N J"],
    shifts: Float[Array, "B N"],
    wanted: int,
) -> tuple[Float[Array, "B M"], Int[Array, "B M"], Int[Array, "B M"]]:
    """Returns the greatest of all values plus their shifts, with their hypotheses and tokens.

    Equal values are in the order of their hypotheses, then of their tokens.

    Args:
      table: Values of all tokens, in J blocks of K tokens; the last block may be padded with -inf.
      greatest: The greatest value of each block.
      shifts: Numbers to add to all values of a hypothesis.
      wanted: Number of values, M.
    """
    batch, beams, blocks, size = table.shape

    # The blocks with the greatest maxima, in their own order, which decides between equal values.
    ranked_blocks = greatest + shifts[:, :, None]
    ranked_blocks = ranked_blocks.reshape(batch, -1)
    _, chosen = lax.top_k(ranked_blocks, min(wanted, beams * blocks))
    chosen = sort_by_counting(chosen)  # [B, C]

    all_blocks = table.reshape(batch, beams * blocks, size)
    values = gather_beams(all_blocks, chosen)  # [B, C, K]
    own_shifts = gather_beams(shifts, chosen // blocks)
    ranked = values + own_shifts[:, :, None]
    ranked = ranked.reshape(batch, -1)
    best, places = lax.top_k(ranked, wanted)

    block = gather_beams(chosen, places // size)
    parents = block // blocks
    first_token = block % blocks * size
    tokens = first_token + places % size
    return best, parents, tokens


def sort_by_counting(numbers: Int[Array, "B M"]) -> Int[Array, "B M"]:
    """Returns different integers in ascending order; counting is faster than XLA's sort."""
    is_greater = numbers[:, :, None] > numbers[:, None]
    rank = is_greater.sum(axis=2, dtype=jnp.int32)

    rank = rank[:, None]  # [B, 1, M]
    ranks = jnp.arange(numbers.shape[1], dtype=jnp.int32)[None, :, None]
    at_rank = rank == ranks  # [B, M, M]
    sorted_numbers = numbers[:, None] * at_rank.astype(jnp.int32)
    return sorted_numbers.sum(axis=2, dtype=jnp.int32)


def take_first(
    candidates: Candidates,
    keep: Bool[Array, "B M"],
    size: int,
) -> Candidates:
    """Returns the first ``size`` candidates to keep, in their order."""
    # XLA's top-k of float32 values does not sort all of them.
    kept, index = lax.top_k(keep.astype(jnp.float32), size)

    def take(rows: Array) -> Array:
        return jnp.take_along_axis(rows, index, axis=1)

    first = jax.tree.map(take, candidates)

    # If there are too few to keep, the others do not exist.
    log_probs = jnp.where(kept > 0, first.log_probs, -jnp.inf)
    return dataclasses.replace(first, log_probs=log_probs)


def beam_search(
    step_fn: StepFn | ContrastiveStep,
    cache: Any,
    *,
    max_lengths: MaxLengths,
    capacity: int,
    prefix: Prefix | None = None,
    prefill_fn: PrefillFn | None = None,
    **fields: Any,
) -> BeamResult:
    """Returns the best hypotheses that beam search finds: ``BeamSearch(**fields)`` in one call.

    The methods of :class:`Algorithm` describe the arguments and errors, and :class:`BeamSearch` its
    attributes, ``fields``.

    >>> log_probs = jnp.log(jnp.array([[0.0, 0.4, 0.6], [0.0, 0.9, 0.1], [0.0, 0.5, 0.5]]))
    >>> step_fn = lambda tokens, cache: (log_probs[tokens], cache)  # a Markov chain; 1 is EOS
    >>> beam_search(step_fn, (), max_lengths=[4], capacity=4, beam_size=1, bos_id=0).tokens.tolist()
    [[[2, 1, 0, 0]]]
    """
    search = BeamSearch(**fields)
    return search(
        step_fn,
        cache,
        max_lengths=max_lengths,
        capacity=capacity,
        prefix=prefix,
        prefill_fn=prefill_fn,
    )
