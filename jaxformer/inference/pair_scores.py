"""Scoring given translations: the log probability of a target under the model, by force-decoding.

The score of a target is its log probability divided by the length penalty of the search settings,
so that it is what the search itself would have printed for the same tokens. The whole target is
decoded in one pass, without cache, which makes it a check on the search as well.
"""

import functools
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.checks import check_tokens
from jaxformer.config import ModelConfig
from jaxformer.data.tokenizer import BOS, PAD
from jaxformer.errors import UserError
from jaxformer.inference.likelihoods import token_log_probs
from jaxformer.inference.translator import Translator
from jaxformer.models.transformer import Transformer
from jaxformer.search.penalties import length_penalties

# Source, and target, tokens of a batch, padding included.
_TOKENS_PER_BATCH = 4096
_SHORTEST = 16


class Score(NamedTuple):
    """What a model makes of one given translation.

    Attributes:
      score: ``log_prob`` divided by the length penalty of the search settings.
      log_prob: Natural log of the target's probability given the source; -inf if impossible.
      length: Target tokens, end-of-sentence included.
    """

    score: float
    log_prob: float
    length: int


class PairBatch(NamedTuple):
    """Pairs to force-decode together.

    Attributes:
      numbers: Which pairs these are; rows beyond them are padding.
      src: Source ids, int32.
      tgt_in: Target ids shifted right: beginning of sentence first.
      tgt_out: Target ids.
    """

    numbers: list[int]
    src: Int[np.ndarray, "B L"]
    tgt_in: Int[np.ndarray, "B L"]
    tgt_out: Int[np.ndarray, "B L"]


def score_pairs(
    translator: Translator,
    pairs: Sequence[tuple[list[int], list[int]]],
    *,
    report: Callable[[int], None] = lambda finished: None,
) -> list[Score]:
    """The score of each target given its source, in the order given.

    An ensemble averages the probabilities of its models at every token. Nothing is translated from
    a source without tokens, as of a blank line: there, a target without tokens is certain, and
    every other one impossible.

    Args:
      translator: The model or ensemble, and the length penalty.
      pairs: Source ids as of :meth:`Translator.encode`, and target ids, end-of-sentence included;
        each at most ``model.max_length`` of them.
      report: Called with the number of pairs of each finished batch.

    Raises:
      UserError: A token id is none of the models', or there are too many of them.
    """
    configs = tuple(config for config, _ in translator.models)
    params = tuple(params for _, params in translator.models)
    longest = min(config.max_length for config in configs)
    check_pairs(configs, pairs)
    log_probs = [0.0 if not target else -np.inf for _, target in pairs]
    for batch in pair_batches(pairs, longest, _TOKENS_PER_BATCH):
        result = jax.device_get(
            log_probabilities(configs, params, batch.src, batch.tgt_in, batch.tgt_out)
        )
        for row, number in enumerate(batch.numbers):
            log_probs[number] = float(result[row])
        report(len(batch.numbers))
    report(sum(not (source and target) for source, target in pairs))
    search = translator.config.search
    penalties = length_penalties(search.penalty, search.length_penalty, longest).tolist()
    return [
        Score(log_prob / penalties[len(target)], log_prob, len(target))
        for log_prob, (_, target) in zip(log_probs, pairs, strict=True)
    ]


def check_pairs(
    configs: Sequence[ModelConfig], pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> None:
    """Refuses pairs of token ids that the models cannot force-decode.

    Raises:
      UserError: An id is out of range, a side is longer than ``model.max_length``, or this is not
        a list of pairs of token ids.
    """
    longest = min(config.max_length for config in configs)
    sizes = [min(c.vocab_size for c in configs), min(c.output_size for c in configs)]
    for number, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UserError(
                f"pairs[{number}]: expected source ids and target ids, got {reprlib.repr(pair)}"
            )
        for ids, size, side in zip(pair, sizes, ("source", "target"), strict=True):
            check_tokens(ids, size, f"{side} of pairs[{number}]", longest)


def pair_batches(
    pairs: Sequence[tuple[list[int], list[int]]], max_length: int, tokens_per_batch: int
) -> Iterator[PairBatch]:
    """The pairs that have tokens on both sides, in batches of few shapes, longest first.

    Args:
      pairs: Source ids and target ids.
      max_length: The longest side there can be.
      tokens_per_batch: Most tokens of one side in a batch, padding included; a single pair may
        have more.
    """

    def size(number: int) -> int:
        return max(map(len, pairs[number]))

    numbers = [n for n, (source, target) in enumerate(pairs) if source and target]
    numbers.sort(key=lambda n: (-size(n), n))
    while numbers:
        length = min(max_length, max(_SHORTEST, 1 << (size(numbers[0]) - 1).bit_length()))
        most = max(1, tokens_per_batch // length)
        rows = min((r for r in (1, max(1, most // 8), most) if r >= len(numbers)), default=most)
        chosen, numbers = numbers[:rows], numbers[rows:]
        arrays = np.full((3, rows, length), PAD, np.int32)
        for row, number in enumerate(chosen):
            source, target = pairs[number]
            for array, ids in zip(arrays, (source, [BOS, *target[:-1]], target), strict=True):
                array[row, : len(ids)] = ids
        yield PairBatch(chosen, *arrays)


@functools.partial(jax.jit, static_argnums=0)
def log_probabilities(
    configs: tuple[ModelConfig, ...],
    params: tuple[PyTree, ...],
    src: Int[Array, "B S"] | Int[np.ndarray, "B S"],
    tgt_in: Int[Array, "B T"] | Int[np.ndarray, "B T"],
    tgt_out: Int[Array, "B T"] | Int[np.ndarray, "B T"],
) -> Float[Array, " B"]:
    """Log probability of each row of ``tgt_out``, float32; padding counts nothing.

    Several models are averaged as :func:`score_pairs` says. Decoder outputs are projected to
    the vocabulary a few tokens at a time.
    """
    models = [
        functools.partial(Transformer(config).apply, {"params": weights})
        for config, weights in zip(configs, params, strict=True)
    ]
    segments = (src != PAD).astype(jnp.int32)
    features = []
    for model in models:
        encoded = model(src, segments, method="encode")
        features.append(model(tgt_in, encoded, segments, method="decode"))
    logits_fns = [functools.partial(model, method="logits") for model in models]
    targets, vocab_size = jnp.asarray(tgt_out), max(c.output_size for c in configs)
    log_probs = token_log_probs(cast(Any, logits_fns), features, targets, vocab_size)
    return jnp.where(targets != PAD, log_probs, 0.0).sum(axis=1)
