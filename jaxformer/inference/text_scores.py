"""Scores of given texts under a language model: in one pass, without a cache."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.checks import check_tokens
from jaxformer.data.tokenizer import PAD
from jaxformer.inference.generator import Generator
from jaxformer.inference.members import Ensemble
from jaxformer.inference.pair_scores import PairBatch, Score, score_batches
from jaxformer.layout import global_mesh


@global_mesh(None)
def score_texts(
    generator: Generator,
    texts: Sequence[list[int]],
    *,
    report: Callable[[int], object] = lambda finished: None,
) -> list[Score]:
    """Returns the score of each text, in order: each token is scored given the tokens before it.

    Before the first token comes an empty prompt: beginning of sentence in an imported model, a line
    break in others. The end of a text is not scored. A text without tokens has log probability 0.
    An ensemble averages the probabilities of its models at every token.

    Args:
      generator: The language model.
      texts: Token ids of each text.
      report: Called with the number of texts in each finished batch.
    """
    models = generator.models
    for number, text in enumerate(texts):
        check_tokens(
            text,
            models.vocab_size,
            name=f"texts[{number}]",
            longest=models.max_length,
        )
    first = generator.prompt_ids("")[-1]

    def log_probs_of(batch: PairBatch) -> Float[Array, " B"]:
        # The input at each target is the token before it.
        targets = batch.tgt_out
        inputs = np.roll(targets, 1, axis=1)
        inputs[:, 0] = first
        return _log_probabilities(models.experts, inputs, targets)

    # A text is the target of a pair. It is also the source, since a pair needs one to be scored.
    pairs = [(ids, ids) for ids in texts]
    return score_batches(
        pairs,
        generator.config.search,
        models.max_length,
        log_probs_of=log_probs_of,
        report=report,
    )


@jax.jit
def _log_probabilities(
    models: Ensemble,
    inputs: Int[Array, "B T"],
    targets: Int[Array, "B T"],
) -> Float[Array, " B"]:
    """Returns the log probability of each row of targets, float32, ignoring padding."""
    features = [member(inputs, method="features") for member in models]
    log_probs = models.token_log_probs(features, targets)  # [B, T]

    is_token = targets != PAD
    return jnp.where(is_token, log_probs, 0.0).sum(axis=1)
