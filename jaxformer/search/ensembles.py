"""Ensembles: several models as one step function."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.search.step_loop import StepFn


def ensemble(step_fns: Sequence[StepFn]) -> StepFn:
    """Returns a step function whose probabilities are the arithmetic mean of several models.

    It computes ``log((p_1 + ... + p_n) / n)`` as the logsumexp of the log-softmaxes minus log n, in
    float32: a token is impossible only if it is impossible for all models. (Some toolkits average
    log probabilities instead, so that a single model can rule a token out.)

    >>> one = lambda tokens, cache: (jnp.log(jnp.array([[[0.5, 0.5]]])), cache)
    >>> other = lambda tokens, cache: (jnp.log(jnp.array([[[0.1, 0.9]]])), cache)
    >>> log_probs, _ = ensemble([one, other])(jnp.array([[0]]), ((), ()))
    >>> [round(p, 6) for p in jnp.exp(log_probs)[0, 0].tolist()]
    [0.3, 0.7]

    Args:
      step_fns: Step functions of models with the same vocabulary.

    Returns:
      A step function. Its cache is a tuple with one cache for each of ``step_fns``.

    Raises:
      UserError: There is one step function that is not in a list. The step function raises it if
        logits differ in shape.
    """
    if callable(step_fns):
        raise UserError(
            "an ensemble is made of a list of step functions: got a single function; put it into "
            "a list"
        )
    step_fns = tuple(step_fns)

    def step_fn(
        tokens: Int[Array, "B N"],
        caches: tuple[Any, ...],
    ) -> tuple[Float[Array, "B N V"], tuple[Any, ...]]:
        outputs = [one(tokens, cache) for one, cache in zip(step_fns, caches, strict=True)]
        all_logits = [logits for logits, _ in outputs]
        new_caches = tuple(cache for _, cache in outputs)
        if len(outputs) == 1:
            # The search normalizes the logits of a single model.
            return all_logits[0], new_caches

        shapes = {logits.shape for logits in all_logits}
        if len(shapes) > 1:
            raise UserError(
                "models of an ensemble must have one vocabulary: got logits of shapes "
                f"{', '.join(map(str, sorted(shapes)))}"
            )

        # log((p_1 + ... + p_n) / n)
        log_probs = [log_softmax(logits) for logits in all_logits]
        log_probs = jnp.stack(log_probs)  # [n, B, N, V]
        log_sum = jax.nn.logsumexp(log_probs, axis=0)
        mean = log_sum - jnp.log(len(step_fns))
        return mean, new_caches

    return step_fn


def log_softmax(logits: Float[Array, "B N V"]) -> Float[Array, "B N V"]:
    """Returns float32 log probabilities; impossible tokens have -inf."""
    logits = logits.astype(jnp.float32)

    # If no token is possible, log_softmax gives NaN instead of -inf.
    is_impossible = logits == -jnp.inf
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    return jnp.where(is_impossible, -jnp.inf, log_probs)
