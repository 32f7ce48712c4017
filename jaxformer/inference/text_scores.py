"""Scores of given texts under a language model: in one pass, without a cache."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.checks import check_tokens
from jaxformer.data.tokenizer import PAD
from jaxformer.inference.decoder import Decoder
from jaxformer.inference.forced_pass import ForcedPass, PairBatch
from jaxformer.inference.generator import Generator
from jaxformer.inference.kept_programs import KeptProgram
from jaxformer.inference.members import Ensemble
from jaxformer.inference.pair_scores import TOKENS_PER_BATCH, Score, score_by


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
    plan = ForcedPass(
        _log_probabilities,
        TOKENS_PER_BATCH,
        first_token=generator.prompt_ids("")[-1],
    )
    decoder = Decoder(models, generator.config.search, plan)

    # A text is the target of a pair. It is also the source, since a pair needs one to be scored.
    pairs = [(list(ids), list(ids)) for ids in texts]
    return score_by(decoder, pairs, report=report)


@KeptProgram
def _log_probabilities(models: Ensemble, batch: PairBatch) -> Float[Array, " B"]:
    """Returns the log probability of each row of targets, float32, ignoring padding."""
    targets = jnp.asarray(batch.tgt_out)
    features = [member(batch.tgt_in, method="features") for member in models]
    log_probs = models.token_log_probs(features, targets)  # [B, T]

    is_token = targets != PAD
    return jnp.where(is_token, log_probs, 0.0).sum(axis=1)
