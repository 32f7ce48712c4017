"""Scores of given texts under a language model: in one pass, without a cache."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.checks import check_tokens
from jaxformer.data.tokenizer import PAD
from jaxformer.inference.generator import Generator
from jaxformer.inference.members import log_probs_of_tokens
from jaxformer.inference.pair_scores import Score, pair_batches
from jaxformer.kinds import LANGUAGE_MODELING
from jaxformer.layout import global_mesh
from jaxformer.models.architecture import Architecture
from jaxformer.search.penalties import length_penalties

# Tokens of a batch, padding included.
_TOKENS_PER_BATCH = 4096


@global_mesh(None)
def score_texts(
    generator: Generator,
    texts: Sequence[list[int]],
    *,
    report: Callable[[int], object] = lambda finished: None,
) -> list[Score]:
    """Returns the score of each text, in order: of all its tokens, given the ones before them.

    The first token is given what an empty prompt stands for: beginning of sentence in an imported
    model, a line break in others. The end of a text is not scored. A text without tokens has log
    probability 0.

    Args:
      generator: The model and the length penalty.
      texts: Token ids, without special tokens, of at most ``model.max_length`` tokens.
      report: Called with the number of texts in each finished batch.

    Raises:
      UserError: A token id is out of range, or there are too many.
    """
    model, search = generator.config.model, generator.config.search
    for number, text in enumerate(texts):
        check_tokens(text, model.vocab_size, f"texts[{number}]", model.max_length)
    first, log_probs = generator.prompt_ids("")[-1], [0.0] * len(texts)
    for batch in pair_batches([(ids, ids) for ids in texts], model.max_length, _TOKENS_PER_BATCH):
        inputs = np.roll(batch.tgt_out, 1, axis=1)
        inputs[:, 0] = first
        result = _log_probabilities(model, generator.params, inputs, batch.tgt_out)
        for number, value in zip(batch.numbers, np.asarray(result).tolist(), strict=False):
            log_probs[number] = value
        report(len(batch.numbers))
    report(sum(not text for text in texts))
    penalties = length_penalties(search.penalty, search.length_penalty, model.max_length).tolist()
    return [
        Score(log_prob / penalties[len(text)] if text else 0.0, log_prob, len(text))
        for log_prob, text in zip(log_probs, texts, strict=True)
    ]


@functools.partial(jax.jit, static_argnums=0)
def _log_probabilities(
    config: Architecture, params: PyTree, inputs: Int[Array, "B T"], targets: Int[Array, "B T"]
) -> Float[Array, " B"]:
    """Returns the log probability of each row of targets, float32, ignoring padding."""
    model: Any = LANGUAGE_MODELING.build(config)
    variables = {"params": params}
    features = model.apply(variables, inputs, method="features")
    logits = functools.partial(model.apply, variables, method="logits")
    log_probs = log_probs_of_tokens([logits], config.vocab_size, [features], targets)
    return jnp.where(targets != PAD, log_probs, 0.0).sum(axis=1)
