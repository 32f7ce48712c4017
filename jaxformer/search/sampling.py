"""Sampling from any step function, token by token, as one XLA program.

Every token is drawn from the softmax of the allowed logits divided by the temperature, after
filters in the order of Hugging Face. Each filter sees renormalized probabilities. Log probabilities
are still the step function's.

Samples are independent. A draw depends on the key of the sentence, the index of the sample and the
step, but not on the batch or the number of samples. To reproduce a sentence in another batch, give
it the same key, for instance ``jax.random.fold_in(key, number)``.
"""

import dataclasses
import functools
import math
import reprlib
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from jaxformer.errors import UserError
from jaxformer.layout import shard_rows_like, take_rows
from jaxformer.search.algorithm import Algorithm
from jaxformer.search.contrast import ContrastiveStep
from jaxformer.search.state import (
    BeamResult,
    ContrastiveScores,
    MaxLengths,
    Prefix,
    SampleState,
    TokenScores,
    best_first,
    scores_of,
)
from jaxformer.search.step_loop import PrefillFn, StepFn, log_probs_of

Number: TypeAlias = float | Float[Array, ""]
_BLOCK = 64  # number of tokens that a draw first takes together


def in_nucleus(logits: Float[Array, "B N K"], top_p: Number) -> Bool[Array, "B N K"]:
    """Returns the mask of the fewest tokens with this total probability, and their ties."""
    greatest = logits.max(axis=-1, keepdims=True)
    distance = greatest - logits
    probabilities = jax.nn.softmax(logits, axis=-1)
    return _smallest_set(distance, probabilities, top_p)


def is_probable(logits: Float[Array, "B N K"], min_p: Number) -> Bool[Array, "B N K"]:
    """Returns the mask of tokens with at least ``min_p`` times the largest probability."""
    greatest = logits.max(axis=-1, keepdims=True)
    return logits >= greatest + jnp.log(min_p)


def is_typical(logits: Float[Array, "B N K"], typical_p: Number) -> Bool[Array, "B N K"]:
    """Returns the mask of the fewest most typical tokens with this probability, and their ties."""
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    probabilities = jnp.exp(log_probs)
    entropies = jax.scipy.special.entr(probabilities)
    entropy = entropies.sum(axis=-1, keepdims=True)

    distance = jnp.abs(-log_probs - entropy)
    return _smallest_set(distance, probabilities, typical_p)


# Filters by the field that has their argument, in the order in which they apply, after ``top_k``: a
# filter returns the mask of the tokens that it keeps. The default of the field disables it.
FILTERS: dict[str, Callable[[Array, Number], Array]] = {
    "top_p": in_nucleus,
    "min_p": is_probable,
    "typical_p": is_typical,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(Algorithm):
    """Random sampling of hypotheses from the distribution that the step function defines.

    An example is ``Sampling(num_samples=4, temperature=0.8, top_k=20)``. The defaults sample from
    the unmodified distribution. It also has the attributes and methods of :class:`Algorithm`.
    Filters apply after the temperature, in the order of the attributes.
    :mod:`jaxformer.search.sampling` describes the sampling.

    Attributes:
      num_samples: Number of samples per sentence, N, at most 1000.
      temperature: Divisor of the logits; samples are less varied below 1, more varied above 1.
      top_k: Samples only from this many most probable tokens (Fan et al. 2018); 0 for all. Of
        equally probable tokens, those with smaller ids come first.
      top_p: Samples only from the smallest set of most probable tokens with at least this total
        probability, the nucleus (Holtzman et al. 2020), and their ties; 1 for all.
      min_p: Samples only from tokens with at least this fraction of the largest probability (Nguyen
        et al. 2024); 0 for all.
      typical_p: Samples only from the smallest set of most typical tokens with at least this total
        probability (Meister et al. 2023); 1 for all. The information content of a typical token,
        -log p, is close to the entropy.
      seed: Seed of the samples, 0 to 2^31 - 1; the same seed gives the same samples.
    """

    num_samples: int = 4
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int = 0

    _size: ClassVar[str] = "num_samples"
    _traced: ClassVar[tuple[str, ...]] = ("temperature", "seed")
    _traced_unless_default: ClassVar[tuple[str, ...]] = ("min_length", *FILTERS)

    def __post_init__(self) -> None:
        super().__post_init__()

        must = "be greater than 0 (beam search with beam_size 1 takes the most probable tokens)"
        self._check("temperature", 0 < self.temperature < math.inf, must)

        self._check("top_k", self.top_k >= 0, "be 0 or more")
        self._check("top_p", 0 < self.top_p <= 1, "be above 0 and at most 1")
        self._check("min_p", 0 <= self.min_p <= 1, "be from 0 to 1")
        self._check("typical_p", 0 < self.typical_p <= 1, "be above 0 and at most 1")

        self._check("seed", 0 <= self.seed < 2**31, f"be from 0 to {2**31 - 1}")

    def initial_state(self, shared: dict[str, Any], keys: Key[Array, "..."] | None) -> SampleState:
        """Returns the state with N empty samples per sentence."""
        sentences: Array = shared["max_lengths"]
        if keys is None:
            keys = sentence_keys(self.seed, shared["sentence_ids"])
        elif not _is_key(keys):
            raise UserError(
                "keys must be an array of typed PRNG keys, as of jax.random.split(jax.random.key(0)"
                f", {sentences.shape[0]}): got {reprlib.repr(keys)}"
            )

        none = shared["newest"] * 0  # with its layout
        return SampleState(
            **shared,
            keys=shard_rows_like(keys, sentences),
            lengths=none,
            finished=none != 0,
        )

    def extend(self, state: SampleState, output: TokenScores) -> SampleState:
        logits = scores_of(output)
        allowed = self._constrain(output, state)
        tokens = self.draw(allowed, state.keys, state.step)

        # Finished samples do not change.
        before = state.finished | state.done[:, None]
        tokens = jnp.where(before, self.pad_id, tokens)

        # The log probability is the step function's, even if constraints have changed the logits.
        drawn = jnp.take_along_axis(allowed, tokens[:, :, None], axis=2)
        if self._changes_logits:
            own = jnp.take_along_axis(logits, tokens[:, :, None], axis=2)
            is_impossible = drawn == -jnp.inf
            drawn = jnp.where(is_impossible, -jnp.inf, own)
        new = drawn[:, :, 0]
        expert_log_probs = state.expert_log_probs
        if isinstance(output, ContrastiveScores) and expert_log_probs is not None:
            own = jnp.take_along_axis(output.expert, tokens[:, :, None], axis=2)
            expert_log_probs += jnp.where(before, 0.0, own[:, :, 0])
        else:
            totals = jax.nn.logsumexp(logits, axis=2)
            new = log_probs_of(new, totals)
        log_probs = state.log_probs + jnp.where(before, 0.0, new)

        finished = before | (tokens == self.eos_id)
        finished |= log_probs == -jnp.inf

        length = state.step + 1
        newest = tokens[:, :, None]
        done = state.done | (length >= state.max_lengths)
        done |= finished.all(axis=1)
        return dataclasses.replace(
            state,
            step=length,
            done=done,
            newest=tokens,
            tokens=lax.dynamic_update_slice_in_dim(
                state.tokens,
                newest,
                state.step,
                axis=2,
            ),
            lengths=jnp.where(before, state.lengths, length),
            finished=finished,
            log_probs=log_probs,
            expert_log_probs=expert_log_probs,
        )

    def draw(
        self,
        logits: Float[Array, "B N V"],
        keys: Key[Array, " B"],
        step: Int[Array, ""],
    ) -> Int[Array, "B N"]:
        """Returns one token per sample, int32; an impossible token (-inf) only if all are."""
        logits, tokens = self.truncate(logits / self.temperature)
        samples = jnp.arange(logits.shape[1], dtype=jnp.int32)

        def uniform_pair(key: Array, sample: Array) -> Array:
            key = jax.random.fold_in(key, sample)
            key = jax.random.fold_in(key, step)
            return jax.random.uniform(key, (2,))

        for_samples = jax.vmap(uniform_pair, in_axes=(None, 0))
        for_sentences = jax.vmap(for_samples, in_axes=(0, None))
        uniform = for_sentences(keys, samples)  # [B, N, 2]
        index = _draw(logits, uniform)
        if tokens is None:
            return index

        drawn = jnp.take_along_axis(tokens, index[:, :, None], axis=2)
        return drawn[:, :, 0]

    def truncate(
        self,
        logits: Float[Array, "B N V"],
    ) -> tuple[Float[Array, "B N K"], Int[Array, "B N K"] | None]:
        """Returns filtered logits, -inf for other tokens, and their token ids; None for all ids."""
        tokens = None
        if self.top_k:
            vocabulary = logits.shape[2]
            logits, tokens = lax.top_k(logits, min(self.top_k, vocabulary))

        for name, keeps in FILTERS.items():
            if not self._is_set(name):
                continue
            argument = getattr(self, name)
            is_kept = keeps(logits, argument)
            logits = jnp.where(is_kept, logits, -jnp.inf)
        return logits, tokens

    def finalize(self, state: SampleState) -> BeamResult:
        """Returns the samples, best score first; samples at a dead end do not exist."""
        capacity = state.tokens.shape[2]
        penalties = take_rows(self._penalties(capacity), state.lengths)
        result = BeamResult(
            tokens=state.tokens,
            lengths=state.lengths,
            scores=state.log_probs / penalties,
            log_probs=state.own_log_probs,
        )
        return best_first(result, self.pad_id)


def _is_key(keys: Any) -> bool:
    return isinstance(keys, Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)


def _smallest_set(
    distance: Float[Array, "B N V"],
    masses: Float[Array, "B N V"],
    needed: Number,
) -> Bool[Array, "B N V"]:
    """Returns the mask of the fewest values with the total mass needed, and their ties.

    Values with the smallest distance come first. Bisects the bits of the largest distance kept,
    since nonnegative floats have the order of their bits.

    Args:
      distance: Nonnegative, float32.
      masses: Nonnegative, with a sum of about one.
      needed: Least total mass; if the sum is less, all values are kept.
    """
    bits = lax.bitcast_convert_type(distance, jnp.int32)

    def set_bit(number: Int[Array, ""], largest: Array) -> Array:
        # The bit stays 0 if the values below are enough without it.
        larger = largest | (1 << (30 - number))
        below = jnp.where(bits < larger, masses, 0.0)
        mass_below = below.sum(axis=-1, keepdims=True)
        return jnp.where(mass_below < needed, larger, largest)

    no_bits = jnp.zeros_like(bits[..., :1])
    largest = lax.fori_loop(0, 31, set_bit, no_bits)
    return bits <= largest


def _draw(
    logits: Float[Array, "B N V"],
    uniform: Float[Array, "B N 2"],
) -> Int[Array, "B N"]:
    """Draws an index from the softmax of each row, given two uniform numbers in [0, 1).

    Draws a block, then one of its values; XLA's cumulative sum of a whole row takes longer. An
    impossible index (-inf) is drawn only if all are.
    """
    greatest = logits.max(axis=-1, keepdims=True)
    weights = jnp.exp(logits - greatest)

    # [B, N, blocks, block]
    *rows, vocabulary = logits.shape
    missing = -vocabulary % _BLOCK
    padding = [(0, 0)] * len(rows) + [(0, missing)]
    table = jnp.pad(weights, padding)
    table = table.reshape(*rows, -1, _BLOCK)

    masses = table.sum(axis=-1)
    block = _draw_weighted(masses, uniform[..., 0])
    own = jnp.take_along_axis(table, block[..., None, None], axis=-2)
    own = own[..., 0, :]
    first = block * _BLOCK
    return first + _draw_weighted(own, uniform[..., 1])


def _draw_weighted(
    weights: Float[Array, "B N K"],
    uniform: Float[Array, "B N"],
) -> Int[Array, "B N"]:
    ends = jnp.cumsum(weights, axis=-1)
    threshold = uniform[..., None] * ends[..., -1:]
    is_before = ends <= threshold
    return is_before.sum(axis=-1, dtype=jnp.int32)


def sentence_keys(
    seed: int | np.int32 | Int[Array, ""],
    numbers: Int[Array, " B"],
) -> Key[Array, " B"]:
    """Returns one random key per sentence, derived from the seed and its number."""
    # With keys other than Threefry's, such as "rbg", numbers drawn under vmap depend on the batch.
    key = jax.random.key(seed, impl="threefry2x32")
    fold_in = functools.partial(jax.random.fold_in, key)
    return jax.vmap(fold_in)(numbers)


def sample(
    step_fn: StepFn | ContrastiveStep,
    cache: Any,
    *,
    max_lengths: MaxLengths,
    capacity: int,
    prefix: Prefix | None = None,
    keys: Key[Array, "..."] | None = None,
    prefill_fn: PrefillFn | None = None,
    length_penalty: float = 0.0,
    **fields: Any,
) -> BeamResult:
    """Returns samples, best score first: ``Sampling(**fields)`` in one call.

    Takes the arguments of :func:`~jaxformer.search.beam_search`, and ``keys``, one typed PRNG key
    per sentence. By default, scores are log probabilities, without a length penalty.

    >>> logits = jnp.log(jnp.array([0.0, 0.1, 0.9]))  # 1 is EOS
    >>> step_fn = lambda tokens, cache: (jnp.broadcast_to(logits, (*tokens.shape, 3)), cache)
    >>> result = sample(
    ...     step_fn, (), max_lengths=[4], capacity=4, num_samples=2, bos_id=0, top_k=1)
    >>> result.tokens[0].tolist()
    [[2, 2, 2, 2], [2, 2, 2, 2]]
    """
    search = Sampling(length_penalty=length_penalty, **fields)
    return search(
        step_fn,
        cache,
        max_lengths=max_lengths,
        capacity=capacity,
        prefix=prefix,
        keys=keys,
        prefill_fn=prefill_fn,
    )
