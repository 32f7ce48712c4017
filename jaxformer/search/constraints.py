"""Constraints: callables that forbid tokens during a search.

A constraint takes logits, [B, N, V], and a :class:`SearchContext`, and returns logits with -inf for
forbidden tokens. Constraints affect only the choice of tokens. Log probabilities, and thus scores,
are still the step function's.

A function, or a hashable object with ``__call__`` such as a frozen dataclass, is part of the
compiled program, like a static argument of ``jax.jit``. A constraint may also be a pytree, such as
``jax.tree_util.Partial(function, array)`` or a registered dataclass. Its arrays are then traced,
and other arrays of the same shapes need no compilation.

>>> from jaxformer.search import beam_search
>>> def forbid(tokens, logits, context):
...     return logits.at[:, :, tokens].set(-jnp.inf)
>>> step_fn = lambda tokens, cache: (jnp.zeros((*tokens.shape, 5)), cache)
>>> constraint = jax.tree_util.Partial(forbid, jnp.array([0, 2, 4]))
>>> beam_search(step_fn, (), max_lengths=[3], capacity=3, beam_size=1, min_length=2,
...             constraints=(constraint,)).tokens.tolist()
[[[3, 3, 1]]]
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxformer.errors import UserError

# (logits [B, N, V], SearchContext) -> logits [B, N, V]
Constraint: TypeAlias = Callable[[Any, Any], Any]


class SearchContext(NamedTuple):
    """Information for constraints.

    Attributes:
      logits: Logits of the next token from the step function, before any constraint, float32.
      tokens: Tokens of the hypotheses so far, int32, without BOS: the first ``step`` are valid.
      step: Number of tokens so far, int32.
      prefix: Tokens that the hypotheses must start with, int32; ``pad_id`` leaves a position free.
      sentence_ids: Ids of the sentences, int32, as given to
        :meth:`~jaxformer.search.Algorithm.start`; their indices in the batch if none were given.
      bos_id: Token that starts every hypothesis, and is not among ``tokens``.
      eos_id: Token that ends a hypothesis.
      pad_id: Padding token.
    """

    logits: Float[Array, "B N V"]
    tokens: Int[Array, "B N T"]
    step: Int[Array, ""]
    prefix: Int[Array, "B P"]
    sentence_ids: Int[Array, " B"]
    bos_id: int
    eos_id: int
    pad_id: int


@dataclasses.dataclass(frozen=True)
class MinLength:
    """Forbids EOS before a hypothesis has ``n`` tokens."""

    n: int | Int[Array, ""]

    def __call__(self, logits: Float[Array, "B N V"], context: SearchContext) -> Array:
        eos = context.eos_id
        is_short = context.step < self.n
        end = jnp.where(is_short, -jnp.inf, logits[:, :, eos])
        return logits.at[:, :, eos].set(end)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Suppress:
    """Forbids tokens."""

    tokens: Int[Array, " K"] | Int[np.ndarray, " K"]

    def __call__(self, logits: Float[Array, "B N V"], context: SearchContext) -> Array:
        return logits.at[:, :, self.tokens].set(-jnp.inf)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class SuppressFirst:
    """Forbids tokens as the first of a hypothesis."""

    tokens: Int[Array, " K"] | Int[np.ndarray, " K"]

    def __call__(self, logits: Float[Array, "B N V"], context: SearchContext) -> Array:
        suppressed = logits.at[:, :, self.tokens].set(-jnp.inf)
        return jnp.where(context.step == 0, suppressed, logits)


@dataclasses.dataclass(frozen=True)
class NoRepeatNgram:
    """Forbids tokens that would repeat an n-gram; ``n`` is at least 1.

    BOS before the hypothesis counts, as in Hugging Face.
    """

    n: int

    def __call__(self, logits: Float[Array, "B N V"], context: SearchContext) -> Array:
        start = jnp.full_like(context.tokens[:, :, :1], context.bos_id)
        tokens = jnp.concatenate([start, context.tokens], axis=2)
        repeats = repeats_ngram(
            tokens,
            context.step + 1,
            self.n,
            vocabulary=logits.shape[2],
        )
        return jnp.where(repeats, -jnp.inf, logits)


class Plausible(NamedTuple):
    """Forbids tokens that are improbable for the expert of a contrast (Li et al. 2023, eq. 4).

    Of the tokens that are still allowed, it keeps those with at least ``alpha`` times the largest
    probability.
    """

    expert: Float[Array, "B N V"]  # log probabilities
    alpha: Float[Array, ""]

    def __call__(self, logits: Float[Array, "B N V"], context: SearchContext) -> Array:
        allowed = jnp.where(logits == -jnp.inf, -jnp.inf, self.expert)
        greatest = allowed.max(axis=-1, keepdims=True)
        is_plausible = allowed >= greatest + jnp.log(self.alpha)
        return jnp.where(is_plausible, logits, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class ForcedPrefix:
    """Forbids all tokens except the prefix's, which no other constraint can forbid."""

    def __call__(self, logits: Float[Array, "B N V"], context: SearchContext) -> Array:
        # The prefix's token at this step, and whether there is one: [B, 1]. JAX clamps the index:
        # after the prefix, the token is its last one, which is not forced again.
        token = lax.dynamic_index_in_dim(context.prefix, context.step, axis=1)
        is_forced = token != context.pad_id
        is_forced &= context.step < context.prefix.shape[1]

        vocabulary = logits.shape[2]
        is_token = token == jnp.arange(vocabulary, dtype=jnp.int32)[None]  # [B, V]
        only_token = jnp.where(is_token[:, None], context.logits, -jnp.inf)
        return jnp.where(is_forced[:, None], only_token, logits)


def as_pytrees(constraints: Sequence[Constraint]) -> tuple[Any, ...]:
    """Converts constraints to arguments of jitted functions: arrays are traced, all else static."""

    def convert(constraint: Constraint) -> Any:
        is_pytree = not jax.tree_util.all_leaves([constraint])
        if is_pytree:
            return constraint

        try:
            hash(constraint)
        except TypeError:
            raise UserError(
                f"a constraint must be hashable, or a pytree that holds its arrays: got "
                f"{type(constraint).__name__}; register it with jax.tree_util.register_dataclass, "
                "or give jax.tree_util.Partial(function, array)"
            ) from None
        return jax.tree_util.Partial(constraint)

    return tuple(map(convert, constraints))


def repeats_ngram(
    tokens: Int[Array, "B N T"],
    step: Int[Array, ""],
    n: int,
    vocabulary: int,
) -> Bool[Array, "B N V"]:
    """Returns the mask of tokens that would make the newest n tokens repeat an earlier n-gram."""
    batch, beams, capacity = tokens.shape
    windows = max(capacity - n + 1, 0)

    # The newest n - 1 tokens. If there are fewer, no window is complete, and none matches.
    newest = lax.dynamic_slice_in_dim(
        tokens,
        start_index=step - n + 1,
        slice_size=min(n - 1, capacity),
        axis=2,
    )

    # Window i ends with token i + n - 1, which must already exist.
    last_tokens = jnp.arange(windows, dtype=jnp.int32) + n - 1
    matches = last_tokens < step
    matches = jnp.broadcast_to(matches, (batch, beams, windows))

    # All tokens of a window except its last must equal the newest ones.
    compared = n - 1 if windows else 0
    for i in range(compared):
        in_window = tokens[:, :, i : i + windows]
        matches &= in_window == newest[:, :, i : i + 1]

    # Of matching windows, the last token is a repetition. Other windows get an index that is out of
    # range, which "drop" ignores.
    last = tokens[:, :, capacity - windows :]
    repeated = jnp.where(matches, last, vocabulary)
    sentence, beam = jnp.ogrid[:batch, :beams]
    nothing = jnp.zeros((batch, beams, vocabulary), jnp.bool_)
    entries = nothing.at[sentence[:, :, None], beam[:, :, None], repeated]
    return entries.set(True, mode="drop")
