"""The loop of every search, which calls a step function until all sentences are done."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.search.settings import SearchSettings
from jaxformer.search.state import BeamState, SampleState

StepFn: TypeAlias = Callable[[Int[Array, "B N"], Any], tuple[Float[Array, "B N V"], Any]]
# (inputs [B, P], targets [B, P], length [], cache) -> (log probabilities of the targets [B, P],
# cache including the first ``length`` inputs): equivalent to many calls of the step function.
PrefillFn: TypeAlias = Callable[
    [Int[Array, "B P"], Int[Array, "B P"], Int[Array, ""], Any], tuple[Float[Array, "B P"], Any]
]
State = TypeVar("State", BeamState, SampleState)

# Steps of one scan, the body of the outer loop.
STEPS_PER_CHUNK = 8


def repeat(step: Callable[[State], State], state: State, until: int | Int[Array, ""]) -> State:
    """Applies ``step`` until ``state.step`` is ``until`` or every sentence is done."""

    def chunk(state: State) -> State:
        def at_most_once(state: State, _: None) -> tuple[State, None]:
            # A loop of at most one iteration, since lax.cond would copy the cache.
            end = jnp.minimum(state.step + 1, until)
            return lax.while_loop(lambda state: _continues(state, end), step, state), None

        return lax.scan(at_most_once, state, length=STEPS_PER_CHUNK)[0]

    return lax.while_loop(lambda state: _continues(state, until), chunk, state)


def _continues(state: BeamState | SampleState, until: int | Array) -> Array:
    return ~state.done.all() & (state.step < until)


def call(
    step_fn: StepFn, tokens: Int[Array, "B N"], cache: Any, eos_id: int
) -> tuple[Float[Array, "B N V"], Any]:
    """Calls the step function; returns float32 logits and the new cache.

    Raises:
      UserError: ``step_fn`` does not return logits and a cache, the logits have other axes, or EOS
        is not in the vocabulary.
    """
    returned = step_fn(tokens, cache)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise UserError(
            f"step_fn must return a pair, (logits, cache): got a {type(returned).__name__}"
        )
    logits, cache = returned
    if logits.ndim != 3 or logits.shape[:2] != tokens.shape or logits.shape[2] < 2:
        raise UserError(
            f"step_fn must return logits [batch, beams, vocabulary] = [{tokens.shape[0]}, "
            f"{tokens.shape[1]}, 2 or more]: got shape {logits.shape}"
        )
    if not 0 <= eos_id < logits.shape[2]:
        raise UserError(
            f"eos_id must be a token of the vocabulary, 0 to {logits.shape[2] - 1}: got {eos_id}"
        )
    return logits.astype(jnp.float32), cache


def check_prefix(
    step_fn: StepFn,
    tokens: Int[Array, "B N"],
    cache: Any,
    prefix: Int[Array, "B P"],
    settings: SearchSettings,
) -> None:
    """Checks that tokens of the prefix are in the vocabulary. A traced prefix cannot be checked.

    Raises:
      UserError: A token is not in the vocabulary.
    """
    if not prefix.size or isinstance(prefix, Tracer) or not prefix.is_fully_addressable:
        return
    logits, _ = jax.eval_shape(
        lambda tokens, cache: call(step_fn, tokens, cache, settings.eos_id), tokens, cache
    )
    vocabulary = logits.shape[2]
    for row, ids in enumerate(prefix.tolist()):
        for token in ids:
            if token != settings.pad_id and not 0 <= token < vocabulary:
                raise UserError(
                    f"prefix[{row}] must be tokens of the vocabulary, 0 to {vocabulary - 1}, or "
                    f"padding, {settings.pad_id}: got {token}"
                )


def first(settings: SearchSettings, tokens: Int[Array, " B"] | None) -> Any:
    """Returns the inputs of the first step, to be broadcast to [B, N]: the tokens, or BOS."""
    return settings.bos_id if tokens is None else tokens[:, None]


class Prefilled(NamedTuple):
    """Results of reading the first tokens of the prefixes in one pass.

    Attributes:
      length: Number of tokens read, int32.
      tokens: Tokens of each sentence, int32, with padding after ``length`` and in done sentences.
      newest: The last token read, or the input of the first step.
      log_probs: Log probability of the tokens read, float32.
      cache: The step function's cache, which includes all but the newest token.
    """

    length: Int[Array, ""]
    tokens: Int[Array, "B P"]
    newest: Int[Array, " B"]
    log_probs: Float[Array, " B"]
    cache: Any


def prefill(
    settings: SearchSettings,
    prefill_fn: PrefillFn,
    state: BeamState | SampleState,
    newest: Int[Array, "B 1"],
) -> Prefilled:
    """Reads the tokens of the prefixes that all sentences have forced, in one pass.

    The pass ends where the first sentence has fewer forced tokens, an EOS or its limit; the loop
    reads the rest one by one. Sentences that are done do not count. ``newest`` is the input of the
    first step.
    """
    prefix, done = state.prefix, state.done
    stops = (prefix == settings.pad_id) | (prefix == settings.eos_id)
    positions = jnp.arange(prefix.shape[1], dtype=jnp.int32)[None]
    forced = jnp.where(stops, positions, prefix.shape[1]).min(axis=1)
    # The loop handles hypotheses at their limit, which are unfinished.
    forced = jnp.minimum(forced, jnp.maximum(state.max_lengths - 1, 0))
    length = jnp.where(done, prefix.shape[1], forced).min().astype(jnp.int32)
    inputs = jnp.concatenate([newest, prefix[:, :-1]], axis=1)
    log_probs, cache = prefill_fn(inputs, prefix, length, state.cache)
    read = (positions < length) & ~done[:, None]
    newest = jnp.take(jnp.concatenate([newest, prefix], axis=1), length, axis=1)
    return Prefilled(
        length=length,
        tokens=jnp.where(read, prefix, settings.pad_id),
        newest=newest,
        log_probs=jnp.where(read, log_probs, 0.0).sum(axis=1),
        cache=cache,
    )


def log_probs_of(
    chosen: Float[Array, "B N K"], logits: Float[Array, "B N V"], at_most: float = 0.0
) -> Float[Array, "B N K"]:
    """Returns log probabilities of tokens, given their logits ``chosen`` and all ``logits``."""
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    # Rounding must not give a probability above one, or NaN for impossible tokens (-inf + inf).
    return jnp.where(chosen == -jnp.inf, -jnp.inf, jnp.minimum(chosen - total, at_most))


def append(
    tokens: Int[Array, "B N T"], new: Int[Array, "B N"], step: Int[Array, ""]
) -> Int[Array, "B N T"]:
    """Returns the tokens with ``new`` written at position ``step``."""
    return lax.dynamic_update_slice_in_dim(tokens, new[:, :, None], step, axis=2)
