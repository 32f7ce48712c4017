"""Sampling over any step function: hypotheses drawn token by token, as one XLA program.

Every token is drawn from the softmax of the allowed logits divided by the temperature, cut to the
``top_k`` most probable ones and then to the nucleus of ``top_p`` (Holtzman et al. 2020), and
renormalised. Log probabilities are those of the step function as it is.

Samples are independent. A draw depends on the key of its sentence, the number of the sample and the
step, so neither the batch nor the number of samples changes one; for that, give a sentence the same
key wherever it stands: ``jax.random.fold_in(key, number)``, say.

:func:`sample` does all of it; its three verbs are those of :mod:`jaxformer.search.beam`.
"""

import dataclasses
import reprlib
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key

from jaxformer.errors import UserError
from jaxformer.layout import take_rows, zeros_beside
from jaxformer.search.constraints import constrain
from jaxformer.search.penalties import Penalty, length_penalties
from jaxformer.search.rules import SamplingRules
from jaxformer.search.state import BeamResult, Limits, Prefix, SampleState, best_first, prepare
from jaxformer.search.stepping import StepFn, append, call, check_prefix, log_probs_of, repeat


def sample(
    step_fn: StepFn,
    cache: Any,
    *,
    keys: Key[Array, " B"],
    limits: Limits,
    max_length: int,
    num_samples: int,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    prefix: Prefix | None = None,
    length_penalty: float = 0.0,
    penalty: Penalty = "gnmt",
    min_length: int = 0,
    no_repeat_ngram: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> BeamResult:
    """Hypotheses drawn from the distribution that ``step_fn`` gives, best score first.

    Arguments not described here are those of :func:`~jaxformer.search.beam.beam_search`, with
    samples for beams.

    >>> logits = jnp.log(jnp.array([0.0, 0.1, 0.9]))  # 1 is EOS
    >>> step_fn = lambda tokens, cache: (jnp.broadcast_to(logits, (*tokens.shape, 3)), cache)
    >>> keys = jax.random.split(jax.random.key(0), 1)
    >>> result = sample(
    ...     step_fn, (), keys=keys, limits=jnp.array([4]), max_length=4, num_samples=2,
    ...     bos_id=0, eos_id=1, pad_id=0, top_k=1)
    >>> result.tokens[0].tolist()
    [[2, 2, 2, 2], [2, 2, 2, 2]]

    Args:
      step_fn: Logits of the next token.
      cache: What it remembers.
      keys: One typed PRNG key per sentence.
      limits: The most tokens of each sentence; samples that reach it without EOS are kept.
      max_length: Room for tokens.
      num_samples: Samples per sentence, N.
      bos_id: Token that starts every sample.
      eos_id: Token that ends a sample.
      pad_id: Fills the result after EOS.
      prefix: Tokens that every sample of a sentence starts with.
      length_penalty: alpha of the penalty that scores, the order of the samples, are divided by.
      penalty: Which one.
      min_length: Fewest tokens before EOS.
      no_repeat_ngram: Longest repetition, plus one.
      temperature: See :class:`~jaxformer.search.rules.SamplingRules`, like all that follow.
      top_k: Most tokens to draw from; 0: all.
      top_p: Probability of the nucleus to draw from; 1: all.

    Returns:
      The samples. One that came to where nothing is allowed does not exist.

    Raises:
      UserError: An argument is out of range, or the cache or the logits have other axes.
    """
    rules = SamplingRules(
        num_samples=num_samples,
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
        length_penalty=length_penalty,
        penalty=penalty,
        min_length=min_length,
        no_repeat_ngram=no_repeat_ngram,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
    )
    state = start(rules, cache, keys, limits, max_length, prefix)
    return finalise(rules, advance(rules, step_fn, state, max_length))


def start(
    rules: SamplingRules,
    cache: Any,
    keys: Key[Array, "..."],
    limits: Limits,
    max_length: int,
    prefix: Prefix | None = None,
) -> SampleState:
    """N empty samples per sentence. Arguments and errors are those of :func:`sample`."""
    cache, limits, prefix = prepare(cache, limits, rules.num_samples, max_length, prefix)
    if not isinstance(keys, Array) or not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        raise UserError(
            f"keys must be an array of typed PRNG keys, as of jax.random.split(jax.random.key(0), "
            f"{limits.shape[0]}): got {reprlib.repr(keys)}"
        )
    if keys.shape != limits.shape:
        raise UserError(
            f"keys must hold one PRNG key per sentence, shape {limits.shape}: got {keys.shape}"
        )
    none = zeros_beside(limits, (rules.num_samples,), jnp.int32)
    return SampleState(
        step=jnp.zeros((), jnp.int32),
        limits=limits,
        prefix=prefix,
        done=limits == 0,
        keys=keys,
        newest=none + rules.bos_id,
        tokens=zeros_beside(limits, (rules.num_samples, max_length), jnp.int32) + rules.pad_id,
        lengths=none,
        ended=none != 0,
        log_probs=none.astype(jnp.float32),
        cache=cache,
    )


def advance(
    rules: SamplingRules, step_fn: StepFn, state: SampleState, until: int | Int[Array, ""]
) -> SampleState:
    """Draws until samples have ``until`` tokens, or every sentence is over.

    Args and errors are those of :func:`jaxformer.search.beam.advance`.
    """
    check_prefix(step_fn, state.newest, state.cache, state.prefix, rules)
    return repeat(lambda state: step(rules, step_fn, state), state, until)


def step(rules: SamplingRules, step_fn: StepFn, state: SampleState) -> SampleState:
    """One step: every sample that has not ended gets one token more."""
    logits, cache = call(step_fn, state.newest, state.cache, rules.eos_id)
    allowed = constrain(rules, logits, state.tokens, state.prefix, state.step)
    tokens = draw(rules, allowed, state.keys, state.step)
    over = state.ended | state.done[:, None]
    tokens = jnp.where(over, rules.pad_id, tokens)
    drawn = jnp.take_along_axis(allowed, tokens[:, :, None], axis=2)
    log_probs = state.log_probs + jnp.where(over, 0.0, log_probs_of(drawn, logits)[:, :, 0])
    ended = over | (tokens == rules.eos_id) | (log_probs == -jnp.inf)
    length = state.step + 1
    return dataclasses.replace(
        state,
        step=length,
        done=state.done | (length >= state.limits) | ended.all(axis=1),
        newest=tokens,
        tokens=append(state.tokens, tokens, state.step),
        lengths=jnp.where(over, state.lengths, length),
        ended=ended,
        log_probs=log_probs,
        cache=cache,
    )


def draw(
    rules: SamplingRules,
    logits: Float[Array, "B N V"],
    keys: Key[Array, " B"],
    step: Int[Array, ""],
) -> Int[Array, "B N"]:
    """One token for each sample, int32; an impossible one (-inf) only if all are."""
    logits, tokens = truncate(rules, logits / rules.temperature)
    samples = jnp.arange(logits.shape[1], dtype=jnp.int32)

    def one(key: Array, number: Array, logits: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(key, number), step)
        return jax.random.categorical(key, logits)

    sentence = jax.vmap(one, in_axes=(None, 0, 0))
    index = jax.vmap(sentence, in_axes=(0, None, 0))(keys, samples, logits)
    index = index[:, :, None].astype(jnp.int32)
    return (index if tokens is None else jnp.take_along_axis(tokens, index, axis=2))[:, :, 0]


def truncate(
    rules: SamplingRules, logits: Float[Array, "B N V"]
) -> tuple[Float[Array, "B N K"], Int[Array, "B N K"] | None]:
    """What may be drawn: logits, -inf for what is cut off, and their tokens; None: 0 to V - 1."""
    vocabulary = logits.shape[2]
    if not rules.top_k and rules.top_p == 1:
        return logits, None
    logits, tokens = lax.top_k(logits, min(rules.top_k or vocabulary, vocabulary))
    if rules.top_p < 1:
        probabilities = jax.nn.softmax(logits, axis=-1)
        more_probable = jnp.cumsum(probabilities, axis=-1) - probabilities
        logits = jnp.where(more_probable < rules.top_p, logits, -jnp.inf)
    return logits, tokens


def finalise(rules: SamplingRules, state: SampleState) -> BeamResult:
    """The samples, best score first."""
    room = state.tokens.shape[2]
    penalties = jnp.asarray(length_penalties(rules.penalty, rules.length_penalty, room))
    result = BeamResult(
        tokens=state.tokens,
        lengths=state.lengths,
        scores=state.log_probs / take_rows(penalties, state.lengths),
        log_probs=state.log_probs,
    )
    return best_first(result, rules.pad_id)
