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
from jaxformer.inference.pair_scores import PairBatch, Score, score_batches
from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
from jaxformer.layout import global_mesh
from jaxformer.models.architecture import Architecture


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
    probability 0. ``report`` is called with the number of texts in each finished batch.
    """
    model = generator.config.model
    for number, text in enumerate(texts):
        check_tokens(
            text,
            model.vocab_size,
            name=f"texts[{number}]",
            longest=model.max_length,
        )
    first = generator.prompt_ids("")[-1]

    def log_probs_of(batch: PairBatch) -> Float[Array, " B"]:
        targets = batch.tgt_out
        inputs = np.roll(targets, 1, axis=1)
        inputs[:, 0] = first
        return _log_probabilities(model, generator.params, inputs, targets)

    # A text is the target of a pair. It needs a source, too: pairs without one are not scored.
    pairs = [(ids, ids) for ids in texts]
    return score_batches(
        pairs,
        generator.config.search,
        model.max_length,
        log_probs_of=log_probs_of,
        report=report,
    )


@functools.partial(jax.jit, static_argnums=0)
def _log_probabilities(
    config: Architecture,
    params: PyTree,
    inputs: Int[Array, "B T"],
    targets: Int[Array, "B T"],
) -> Float[Array, " B"]:
    """Returns the log probability of each row of targets, float32, ignoring padding."""
    model: Any = LANGUAGE_MODELING.build(config)
    variables = {"params": params}

    features = model.apply(variables, inputs, method="features")
    logits = functools.partial(model.apply, variables, method="logits")
    log_probs = log_probs_of_tokens(
        [logits],
        config.vocab_size,
        features=[features],
        targets=targets,
    )  # [B, T]

    is_token = targets != PAD
    return jnp.where(is_token, log_probs, 0.0).sum(axis=1)
