"""Beam search over any step function (section 6.1 of the paper), as one XLA program.

Each sentence has at most N *alive* hypotheses (without end of sentence, EOS) and at most N
*finished* ones. A step considers the 2N best one-token continuations of the alive hypotheses, by
log probability. Continuations that end in EOS compete with the finished hypotheses by score, the
log probability divided by the length penalty. The N best of the others stay alive. 2N candidates
are enough to keep N alive, since each alive hypothesis has only one continuation with EOS. A beam
of one considers only the best continuation, which is greedy search: argmax until EOS.

A sentence is done at its length limit, or earlier, when its best alive hypothesis could not
displace its worst finished one even if all further tokens had probability one. Stopping early
therefore never changes the result, including n-best lists. ``early_stop`` has the rules of other
toolkits, too. Sentences that are done no longer change.

Ties go to the earlier candidate: an older finished hypothesis, then the continuation of the better
alive hypothesis, then the greater logit, then the smaller token id. Sentences are independent.

Diverse beam search (Vijayakumar et al. 2016) splits the beam into groups. Each group penalizes
tokens that earlier groups choose at the same step. Every group has its own finished hypotheses, and
a sentence is done when all its groups are.
"""

import dataclasses
import math
from typing import Any, ClassVar, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxformer.errors import UserError
from jaxformer.layout import take_rows
from jaxformer.search.algorithm import Algorithm
from jaxformer.search.candidates import expand, mask_finished, take_first
from jaxformer.search.state import (
    BeamResult,
    BeamState,
    Candidates,
    MaxLengths,
    Prefix,
    best_first,
    gather_beams,
    where_rows,
)
from jaxformer.search.step_loop import PrefillFn, StepFn, append_token

EndsWithin: TypeAlias = Literal["2N", "N"]
Unfinished: TypeAlias = Literal["fallback", "compete"]
EarlyStop: TypeAlias = Literal["proven", "likely", "full", "never"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSearch(Algorithm):
    """Beam search (section 6.1 of the paper); greedy search with ``beam_size=1``.

    ``BeamSearch(beam_size=4, length_penalty=0.6)`` is the paper's, and the default. It also has the
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
      unfinished: Use of hypotheses that reach the limit without EOS. "fallback": they are the
        result only if no hypothesis of the sentence has finished. "compete": they count as finished
        (as in Hugging Face).
      early_stop: Rule for stopping a sentence before its limit. "proven": when no future hypothesis
        could displace a finished one; never changes the result. "likely": when none could at the
        current length (Hugging Face's ``early_stopping=False``). "full": when N have finished,
        however improbable (Hugging Face's ``early_stopping=True``); with ``ends_within="N"`` only.
        "never": at the limit only.
    """

    beam_size: int = 4
    diversity_groups: int = 1
    diversity_penalty: float = 0.0
    ends_within: EndsWithin = "2N"
    unfinished: Unfinished = "fallback"
    early_stop: EarlyStop = "proven"

    _traced: ClassVar[tuple[str, ...]] = ("diversity_penalty",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_hypotheses("beam_size")
        self._check("diversity_groups", self.diversity_groups > 0, "be greater than 0")
        self._check("diversity_penalty", 0 <= self.diversity_penalty < math.inf, "be 0 or more")
        if self.early_stop == "full" and self.ends_within != "N":
            raise UserError("early_stop=full needs ends_within=N, or it stops too early: got 2N")
        if self.beam_size % self.diversity_groups:
            raise UserError(
                f"diversity_groups must divide beam_size: got {self.diversity_groups} and "
                f"{self.beam_size}"
            )
        if self.diversity_penalty and self.diversity_groups == 1:
            raise UserError(
                "diversity_groups above 1 and diversity_penalty above 0 go together: got 1 and "
                f"{self.diversity_penalty}"
            )

    @property
    def num_hypotheses(self) -> int:
        return self.beam_size

    @property
    def _group_size(self) -> int:
        return self.beam_size // self.diversity_groups

    def initial_state(
        self, shared: dict[str, Any], newest: Int[Array, "B N"], keys: object
    ) -> BeamState:
        """Returns the state with one alive hypothesis per sentence or group, which is empty."""
        none = newest * 0  # with its layout
        impossible = none.astype(jnp.float32) - jnp.inf
        # Each group starts with its own empty hypothesis.
        log_probs = impossible.at[:, :: self._group_size].set(0.0)
        return BeamState(
            **shared,
            alive=Candidates(log_probs=log_probs, tokens=newest, parents=none),
            finished=BeamResult(shared["tokens"], none, impossible, impossible),
        )

    def append_prefix(
        self, state: BeamState, newest: Int[Array, "B N"], log_probs: Float[Array, "B 1"]
    ) -> BeamState:
        log_probs = state.alive.log_probs + log_probs
        alive = dataclasses.replace(state.alive, log_probs=log_probs, tokens=newest)
        return dataclasses.replace(state, alive=alive)

    def extend(self, state: BeamState, logits: Float[Array, "B N V"]) -> BeamState:
        """Returns the state, without its cache, with one more token."""
        allowed = self._constrain(logits, state)
        length = state.step + 1
        at_limit = length >= state.max_lengths
        alive, ended = self.select_candidates(logits, allowed, state.alive.log_probs, at_limit)
        alive, ended = mask_finished(state.done, state.alive, alive, ended, self.pad_id)

        def append(new: Candidates) -> Int[Array, "B N T"]:
            return append_token(gather_beams(state.tokens, new.parents), new.tokens, state.step)

        penalties = self._penalties(state.tokens.shape[2])
        scores, lengths = ended.log_probs / penalties[length], jnp.full_like(ended.tokens, length)
        new = BeamResult(append(ended), lengths, scores, ended.log_probs)
        finished = self._merge_finished(state.finished, new)
        penalty_at_limit = take_rows(penalties, state.max_lengths)
        stopped = self._can_stop(alive, finished, penalties[length], penalty_at_limit)
        return dataclasses.replace(
            state,
            step=length,
            done=state.done | at_limit | stopped,
            alive=alive,
            tokens=append(alive),
            finished=finished,
        )

    def select_candidates(
        self,
        logits: Float[Array, "B N V"],
        allowed: Float[Array, "B N V"],
        log_probs: Float[Array, "B N"],
        at_limit: Bool[Array, " B"],
    ) -> tuple[Candidates, Candidates]:
        """Returns the N best candidates that stay alive, and at most N that end, of each sentence.

        Groups choose one after the other. Each chooses among the continuations of its own
        hypotheses, N / G of all N. ``allowed`` is ``logits`` with -inf for forbidden tokens.
        """
        most = math.inf if self.constraints else 0.0
        if self.diversity_groups == 1:
            return self._partition_by_eos(expand(logits, log_probs, allowed, most), at_limit)
        sentences = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
        times_chosen = jnp.zeros_like(logits[:, 0])
        groups = []
        for first in range(0, self.beam_size, self._group_size):
            group = slice(first, first + self._group_size)
            preferred = allowed[:, group] - self.diversity_penalty * times_chosen[:, None]
            candidates = expand(logits[:, group], log_probs[:, group], preferred, most)
            alive, ended = self._partition_by_eos(candidates, at_limit)
            exists = (alive.log_probs > -jnp.inf).astype(jnp.float32)
            times_chosen = times_chosen.at[sentences, alive.tokens].add(exists)
            chosen = alive, ended
            groups.append([dataclasses.replace(c, parents=c.parents + first) for c in chosen])
        alive, ended = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *groups)
        return alive, ended

    def _partition_by_eos(
        self, candidates: Candidates, at_limit: Bool[Array, " B"]
    ) -> tuple[Candidates, Candidates]:
        """Returns the first N of the 2N candidates that stay alive, and the first N that end."""
        size = self._group_size
        finished = candidates.tokens == self.eos_id
        if self.unfinished == "compete":
            finished |= at_limit[:, None]
        ends = finished
        if self.ends_within == "N":
            ends &= jnp.arange(finished.shape[1])[None] < size
        return take_first(candidates, ~finished, size), take_first(candidates, ends, size)

    def _merge_finished(self, finished: BeamResult, ended: BeamResult) -> BeamResult:
        """Returns the best N of the finished and newly ended hypotheses, group by group."""

        def merge(old: Array, new: Array) -> Array:
            rows = (-1, self._group_size, *old.shape[2:])
            return jnp.concatenate([old.reshape(rows), new.reshape(rows)], axis=1)

        merged = jax.tree.map(merge, finished, ended)
        _, index = lax.top_k(merged.scores, self._group_size)
        return jax.tree.map(
            lambda rows, old: gather_beams(rows, index).reshape(old.shape), merged, finished
        )

    def _can_stop(
        self,
        alive: Candidates,
        finished: BeamResult,
        penalty_now: Float[Array, ""],
        penalty_at_limit: Float[Array, " B"],
    ) -> Bool[Array, " B"]:
        """Returns the mask of sentences that may stop before their limit."""
        groups = (-1, self.diversity_groups, self._group_size)
        best = alive.log_probs.reshape(groups).max(axis=2)
        worst = finished.scores.reshape(groups)[:, :, -1]
        if self.early_stop == "never":
            return jnp.zeros(best.shape[0], jnp.bool_)
        bound = best / penalty_now
        if self.early_stop == "proven":
            # No future score exceeds this bound: log probabilities only fall, penalties only grow.
            bound = best / penalty_at_limit[:, None]
        stop = bound <= worst
        if self.early_stop == "full":
            stop |= worst > -jnp.inf
        return stop.all(axis=1)

    def finalize(self, state: BeamState) -> BeamResult:
        """Returns the finished hypotheses, or the unfinished ones of sentences without any."""
        alive, length = state.alive, jnp.minimum(state.step, state.max_lengths)[:, None]
        penalties = take_rows(self._penalties(state.tokens.shape[2]), length)
        lengths, scores = jnp.broadcast_to(length, alive.tokens.shape), alive.log_probs / penalties
        unfinished = BeamResult(state.tokens, lengths, scores, alive.log_probs)
        none_finished = (state.finished.scores == -jnp.inf).all(axis=1)
        return best_first(where_rows(none_finished, unfinished, state.finished), self.pad_id)


def beam_search(
    step_fn: StepFn,
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
    options: dict[str, Any] = {"prefix": prefix, "prefill_fn": prefill_fn}
    search = BeamSearch(**fields)
    return search(step_fn, cache, max_lengths=max_lengths, capacity=capacity, **options)
