"""Contrastive decoding: what an expert finds more probable than an amateur (Li et al. 2023).

The score of a token is ``log p_expert - log p_amateur``. A search sums these scores where it sums
log probabilities of other step functions. Only plausible tokens may be chosen: those with at least
alpha times the largest probability of the expert (equation 4 of the paper).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.search.ensembles import log_softmax
from jaxformer.search.state import ContrastiveScores
from jaxformer.search.step_loop import StepFn

# Least log probability of the amateur: a token that it rules out must not have an infinite score.
_LEAST_LOG_PROB = -1e4


def contrast(expert: StepFn, amateur: StepFn, alpha: Any = 0.1) -> "ContrastiveStep":
    """Returns a step function of the contrast between two models.

    The scores of a search's result are sums of the contrast, divided by the length penalty; its log
    probabilities are the expert's. No bound on future scores is known, so that
    ``early_stop="proven"`` stops a sentence only when none of its hypotheses is alive.

    >>> expert = lambda tokens, cache: (jnp.log(jnp.array([[[0.5, 0.45, 0.05]]])), cache)
    >>> amateur = lambda tokens, cache: (jnp.log(jnp.array([[[0.9, 0.09, 0.01]]])), cache)
    >>> found, _ = contrast(expert, amateur)(jnp.array([[0]]), ((), ()))
    >>> [round(p, 6) for p in jnp.exp(found.scores)[0, 0].tolist()]
    [0.555556, 5.0, 5.0]

    Args:
      expert: The step function whose text is wanted.
      amateur: The step function of a worse model, with the same vocabulary.
      alpha: Least probability of a token, as a fraction of the largest, under the expert, 0 to 1.

    Returns:
      A step function. Its cache is a pair of the caches of both.
    """
    return ContrastiveStep(expert, amateur, alpha)


@dataclasses.dataclass(frozen=True)
class ContrastiveStep:
    """The step function of a contrast; see :func:`contrast`."""

    expert: StepFn
    amateur: StepFn
    alpha: Any  # a number or an array, which may be traced

    def __call__(
        self,
        tokens: Int[Array, "B N"],
        caches: tuple[Any, Any],
    ) -> tuple[ContrastiveScores, tuple[Any, Any]]:
        expert_cache, amateur_cache = caches
        expert_logits, expert_cache = self.expert(tokens, expert_cache)
        amateur_logits, amateur_cache = self.amateur(tokens, amateur_cache)
        if expert_logits.shape != amateur_logits.shape:
            raise UserError(
                "expert and amateur must have one vocabulary: got logits of shapes "
                f"{expert_logits.shape} and {amateur_logits.shape}"
            )

        found = contrast_log_probs(
            log_softmax(expert_logits),
            log_softmax(amateur_logits),
            self.alpha,
        )
        return found, (expert_cache, amateur_cache)


def contrast_log_probs(
    expert: Float[Array, "*tokens"],
    amateur: Float[Array, "*tokens"],
    alpha: Any,
) -> ContrastiveScores:
    """Returns the scores of tokens, given their log probabilities under both models."""
    difference = expert - jnp.maximum(amateur, _LEAST_LOG_PROB)
    return ContrastiveScores(
        scores=jnp.where(expert == -jnp.inf, -jnp.inf, difference),
        expert=expert,
        alpha=jnp.asarray(alpha, jnp.float32),
    )
