"""Scores given translations by force-decoding: in one pass, without a cache."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.checks import check_tokens
from jaxformer.data.tokenizer import BOS, PAD
from jaxformer.inference.members import Ensemble
from jaxformer.inference.translator import Translator
from jaxformer.layout import global_mesh
from jaxformer.search import Algorithm
from jaxformer.search.penalties import length_penalties

# Tokens per side of a batch, padding included.
_TOKENS_PER_BATCH = 4096
_SHORTEST = 16


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


class PairBatch(NamedTuple):
    """Pairs to force-decode together; rows beyond ``numbers``, their indices, are padding."""

    numbers: list[int]
    src: Int[np.ndarray, "B L"]
    tgt_in: Int[np.ndarray, "B L"]  # the targets shifted right, beginning-of-sentence first
    tgt_out: Int[np.ndarray, "B L"]


@global_mesh(None)
def score_pairs(
    translator: Translator,
    pairs: Sequence[tuple[list[int], list[int]]],
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

    def log_probs_of(batch: PairBatch) -> Float[Array, " B"]:
        return log_probabilities(
            translator.models.experts,
            batch.src,
            batch.tgt_in,
            batch.tgt_out,
        )

    return score_batches(
        pairs,
        translator.config.search,
        translator.max_length,
        log_probs_of=log_probs_of,
        report=report,
    )


def score_batches(
    pairs: Sequence[tuple[list[int], list[int]]],
    search: Algorithm,
    longest: int,
    log_probs_of: Callable[[PairBatch], Float[Array, " B"]],
    report: Callable[[int], object],
) -> list[Score]:
    """Scores pairs, given the log probabilities of the rows of a batch; see :func:`score_pairs`."""
    # These remain for pairs with an empty side, which are in no batch.
    has_target = [bool(target) for _, target in pairs]
    log_probs = np.where(has_target, -np.inf, 0.0).tolist()

    for batch in pair_batches(pairs, longest, _TOKENS_PER_BATCH):
        log_probs_of_rows = np.asarray(log_probs_of(batch)).tolist()
        for number, log_prob in zip(batch.numbers, log_probs_of_rows, strict=False):
            log_probs[number] = log_prob
        report(len(batch.numbers))

    num_without_batch = sum(not (source and target) for source, target in pairs)
    report(num_without_batch)

    penalties = length_penalties(search.penalty, search.length_penalty, longest).tolist()
    scores = []
    for log_prob, (_, target) in zip(log_probs, pairs, strict=True):
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


def pair_batches(
    pairs: Sequence[tuple[list[int], list[int]]],
    max_length: int,
    tokens_per_batch: int,
) -> Iterator[PairBatch]:
    """Batches the pairs with tokens on both sides, in few shapes, longest first."""

    def length_of(number: int) -> int:
        source, target = pairs[number]
        return max(len(source), len(target))

    numbers = []
    for number, (source, target) in enumerate(pairs):
        if source and target:
            numbers.append(number)
    numbers.sort(key=length_of, reverse=True)  # stable: equal ones stay in order

    while numbers:
        longest = length_of(numbers[0])
        power_of_two = 1 << (longest - 1).bit_length()
        length = min(max_length, max(_SHORTEST, power_of_two))

        # A last batch of few pairs gets a smaller shape.
        most_rows = max(1, tokens_per_batch // length)
        few_rows = max(1, most_rows // 8)
        if len(numbers) == 1:
            rows = 1
        elif len(numbers) <= few_rows:
            rows = few_rows
        else:
            rows = most_rows

        yield _pad_pairs(
            pairs,
            numbers[:rows],
            rows=rows,
            length=length,
        )
        numbers = numbers[rows:]


def _pad_pairs(
    pairs: Sequence[tuple[list[int], list[int]]],
    numbers: list[int],
    rows: int,
    length: int,
) -> PairBatch:
    """Pads the pairs of these numbers to a batch of so many rows and tokens."""
    shape = (rows, length)
    src = np.full(shape, PAD, np.int32)
    tgt_in = np.full(shape, PAD, np.int32)
    tgt_out = np.full(shape, PAD, np.int32)

    for row, number in enumerate(numbers):
        source, target = pairs[number]
        shifted = [BOS, *target[:-1]]
        src[row, : len(source)] = source
        tgt_in[row, : len(target)] = shifted
        tgt_out[row, : len(target)] = target

    return PairBatch(numbers, src, tgt_in=tgt_in, tgt_out=tgt_out)


@jax.jit
def log_probabilities(
    models: Ensemble,
    src: Int[Array, "B S"] | Int[np.ndarray, "B S"],
    tgt_in: Int[Array, "B T"] | Int[np.ndarray, "B T"],
    tgt_out: Int[Array, "B T"] | Int[np.ndarray, "B T"],
) -> Float[Array, " B"]:
    """Returns the log probability of each row of ``tgt_out``, float32, ignoring padding."""
    segments = (src != PAD).astype(jnp.int32)
    targets = jnp.asarray(tgt_out)

    features = []
    for member in models:
        encoded = member(src, segments, method="encode")
        features.append(member(tgt_in, encoded, segments, method="decode"))

    is_token = targets != PAD
    log_probs = models.token_log_probs(features, targets)  # [B, T]
    return jnp.where(is_token, log_probs, 0.0).sum(axis=1)
