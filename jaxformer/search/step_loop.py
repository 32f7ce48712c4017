"""The loop of all searches, which calls a step function until all sentences are done."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.search.state import ContrastiveScores, State, TokenScores, scores_of

StepFn: TypeAlias = Callable[[Int[Array, "B N"], Any], tuple[Float[Array, "B N V"], Any]]
# Equivalent to many calls of the step function: from inputs [B, P], targets [B, P], a length [] and
# the cache to the log probabilities of the targets [B, P], and the cache with the first ``length``
# inputs.
PrefillFn: TypeAlias = Callable[
    [Int[Array, "B P"], Int[Array, "B P"], Int[Array, ""], Any], tuple[Float[Array, "B P"], Any]
]

_STEPS_PER_CHUNK = 8  # in one scan, the body of the outer loop


def run_until_done(
    step: Callable[[State], State],
    state: State,
    until: int | Int[Array, ""],
    unfinished: int,
) -> State:
    """Applies ``step`` until ``state.step`` is ``until`` or few sentences are not done."""

    def continues(state: State, until: int | Array) -> Array:
        is_busy = (~state.done).sum() > unfinished
        return is_busy & (state.step < until)

    def chunk(state: State) -> State:
        def at_most_once(state: State, _: None) -> tuple[State, None]:
            # A loop of at most one iteration, since lax.cond would copy the cache.
            end = jnp.minimum(state.step + 1, until)
            state = lax.while_loop(
                lambda state: continues(state, end),
                step,
                state,
            )
            return state, None

        state, _ = lax.scan(at_most_once, state, length=_STEPS_PER_CHUNK)
        return state

    return lax.while_loop(lambda state: continues(state, until), chunk, state)


def call_step_fn(
    step_fn: Callable[..., tuple[TokenScores, Any]],
    tokens: Int[Array, "B N"],
    cache: Any,
    eos_id: int,
    other_ends: tuple[int, ...] = (),
) -> tuple[TokenScores, Any]:
    """Calls the step function; returns its float32 logits, which it checks, and the new cache."""
    returned = step_fn(tokens, cache)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise UserError(
            f"step_fn must return a pair, (logits, cache): got a {type(returned).__name__}"
        )

    output, cache = returned
    logits = scores_of(output)
    is_table = logits.ndim == 3 and logits.shape[:2] == tokens.shape
    if not is_table or logits.shape[2] < 2:
        raise UserError(
            f"step_fn must return logits [batch, beams, vocabulary] = [{tokens.shape[0]}, "
            f"{tokens.shape[1]}, 2 or more]: got shape {logits.shape}"
        )

    vocabulary = logits.shape[2]
    fields = {"eos_id": [eos_id], "other_ends": other_ends}
    for name, ends in fields.items():
        for end in ends:
            if not 0 <= end < vocabulary:
                raise UserError(
                    f"{name} must be a token of the vocabulary, 0 to {vocabulary - 1}: got {end}"
                )

    output = jax.tree.map(lambda values: values.astype(jnp.float32), output)
    if other_ends:
        output = _merge_ends(output, eos_id, other_ends)

    # Without the barrier, XLA would compute the logits once for every shape that a search gives
    # them.
    return lax.optimization_barrier(output), cache


def _merge_ends(
    output: TokenScores,
    eos_id: int,
    other_ends: tuple[int, ...],
) -> Float[Array, "B N V"]:
    """Returns logits that give EOS the probability of all ends together, and the others none."""
    if isinstance(output, ContrastiveScores):
        raise UserError(
            f"a contrast has one end: expected no other_ends, got {list(other_ends)}, whose "
            "probabilities are not in the scores of a contrast"
        )

    ends = output[:, :, jnp.array([eos_id, *other_ends])]
    end = jax.nn.logsumexp(ends, axis=2)
    without_others = output.at[:, :, jnp.array(other_ends)].set(-jnp.inf)
    return without_others.at[:, :, eos_id].set(end)


def check_prefix(
    step_fn: Callable[..., tuple[TokenScores, Any]],
    state: Any,
    eos_id: int,
    pad_id: int,
) -> None:
    """Checks that tokens of the prefix are in the vocabulary. A traced prefix cannot be checked."""
    prefix = state.prefix
    if not prefix.size:
        return
    if isinstance(prefix, Tracer) or not prefix.is_fully_addressable:
        return

    call = functools.partial(call_step_fn, step_fn, eos_id=eos_id)
    output, _ = jax.eval_shape(call, state.newest, state.cache)
    vocabulary = scores_of(output).shape[2]

    for row, ids in enumerate(prefix.tolist()):
        for token in ids:
            if token != pad_id and not 0 <= token < vocabulary:
                raise UserError(
                    f"prefix[{row}] must be tokens of the vocabulary, 0 to {vocabulary - 1}, or "
                    f"padding, {pad_id}: got {token}"
                )


def log_probs_of(
    chosen: Float[Array, "B M"],
    totals: Float[Array, "B M"],
) -> Float[Array, "B M"]:
    """Returns log probabilities of tokens, given their logits and the logsumexp of all logits."""
    # Rounding must not give a probability above one, or NaN for impossible tokens (-inf + inf).
    is_impossible = chosen == -jnp.inf
    log_probs = jnp.minimum(chosen - totals, 0.0)
    return jnp.where(is_impossible, -jnp.inf, log_probs)
