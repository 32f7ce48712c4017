"""Scores given translations by force-decoding: in one pass, without a cache."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxformer.checks import check_tokens
from jaxformer.data.tokenizer import PAD
from jaxformer.inference.decoder import Decoder
from jaxformer.inference.forced_pass import ForcedPass, Pair, PairBatch, PairShape
from jaxformer.inference.kept_programs import KeptProgram
from jaxformer.inference.members import Ensemble
from jaxformer.inference.translator import Translator
from jaxformer.search.penalties import length_penalties

# Tokens per side of a batch, padding included.
TOKENS_PER_BATCH = 4096


class Score(NamedTuple):
    """Score of one given translation.

    Attributes:
      score: ``log_prob`` divided by the length penalty of the search settings.
      log_prob: Natural log of the target's probability given the source; -inf if impossible.
      length: Target tokens, end-of-sentence included.
    """

    score: float
    log_prob: float
    length: int


def score_pairs(
    translator: Translator,
    pairs: Sequence[Pair],
    *,
    report: Callable[[int], object] = lambda finished: None,
) -> list[Score]:
    """Returns the score of each target given its source, in the order of ``pairs``.

    An ensemble averages the probabilities of its models at every token; of a contrast, the experts
    score. A source without tokens,
    such as a blank line, is never translated: its log probability is 0 for an empty target, and
    -inf for all others.

    Args:
      translator: The model or ensemble, and the length penalty.
      pairs: Source ids from :meth:`~jaxformer.inference.translator.Translator.source_ids`, and
        target ids with end-of-sentence; at most ``model.max_length`` ids each.
      report: Called with the number of pairs in each finished batch.

    Raises:
      UserError: A token id is out of range, or there are too many.
    """
    check_pairs(translator, pairs)

    plan = ForcedPass(_LOG_PROBABILITIES, TOKENS_PER_BATCH)
    decoder = Decoder(translator.models, translator.config.search, plan)
    return score_by(decoder, pairs, report=report)


def score_by(
    decoder: Decoder[Pair, PairShape, np.ndarray],
    pairs: Sequence[Pair],
    report: Callable[[int], object],
) -> list[Score]:
    """Scores pairs by a forced pass that computes log probabilities; see :func:`score_pairs`."""
    found = decoder.decode(pairs, report=report)
    search = decoder.search
    longest = decoder.models.max_length
    penalties = length_penalties(search.penalty, search.length_penalty, longest).tolist()

    scores = []
    for number, (_, target) in enumerate(pairs):
        # Pairs with an empty side are in no batch.
        log_prob = float(found.get(number, -np.inf if target else 0.0))
        length = len(target)
        score = Score(
            score=log_prob / penalties[length],
            log_prob=log_prob,
            length=length,
        )
        scores.append(score)
    return scores


def check_pairs(
    translator: Translator,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> None:
    """Checks that the models can force-decode the pairs; see :func:`score_pairs` for the errors."""
    source_size, target_size = translator.vocab_sizes
    longest = translator.max_length
    for number, (source, target) in enumerate(pairs):
        check_tokens(
            source,
            source_size,
            name=f"source of pairs[{number}]",
            longest=longest,
        )
        check_tokens(
            target,
            target_size,
            name=f"target of pairs[{number}]",
            longest=longest,
        )


def log_probabilities(models: Ensemble, batch: PairBatch) -> Float[Array, " B"]:
    """Returns the log probability of each target of a batch, float32, ignoring padding."""
    segments = (batch.src != PAD).astype(jnp.int32)
    targets = jnp.asarray(batch.tgt_out)

    features = []
    for member in models:
        encoded = member(batch.src, segments, method="encode")
        features.append(member(batch.tgt_in, encoded, segments, method="decode"))

    is_token = targets != PAD
    log_probs = models.token_log_probs(features, targets)  # [B, T]
    return jnp.where(is_token, log_probs, 0.0).sum(axis=1)


_LOG_PROBABILITIES = KeptProgram(log_probabilities)
