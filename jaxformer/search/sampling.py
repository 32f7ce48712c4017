"""Sampling over any step function: hypotheses drawn token by token, as one XLA program.

Every token is drawn from the softmax of the allowed logits divided by the temperature, truncated to
the ``top_k`` most probable tokens and then to the nucleus of ``top_p`` (Holtzman et al. 2020), and
renormalized. Log probabilities are still the step function's.

Samples are independent. A draw depends on the key of the sentence, the index of the sample and the
step, but not on the batch or the number of samples. To reproduce a sentence in another batch, give
it the same key, for instance ``jax.random.fold_in(key, number)``.

:class:`~jaxformer.search.algorithm.Sampling` has the functions :func:`start`, :func:`prefill`,
:func:`advance` and :func:`finalize` as methods, which describe the arguments.
"""

import dataclasses
import functools
import reprlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from jaxformer.errors import UserError
from jaxformer.layout import map_rows, rows_like, take_rows, zeros_beside
from jaxformer.search import step_loop
from jaxformer.search.constraints import constrain, number_sentences
from jaxformer.search.penalties import length_penalties
from jaxformer.search.settings import SamplingSettings, is_set
from jaxformer.search.state import BeamResult, MaxLengths, Prefix, SampleState, best_first, prepare
from jaxformer.search.step_loop import (
    PrefillFn,
    StepFn,
    append,
    call,
    check_prefix,
    first,
    log_probs_of,
    repeat,
)


def start(
    settings: SamplingSettings,
    cache: Any,
    max_lengths: MaxLengths,
    capacity: int,
    prefix: Prefix | None = None,
    keys: Key[Array, "..."] | None = None,
    sentence_ids: Int[Array, " B"] | None = None,
    first_tokens: Int[Array, " B"] | None = None,
) -> SampleState:
    """Returns the state with N empty samples per sentence."""
    most = min(capacity, settings.max_length or capacity)
    cache, max_lengths, prefix = prepare(cache, max_lengths, settings.num_samples, most, prefix)
    if keys is None:
        ids = jnp.arange(max_lengths.shape[0], dtype=jnp.int32)
        keys = sentence_keys(settings.seed, ids if sentence_ids is None else sentence_ids)
    _check_keys(keys, max_lengths)
    keys = rows_like(keys, max_lengths)
    none = zeros_beside(max_lengths, (settings.num_samples,), jnp.int32)
    return SampleState(
        step=jnp.zeros((), jnp.int32),
        max_lengths=max_lengths,
        prefix=prefix,
        sentence_ids=number_sentences(settings, prefix, max_lengths, sentence_ids),
        done=max_lengths == 0,
        keys=keys,
        newest=none + first(settings, first_tokens),
        tokens=zeros_beside(max_lengths, (settings.num_samples, capacity), jnp.int32)
        + settings.pad_id,
        lengths=none,
        finished=none != 0,
        log_probs=none.astype(jnp.float32),
        cache=cache,
    )


def sentence_keys(
    seed: int | np.int32 | Int[Array, ""], numbers: Int[Array, " B"]
) -> Key[Array, " B"]:
    """Returns one random key per sentence, derived from the seed and its number.

    The keys are Threefry's, whatever JAX's default is: with others, such as "rbg", numbers drawn
    under ``vmap`` depend on the whole batch.
    """
    fold_in = functools.partial(jax.random.fold_in, jax.random.key(seed, impl="threefry2x32"))
    return jax.vmap(fold_in)(numbers)


def _check_keys(keys: Any, max_lengths: Int[Array, " B"]) -> None:
    if not isinstance(keys, Array) or not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        raise UserError(
            f"keys must be an array of typed PRNG keys, as of jax.random.split(jax.random.key(0), "
            f"{max_lengths.shape[0]}): got {reprlib.repr(keys)}"
        )
    if keys.shape != max_lengths.shape:
        raise UserError(
            f"keys must hold one PRNG key per sentence, shape {max_lengths.shape}: got {keys.shape}"
        )


def prefill(settings: SamplingSettings, prefill_fn: PrefillFn, state: SampleState) -> SampleState:
    """Returns the state after reading forced tokens in one pass."""
    if not state.prefix.shape[1]:
        return state
    read = step_loop.prefill(settings, prefill_fn, state, state.newest[:, :1])
    width = min(state.prefix.shape[1], state.tokens.shape[2])
    log_probs = state.log_probs + read.log_probs[:, None]
    finished = state.finished | (log_probs == -jnp.inf)
    return dataclasses.replace(
        state,
        step=read.length,
        done=state.done | finished.all(axis=1),
        newest=jnp.broadcast_to(read.newest[:, None], state.newest.shape),
        tokens=state.tokens.at[:, :, :width].set(read.tokens[:, None, :width]),
        lengths=jnp.where(state.done[:, None], state.lengths, read.length),
        finished=finished,
        log_probs=log_probs,
        cache=read.cache,
    )


def advance(
    settings: SamplingSettings, step_fn: StepFn, state: SampleState, until: int | Int[Array, ""]
) -> SampleState:
    """Returns the state after ``until`` tokens, or when all samples are finished."""
    check_prefix(step_fn, state.newest, state.cache, state.prefix, settings)
    return repeat(lambda state: step(settings, step_fn, state), state, until)


def step(settings: SamplingSettings, step_fn: StepFn, state: SampleState) -> SampleState:
    """Takes one step: samples that are not finished get one more token."""
    logits, cache = call(step_fn, state.newest, state.cache, settings.eos_id)
    state = dataclasses.replace(state, cache=())
    state = map_rows(lambda _, *rows: _extend(settings, *rows), (), state, logits)
    return dataclasses.replace(state, cache=cache)


def _extend(
    settings: SamplingSettings, state: SampleState, logits: Float[Array, "B N V"]
) -> SampleState:
    """Returns the state, without its cache, with one more token."""
    allowed = constrain(settings, logits, state.tokens, state)
    tokens = draw(settings, allowed, state.keys, state.step)
    before = state.finished | state.done[:, None]
    tokens = jnp.where(before, settings.pad_id, tokens)
    drawn = jnp.take_along_axis(allowed, tokens[:, :, None], axis=2)
    if settings.constraints:  # They may return logits other than -inf and the step function's.
        own = jnp.take_along_axis(logits, tokens[:, :, None], axis=2)
        drawn = jnp.where(drawn == -jnp.inf, -jnp.inf, own)
    log_probs = state.log_probs + jnp.where(before, 0.0, log_probs_of(drawn, logits)[:, :, 0])
    finished = before | (tokens == settings.eos_id) | (log_probs == -jnp.inf)
    length = state.step + 1
    return dataclasses.replace(
        state,
        step=length,
        done=state.done | (length >= state.max_lengths) | finished.all(axis=1),
        newest=tokens,
        tokens=append(state.tokens, tokens, state.step),
        lengths=jnp.where(before, state.lengths, length),
        finished=finished,
        log_probs=log_probs,
    )


def draw(
    settings: SamplingSettings,
    logits: Float[Array, "B N V"],
    keys: Key[Array, " B"],
    step: Int[Array, ""],
) -> Int[Array, "B N"]:
    """Returns one token per sample, int32; an impossible token (-inf) only if all are."""
    logits, tokens = truncate(settings, logits / settings.temperature)
    samples = jnp.arange(logits.shape[1], dtype=jnp.int32)

    def one(key: Array, number: Array, logits: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(key, number), step)
        return jax.random.categorical(key, logits)

    sentence = jax.vmap(one, in_axes=(None, 0, 0))
    index = jax.vmap(sentence, in_axes=(0, None, 0))(keys, samples, logits)
    index = index[:, :, None].astype(jnp.int32)
    return (index if tokens is None else jnp.take_along_axis(tokens, index, axis=2))[:, :, 0]


def truncate(
    settings: SamplingSettings, logits: Float[Array, "B N V"]
) -> tuple[Float[Array, "B N K"], Int[Array, "B N K"] | None]:
    """Returns the logits, -inf for truncated tokens, and their token ids; None means 0 to V - 1."""
    vocabulary = logits.shape[2]
    nucleus = is_set(settings.top_p, 1.0)
    if not settings.top_k and not nucleus:
        return logits, None
    logits, tokens = lax.top_k(logits, min(settings.top_k or vocabulary, vocabulary))
    if nucleus:
        probabilities = jax.nn.softmax(logits, axis=-1)
        more_probable = jnp.cumsum(probabilities, axis=-1) - probabilities
        logits = jnp.where(more_probable < settings.top_p, logits, -jnp.inf)
    return logits, tokens


def finalize(settings: SamplingSettings, state: SampleState) -> BeamResult:
    """Returns the samples, best score first; samples that reached a dead end do not exist."""
    capacity = state.tokens.shape[2]
    penalties = jnp.asarray(length_penalties(settings.penalty, settings.length_penalty, capacity))
    result = BeamResult(
        tokens=state.tokens,
        lengths=state.lengths,
        scores=state.log_probs / take_rows(penalties, state.lengths),
        log_probs=state.log_probs,
    )
    return best_first(result, settings.pad_id)
