"""Reads given pairs of sources and targets in one pass, without a cache: forced decoding."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Int

from jaxformer.data.tokenizer import BOS, PAD
from jaxformer.inference.decoder import Batch, Decoder, Plan
from jaxformer.inference.members import Ensemble
from jaxformer.layout import global_mesh

# Token ids of a source and of a target.
Pair: TypeAlias = tuple[list[int], list[int]]
_SHORTEST = 16


class PairShape(NamedTuple):
    """Shape of a batch of pairs."""

    rows: int
    length: int  # tokens of each side, padding included


class PairBatch(NamedTuple):
    """Pairs to read together; the last rows may be padding."""

    src: Int[np.ndarray, "B L"]
    tgt_in: Int[np.ndarray, "B L"]  # the targets shifted right
    tgt_out: Int[np.ndarray, "B L"]


@dataclasses.dataclass(frozen=True)
class ForcedPass(Plan[Pair, PairShape, np.ndarray]):
    """Batches pairs of similar length; the result of a pair is its row of an array.

    Attributes:
      compute: Returns a list of one array with a row for each pair. It gets the models whose
        probabilities a hypothesis has: of a contrast, the experts.
      tokens_per_batch: Most tokens of each side of a batch, padding included.
      first_token: The first input of each target.
    """

    compute: Callable[[Ensemble, PairBatch], list[Array]]
    tokens_per_batch: int
    first_token: int = BOS

    def batches(self, decoder: Decoder, items: Sequence[Pair]) -> Iterator[Batch[PairShape]]:
        return batch_pairs(items, decoder.models.max_length, self.tokens_per_batch)

    def decode(
        self,
        decoder: Decoder,
        items: Sequence[Pair],
        shape: PairShape,
    ) -> Iterator[tuple[int, np.ndarray]]:
        batch = pad_pairs(items, shape, self.first_token)
        with global_mesh(None):
            [results] = self.compute(decoder.models.experts, batch)
        yield from enumerate(jax.device_get(results))


def batch_pairs(
    pairs: Sequence[Pair],
    max_length: int,
    tokens_per_batch: int,
) -> Iterator[Batch[PairShape]]:
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

        yield Batch(numbers[:rows], PairShape(rows, length))
        numbers = numbers[rows:]


def pad_pairs(pairs: Sequence[Pair], shape: PairShape, first_token: int = BOS) -> PairBatch:
    """Pads pairs to the shape of a batch."""
    src = np.full(shape, PAD, np.int32)
    tgt_in = np.full(shape, PAD, np.int32)
    tgt_out = np.full(shape, PAD, np.int32)

    for row, (source, target) in enumerate(pairs):
        shifted = [first_token, *target[:-1]]
        src[row, : len(source)] = source
        tgt_in[row, : len(target)] = shifted
        tgt_out[row, : len(target)] = target

    return PairBatch(src, tgt_in=tgt_in, tgt_out=tgt_out)
