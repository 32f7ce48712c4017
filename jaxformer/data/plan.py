"""The batch plan: the examples in global batch n, as a pure function of n.

A plan is a fixed layout: batches of rows of slots. Every slot has a class, the length of the
examples that fit it, and a class has as many slots as examples. Each epoch newly assigns examples
to the slots of their class, and shuffles the batches. Every example is therefore used exactly once
per epoch, every epoch has the same number of batches, their shapes are known in advance, and the
whole state is one integer: n.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import numpy as np

from jaxformer.data.batch import Shape
from jaxformer.data.buckets import bucket_edges
from jaxformer.data.corpus import DataConfig
from jaxformer.data.packing import length_class, pack
from jaxformer.data.store import TokenStore
from jaxformer.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class BatchPlan:
    """Assignment of examples to batches, from :func:`bucket_plan` and similar functions.

    E examples fill E slots in R rows in B batches.

    >>> lengths = np.array([3, 5, 4, 5])
    >>> plan = sequential_plan(lengths, lengths, tokens_per_batch=10)
    >>> plan.shapes, plan.batches_per_epoch, plan.rows(0)
    (((2, 4, 4), (2, 5, 5)), 2, ((2, 4, 4), [[0], [2]]))
    """

    shapes: tuple[Shape, ...]  # of batches, which may have fewer rows, and shorter ones
    example_class: np.ndarray  # [E]
    slot_class: np.ndarray  # [E]; slots are numbered row by row
    row_starts: np.ndarray  # [R + 1]; first slot of every row, then the number of slots
    batch_starts: np.ndarray  # [B + 1]; first row of every batch, then the number of rows
    batch_shape: np.ndarray  # [B]; indices in ``shapes``
    tokens: int  # of all examples, both sides, without padding
    seed: int | None  # of the order; None keeps examples and batches in order
    ids: np.ndarray | None = None  # [E], if some are used several times per epoch; None: 0, 1, ...

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches that use every example once."""
        return len(self.batch_shape)

    @property
    def efficiency(self) -> float:
        """Fraction of the tokens computed in an epoch that are not padding."""
        computed = []
        for rows, src_length, tgt_length in self.shapes:
            length = src_length + tgt_length
            computed.append(rows * length)
        tokens_of_batches = np.array(computed)[self.batch_shape]
        return self.tokens / int(tokens_of_batches.sum())

    def rows(self, n: int) -> tuple[Shape, list[list[int]]]:
        """Returns shape and rows, as ids, of batch n; n counts from 0 across epochs."""
        epoch, place = divmod(n, self.batches_per_epoch)
        examples, batches = self._epoch(epoch)
        batch = batches[place]

        # The slots of the batch, and where each of its rows begins among them.
        first_row, end_row = self.batch_starts[batch : batch + 2]
        row_bounds = self.row_starts[first_row : end_row + 1]
        first_slot = row_bounds[0]
        end_slot = row_bounds[-1]
        batch_examples = examples[first_slot:end_slot]
        cuts = (row_bounds - first_slot).tolist()

        if self.ids is not None:
            batch_examples = self.ids[batch_examples]
        ids = batch_examples.tolist()
        rows = [ids[start:stop] for start, stop in itertools.pairwise(cuts)]

        shape_index = self.batch_shape[batch]
        return self.shapes[shape_index], rows

    @functools.cached_property
    def _epoch(self) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
        # Around the end of an epoch, the threads of the loader need two epochs.
        return functools.lru_cache(maxsize=2)(self._assign_examples)

    @functools.cached_property
    def _slots_by_class(self) -> np.ndarray:
        return np.argsort(self.slot_class, kind="stable")

    def _assign_examples(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the example in every slot, and the order of the batches."""
        if self.seed is None:
            by_class = np.argsort(self.example_class, kind="stable")
            batches = np.arange(self.batches_per_epoch)
        else:
            # NumPy guarantees the stream of raw bits across versions, but not shuffle's.
            seeds = np.random.SeedSequence([self.seed % 2**64, epoch])
            random = np.random.PCG64(seeds)
            example_keys = random.random_raw(len(self.example_class))
            batch_keys = random.random_raw(self.batches_per_epoch)

            by_class = np.lexsort((example_keys, self.example_class))
            batches = np.argsort(batch_keys, kind="stable")

        # Example k of a class goes to slot k of the class.
        examples = np.empty(len(by_class), np.int32)
        examples[self._slots_by_class] = by_class
        return examples, batches


def make_plan(
    store: TokenStore,
    config: DataConfig,
    seed: int,
    repetitions: np.ndarray | None = None,
) -> BatchPlan:
    """Returns the plan of training batches: each pair once per epoch, or its ``repetitions``."""
    src_lengths = store.src_lengths
    tgt_lengths = store.tgt_lengths
    ids = None
    if repetitions is not None:
        ids = np.repeat(np.arange(len(store)), repetitions)
        src_lengths = src_lengths[ids]
        tgt_lengths = tgt_lengths[ids]

    if config.batching == "packing":
        plan = packing_plan(
            src_lengths,
            tgt_lengths,
            tokens_per_batch=config.tokens_per_batch,
            row_length=config.max_length,
            seed=seed,
        )
    else:
        plan = bucket_plan(
            src_lengths,
            tgt_lengths,
            tokens_per_batch=config.tokens_per_batch,
            seed=seed,
        )

    return dataclasses.replace(plan, ids=ids)


def bucket_plan(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    *,
    tokens_per_batch: int,
    seed: int | None,
    max_buckets: int = 12,
) -> BatchPlan:
    """Plans batches of pairs of similar length, one pair per row (section 5.1).

    Both sides of a batch are padded to the edge of its bucket. There are at most ``max_buckets``,
    from :func:`~jaxformer.data.buckets.bucket_edges`. The examples of a bucket are spread evenly
    over its batches, so that there is no small last batch.

    Departs from the paper: its "approximately 25000" tokens are an upper limit, padding included.

    Lengths include EOS. Without a seed, examples and batches stay in order.
    """
    num_pairs = len(src_lengths)
    lengths = np.maximum(src_lengths, tgt_lengths)
    edges = bucket_edges(lengths, tokens_per_batch, max_buckets)
    buckets = np.searchsorted(edges, lengths)

    sizes = []  # of the batches of each bucket
    shapes = []
    counts = np.bincount(buckets).tolist()
    for count, edge in zip(counts, edges, strict=True):
        bucket_sizes = _even_sizes(count, tokens_per_batch // edge)
        sizes.append(bucket_sizes)

        largest = int(bucket_sizes.max())
        shapes.append((largest, edge, edge))

    batches_per_bucket = [len(bucket_sizes) for bucket_sizes in sizes]
    all_sizes = np.concatenate(sizes)
    all_shapes = np.arange(len(edges))
    return BatchPlan(
        shapes=tuple(shapes),
        example_class=buckets,
        slot_class=np.sort(buckets),
        row_starts=np.arange(num_pairs + 1),
        batch_starts=_starts(all_sizes),
        batch_shape=np.repeat(all_shapes, batches_per_bucket),
        tokens=int(src_lengths.sum() + tgt_lengths.sum()),
        seed=seed,
    )


def sequential_plan(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    *,
    tokens_per_batch: int,
    max_buckets: int = 12,
) -> BatchPlan:
    """Plans batches for validation as :func:`bucket_plan` does, in the same order every epoch.

    A pair longer than ``tokens_per_batch`` raises the limit to its own length: none is skipped.
    """
    longest = max(int(src_lengths.max()), int(tgt_lengths.max()))
    return bucket_plan(
        src_lengths,
        tgt_lengths,
        tokens_per_batch=max(tokens_per_batch, longest),
        seed=None,
        max_buckets=max_buckets,
    )


def packing_plan(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    *,
    tokens_per_batch: int,
    row_length: int,
    seed: int,
) -> BatchPlan:
    """Plans batches of rows that hold several pairs each, all of one shape.

    A row has ``row_length`` tokens on either side; see :func:`bucket_plan` for the rest.

    Departs from the paper: ``data.batching="packing"``, which is optional, instead of buckets.
    """
    longest = max(int(src_lengths.max()), int(tgt_lengths.max()))
    if longest > row_length:
        raise UserError(f"expected pairs of at most {row_length} tokens to pack: got {longest}")

    packed_slots, packed_starts = pack(src_lengths, tgt_lengths, row_length)
    slots, row_starts = _mix_rows(packed_slots, packed_starts)

    row_count = len(row_starts) - 1
    sizes = _even_sizes(row_count, tokens_per_batch // row_length)
    largest = int(sizes.max())
    return BatchPlan(
        shapes=((largest, row_length, row_length),),
        example_class=length_class(src_lengths, tgt_lengths, row_length),
        slot_class=slots,
        row_starts=row_starts,
        batch_starts=_starts(sizes),
        batch_shape=np.zeros(len(sizes), np.int64),
        tokens=int(src_lengths.sum() + tgt_lengths.sum()),
        seed=seed,
    )


def _mix_rows(slots: np.ndarray, row_starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shuffles the rows, since packing puts the long pairs first."""
    lengths = np.diff(row_starts)
    keys = np.random.PCG64(0).random_raw(len(lengths))
    order = np.argsort(keys, kind="stable")

    mixed_lengths = lengths[order]
    mixed_starts = _starts(mixed_lengths)

    # Slot k of a shuffled row is slot k of the original row.
    original_starts = row_starts[:-1][order]
    row_shift = original_starts - mixed_starts[:-1]
    slot_shift = np.repeat(row_shift, mixed_lengths)
    original_slots = np.arange(len(slots)) + slot_shift
    return slots[original_slots], mixed_starts


def _even_sizes(count: int, max_rows: int) -> np.ndarray:
    """Returns the sizes, as equal as possible, of the fewest batches with at most ``max_rows``."""
    batches = -(-count // max_rows)
    has_one_more = np.arange(batches) < count % batches
    return count // batches + has_one_more


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)])
