"""The base of all search algorithms: their common fields and methods.

``start`` creates a state, ``advance`` takes steps, ``finalize`` returns the hypotheses; calling an
algorithm does all three. ``prefill``, optional, reads forced tokens in one pass. Call the methods
yourself for more control: between two calls of ``advance`` you may grow ``state.cache``, or drop
sentences that are ``done``.

Algorithms are frozen and hashable, so they can be static arguments of ``jax.jit``. They never
change a log probability: the log probability of a hypothesis is always the step function's.
"""

import abc
import copy
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from jaxformer.errors import UserError
from jaxformer.fields import check_values, setting
from jaxformer.layout import map_rows, zeros_for_rows
from jaxformer.search.constraints import (
    Constraint,
    ForcedPrefix,
    MinLength,
    NoRepeatNgram,
    Plausible,
    SearchContext,
    as_pytrees,
)
from jaxformer.search.contrast import ContrastiveStep
from jaxformer.search.penalties import Penalty, length_penalties
from jaxformer.search.state import (
    BeamResult,
    ContrastiveScores,
    MaxLengths,
    Prefix,
    TokenScores,
    initial_fields,
    scores_of,
)
from jaxformer.search.step_loop import PrefillFn, StepFn, call_step_fn, check_prefix, run_until_done

# Fields of a search by name: arrays, and constraints as pytrees.
Numbers: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm(abc.ABC):
    """A search algorithm.

    Attributes:
      length_penalty: alpha of the length penalty, 0 to 10; larger values favor longer hypotheses.
      penalty: Divisor of the log probability of n tokens: "gnmt" ((5 + n) / 6)^alpha as in the
        paper, "power" n^alpha, "none" 1.
      max_extra_length: With a source sentence, a hypothesis has at most this many tokens more than
        the source, or ``min_length`` + 1 more if that is larger.
      max_length: Maximum number of tokens of a hypothesis, EOS included; by default only the limit
        of ``max_extra_length``, or of the call.
      min_length: Minimum number of tokens before EOS. Maximum lengths take precedence: a hypothesis
        with a lower maximum is cut off unfinished.
      no_repeat_ngram: Forbids repeated n-grams of this size in a hypothesis and the BOS before it;
        0 allows them. A sentence for which this forbids every continuation has no hypothesis.
      constraints: Callables that forbid tokens: see :mod:`jaxformer.search.constraints`. They apply
        after ``min_length`` and ``no_repeat_ngram``. Not part of a config file.
      bos_id: Token that starts every hypothesis; not part of the result. The defaults of the three
        ids are the ids in jaxformer's vocabularies.
      eos_id: Token that ends a hypothesis.
      other_ends: More tokens that end a hypothesis. Results have ``eos_id`` in their place, with
        the sum of the probabilities.
      pad_id: Padding of results after EOS; also the step function's input for finished sentences.

    Raises:
      UserError: A value is out of range, or two values contradict each other.
    """

    length_penalty: float = 0.6
    penalty: Penalty = "gnmt"
    max_extra_length: int = 50
    max_length: int | None = None
    min_length: int = 0
    no_repeat_ngram: int = 0
    constraints: tuple[Constraint, ...] = setting((), in_files=False)  # which are no plain values
    bos_id: int = setting(2, in_files=False)
    eos_id: int = setting(1, in_files=False)
    other_ends: tuple[int, ...] = setting((), in_files=False)
    pad_id: int = setting(0, in_files=False)

    _size: ClassVar[str]  # the field with the number of hypotheses
    # Numbers that jitted functions trace always, or unless they have their default, which is free.
    _traced: ClassVar[tuple[str, ...]] = ()
    _traced_unless_default: ClassVar[tuple[str, ...]] = ("min_length",)

    def __post_init__(self) -> None:
        check_values(self)

        self._check("length_penalty", 0 <= self.length_penalty <= 10, "be 0 to 10")
        self._check("max_extra_length", self.max_extra_length > 0, "be greater than 0")
        self._check("min_length", self.min_length >= 0, "be 0 or more")
        self._check("no_repeat_ngram", self.no_repeat_ngram >= 0, "be 0 or more")

        long_enough = self.max_length is None or self.max_length > self.min_length
        self._check("max_length", long_enough, f"exceed min_length={self.min_length}")

        # Callers may give a list, which is not hashable.
        object.__setattr__(self, "constraints", tuple(self.constraints))

        self._check(self._size, self.num_hypotheses > 0, "be greater than 0")
        self._check(self._size, self.num_hypotheses <= 1000, "be at most 1000")

    @property
    def num_hypotheses(self) -> int:
        """Number of hypotheses per sentence, N."""
        return getattr(self, self._size)

    @property
    def extra_length(self) -> int:
        """Maximum number of tokens in excess of the source, at least ``min_length`` + 1."""
        return max(self.max_extra_length, self.min_length + 1)

    @abc.abstractmethod
    def initial_state(self, shared: dict[str, Any], keys: Key[Array, "..."] | None) -> Any:
        """Returns the state before the first step, given its fields of ``SearchState``.

        Its N hypotheses are empty, with log probability 0. For the keys, see :meth:`start`.
        """

    @abc.abstractmethod
    def extend(self, state: Any, output: TokenScores) -> Any:
        """Returns the state, without its cache, with one more token, given a step's output."""

    @abc.abstractmethod
    def finalize(self, state: Any) -> BeamResult:
        """Returns the N hypotheses of each sentence, best first."""

    def start(
        self,
        cache: Any,
        max_lengths: MaxLengths,
        capacity: int,
        prefix: Prefix | None = None,
        *,
        keys: Key[Array, "..."] | None = None,
        sentence_ids: Int[Array, " B"] | None = None,
        first_tokens: Int[Array, " B"] | None = None,
        n_best: int | Int[Array, ""] = 0,
        contrast: bool = False,
    ) -> Any:
        """Returns the state before the first step, a pytree.

        Args:
          cache: The cache of the step function: any pytree, whose structure, shapes and dtypes it
            must keep. Arrays with leading axes ``[B, N]`` belong to hypotheses and are reordered
            with them. Arrays with leading axes ``[B, 1]`` are shared by the hypotheses of a
            sentence, and scalars by all hypotheses; neither is ever copied or reordered.
          max_lengths: Maximum number of tokens of each sentence, EOS included; clipped to
            ``capacity``. A sentence with limit 0 costs no step, and its result is empty.
          capacity: Size of the result in tokens, EOS included, T.
          prefix: Tokens that every hypothesis of a sentence starts with, padded on the right with
            ``pad_id``. They count toward length, score and limit. If the limit is not longer than
            the prefix, it truncates the prefix, and the hypothesis is unfinished.
          keys: One typed PRNG key per sentence, for sampling; derived from ``seed`` and
            ``sentence_ids`` when None.
          sentence_ids: Ids of the sentences, int32, for constraints and keys; indices in the batch
            when None.
          first_tokens: Inputs of the first step, such as the last token of a prompt whose other
            tokens are in the cache; ``bos_id`` when None.
          n_best: Number of hypotheses that are needed, best first; 0 for all. The others may then
            be other than the next best. A beam search with ``early_stop="proven"`` stops sooner.
          contrast: Whether the step function is of :func:`~jaxformer.search.contrast`; the state
            then also has the log probabilities of the expert.

        Raises:
          UserError: An argument is out of range, or the cache has other axes.
        """
        size = self.num_hypotheses
        shared = initial_fields(
            cache,
            max_lengths,
            hypotheses=size,
            capacity=min(capacity, self.max_length or capacity),
            prefix=prefix,
            sentence_ids=sentence_ids,
        )

        first = self.bos_id if first_tokens is None else first_tokens[:, None]
        # All arrays are laid out like the maximum lengths, one row per sentence.
        rows = shared["max_lengths"]
        shared["n_best"] = jnp.asarray(n_best, jnp.int32)
        shared["tokens"] = zeros_for_rows(rows, (size, capacity), jnp.int32) + self.pad_id
        shared["newest"] = zeros_for_rows(rows, (size,), jnp.int32) + first
        shared["log_probs"] = zeros_for_rows(rows, (size,), jnp.float32)
        shared["expert_log_probs"] = None
        if contrast:
            shared["expert_log_probs"] = jnp.zeros_like(shared["log_probs"])
        return self.initial_state(shared, keys)

    def prefill(
        self,
        prefill_fn: Callable[..., tuple[Float[Array, "B P"] | ContrastiveScores, Any]],
        state: Any,
    ) -> Any:
        """Returns the state after reading forced tokens in one pass instead of one by one.

        It reads the tokens that are forced for all sentences that are not done; :meth:`advance`
        reads the rest. Calling it is optional: it saves time and does not change the result.

        Args:
          prefill_fn: ``(inputs [B, P], targets [B, P], length, cache) -> (log_probs [B, P],
            cache)``: log probabilities of the targets given the inputs up to their position, and
            the cache including the first ``length`` inputs. Inputs begin with the input of the
            first step. Like a step, it returns ``ContrastiveScores`` of a contrast.
          state: From :meth:`start`.
        """
        prefix = state.prefix
        newest = state.newest[:, :1]
        width = prefix.shape[1]
        if not width:
            return state

        # Of all sentences that are not done, the first end of a prefix, EOS or limit ends the pass.
        # The loop handles hypotheses at their limit, which are unfinished.
        stops = (prefix == self.pad_id) | (prefix == self.eos_id)
        positions = jnp.arange(width, dtype=jnp.int32)[None]  # [1, P]
        forced = jnp.where(stops, positions, width).min(axis=1)  # [B]
        before_limit = jnp.maximum(state.max_lengths - 1, 0)
        forced = jnp.minimum(forced, before_limit)
        length = jnp.where(state.done, width, forced).min().astype(jnp.int32)

        # The input of each position is the token before it.
        inputs = jnp.concatenate([newest, prefix[:, :-1]], axis=1)
        output, cache = prefill_fn(inputs, prefix, length, state.cache)

        # The next input is the last token that was read, or the first input if none was.
        is_read = (positions < length) & ~state.done[:, None]  # [B, P]
        inputs_to_end = jnp.concatenate([newest, prefix], axis=1)
        newest = jnp.take(inputs_to_end, length, axis=1)

        # A prefix may be longer than the capacity, which then truncates it.
        capacity = state.tokens.shape[2]
        read = jnp.where(is_read, prefix, self.pad_id)[:, None, :capacity]
        tokens = state.tokens.at[:, :, : read.shape[2]].set(read)

        def add_read(log_probs: Float[Array, "B N"], new: Float[Array, "B P"]) -> Array:
            read_log_probs = jnp.where(is_read, new, 0.0).sum(axis=1)
            return log_probs + read_log_probs[:, None]

        newest = jnp.broadcast_to(newest[:, None], state.newest.shape)
        if isinstance(output, ContrastiveScores):
            expert = add_read(state.expert_log_probs, output.expert)
            state = dataclasses.replace(state, expert_log_probs=expert)

        return dataclasses.replace(
            state,
            step=length,
            tokens=tokens,
            newest=newest,
            log_probs=add_read(state.log_probs, scores_of(output)),
            cache=cache,
        )

    def advance(
        self,
        step_fn: StepFn | ContrastiveStep,
        state: Any,
        until: int | Int[Array, ""],
        unfinished: int = 0,
    ) -> Any:
        """Returns the state after ``until`` tokens, or when every sentence is done.

        Args:
          step_fn: ``(tokens [B, N] int32, cache) -> (logits [B, N, V], cache)``: from the newest
            token of each hypothesis, at first BOS, to scores of the next token. Logits of any float
            dtype are normalized in float32; -inf means impossible; V is at least 2. One from
            :func:`~jaxformer.search.contrast` returns scores that are not normalized.
          state: From :meth:`start` or a previous call; its cache may have grown.
          until: Value of ``state.step`` to stop at.
          unfinished: Also stop when at most so many sentences are not done, to continue with these
            in a smaller batch.

        Raises:
          UserError: The logits have other axes than expected, EOS or a token of the prefix is not
            in the vocabulary, or only the step function or only the state is of a contrast.
        """

        def step(state: Any) -> Any:
            output, cache = call_step_fn(
                step_fn,
                state.newest,
                state.cache,
                eos_id=self.eos_id,
                other_ends=self.other_ends,
            )

            # Each device extends its own rows. ``extend`` does not need the cache.
            state = dataclasses.replace(state, cache=())
            state = map_rows(
                lambda _, *rows: self.extend(*rows),
                (),
                state,
                output,
            )
            return dataclasses.replace(state, cache=state.reorder(cache))

        needs_expert = isinstance(step_fn, ContrastiveStep)
        has_expert = state.expert_log_probs is not None
        if needs_expert != has_expert:
            raise UserError(
                f"a step function of contrast needs start(..., contrast=True), and only that: got "
                f"contrast={has_expert} for {step_fn!r:.80}"
            )
        check_prefix(step_fn, state, self.eos_id, pad_id=self.pad_id)
        return run_until_done(step, state, until, unfinished=unfinished)

    def __call__(
        self,
        step_fn: StepFn | ContrastiveStep,
        cache: Any,
        *,
        max_lengths: MaxLengths,
        capacity: int,
        prefix: Prefix | None = None,
        keys: Key[Array, "..."] | None = None,
        sentence_ids: Int[Array, " B"] | None = None,
        prefill_fn: PrefillFn | None = None,
    ) -> BeamResult:
        """Runs the whole search. The methods that it calls describe the arguments and errors.

        It works inside your own ``jit`` and ``vmap``. Outside, wrap it in ``jax.jit`` to compile
        it once.
        """
        state = self.start(
            cache,
            max_lengths,
            capacity,
            prefix=prefix,
            keys=keys,
            sentence_ids=sentence_ids,
            contrast=isinstance(step_fn, ContrastiveStep),
        )
        if prefill_fn is not None:
            state = self.prefill(prefill_fn, state)

        state = self.advance(step_fn, state, capacity)
        return self.finalize(state)

    def split_numbers(self, capacity: int) -> tuple["Algorithm", Numbers]:
        """Returns the static part of a search, which is hashable, and its numbers, a pytree.

        A jitted function takes both and joins them by :meth:`join_numbers`. Searches that differ
        only in numbers then share a program: a sweep over the length penalty or the temperature
        compiles once. The static part has no ``max_length``: the caller limits the capacity.
        """
        values: Numbers = {
            "max_extra_length": np.int32(self.extra_length),
            "length_penalty": length_penalties(self.penalty, self.length_penalty, capacity),
            "constraints": as_pytrees(self.constraints),
        }

        not_default = [name for name in self._traced_unless_default if self._is_set(name)]
        for name in [*self._traced, *not_default]:
            value = getattr(self, name)
            if isinstance(value, int):
                values[name] = np.int32(value)
            else:
                values[name] = np.float32(value)

        # In the static part, None replaces the numbers, so that all these searches are equal.
        without_numbers = dict.fromkeys(values) | {"max_length": None}
        return self.join_numbers(without_numbers), values

    def join_numbers(self, values: Numbers) -> "Algorithm":
        """Returns the search with its numbers, which may be traced; the inverse of the split."""
        search = copy.copy(self)
        for name, value in values.items():
            # Unchecked, since the values may be traced.
            object.__setattr__(search, name, value)
        return search

    def _is_set(self, name: str) -> bool:
        """Returns whether a number is traced or differs from its default."""
        value = getattr(self, name)
        if not isinstance(value, int | float):
            return True  # traced
        return value != getattr(type(self), name)

    def _penalties(self, capacity: int) -> Float[Array, " L"]:
        """Returns the penalty of every length from 0 to the capacity."""
        alpha = self.length_penalty
        if isinstance(alpha, int | float):
            return jnp.asarray(length_penalties(self.penalty, alpha, capacity))

        # ``split_numbers`` has replaced alpha by the table of penalties.
        return jnp.asarray(alpha)[: capacity + 1]

    def _constraints(self) -> list[Constraint]:
        """Returns the constraints of all fields, in the order in which they apply."""
        constraints: list[Constraint] = []
        if self._is_set("min_length"):
            constraints.append(MinLength(self.min_length))
        if self.no_repeat_ngram:
            constraints.append(NoRepeatNgram(self.no_repeat_ngram))

        constraints.extend(self.constraints)
        return constraints

    @property
    def _changes_logits(self) -> bool:
        """True if constraints may return logits other than -inf and the step function's."""
        only_forbid = (MinLength, NoRepeatNgram)
        return not all(isinstance(c, only_forbid) for c in self._constraints())

    def _constrain(self, output: TokenScores, state: Any) -> Float[Array, "B N V"]:
        """Returns the scores with -inf for forbidden tokens; the same array without constraints."""
        logits = scores_of(output)
        constraints = self._constraints()
        if isinstance(output, ContrastiveScores):
            constraints.append(Plausible(output.expert, output.alpha))
        if state.prefix.shape[1]:
            # After all others, so that none of them can forbid the prefix.
            constraints.append(ForcedPrefix())

        context = SearchContext(
            logits=logits,
            tokens=state.tokens,
            step=state.step,
            prefix=state.prefix,
            sentence_ids=state.sentence_ids,
            bos_id=self.bos_id,
            eos_id=self.eos_id,
            pad_id=self.pad_id,
        )

        allowed = logits
        for constraint in constraints:
            allowed = constraint(allowed, context)
            if getattr(allowed, "shape", None) != logits.shape:
                raise UserError(
                    f"a constraint must return logits [batch, beams, vocabulary] = {logits.shape}: "
                    f"got {getattr(allowed, 'shape', type(allowed).__name__)} of {constraint}"
                )
            # A constraint may compute in another dtype.
            allowed = allowed.astype(jnp.float32)
        return allowed

    def _check(self, name: str, is_valid: bool, must: str) -> None:
        if not is_valid:
            raise UserError(f"{name} must {must}: got {getattr(self, name)}")
