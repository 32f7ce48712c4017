"""The plan of translations: two stages, with few compiled programs and bounded memory.

Sentences are sorted by length and decoded in batches. In the first stage, the caches of a batch
have capacity for about as many tokens as the sources. Unfinished sentences continue in a
second stage, in smaller batches with capacity up to the maximum length; on CPUs, as soon as they
are an eighth of a batch. Every batch has one of a few shapes, with two programs each.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxformer.data.tokenizer import PAD
from jaxformer.errors import UserError
from jaxformer.inference.decoder import Batch, Decoder, Plan
from jaxformer.inference.hypotheses import Decoded, read_row
from jaxformer.inference.kept_programs import KeptProgram
from jaxformer.inference.members import Models
from jaxformer.inference.shortlist import Shortlist
from jaxformer.nn.backend import backend
from jaxformer.search import Algorithm, BeamResult, take_sentences
from jaxformer.search.algorithm import Numbers

# Source lengths that batches are padded to, and the number of sentences in each.
_BUCKETS = ((16, 64), (32, 64), (64, 64), (256, 16), (1024, 4))
# Also for calls with many sentences, which are worth more programs.
_MORE_BUCKETS = ((12, 64), (128, 32))
# Batch sizes for calls with few sentences. XLA's kernels for CPUs take no matmul of one row, so a
# batch has at least two hypotheses (docs/log/2026.md, 2026-11-29).
_FEW_ROWS = (1, 2, 4, 8, 32)
_LEAST_HYPOTHESES = 2
# Batches of at most so many hypotheses have one loop.
_SMALL_HYPOTHESES = 4
# Least capacity of the first stage: translations may be longer than short sources.
_LEAST_CAPACITY = 16
# Capacities for forced tokens; the largest is the longest translation.
_PREFIXES = (16, 64, 256)


class BatchShape(NamedTuple):
    """Static shape of a batch, for which its programs are compiled."""

    rows: int  # sentences in the first stage
    source: int  # source tokens
    first_capacity: int  # capacity for target tokens in the first stage
    capacity: int  # capacity in the second stage, the maximum length of a translation
    second_stage_rows: int = 1  # sentences in the second stage
    prefix: int = 0  # capacity for forced tokens; 0 if nothing is forced
    free: int = 0  # forced tokens whose probability does not count: the first

    @property
    def second_stage_capacities(self) -> list[int]:
        """Capacities of the second stage, growing, since attention reads the whole capacity.

        >>> BatchShape(rows=24, source=32, first_capacity=32, capacity=332).second_stage_capacities
        [64, 128, 332]
        """
        capacities = []
        capacity = self.first_capacity
        # Every capacity is one more loop to compile, which is too costly for the last few tokens.
        while 5 * capacity < self.capacity:
            capacity *= 2
            capacities.append(capacity)
        return [*capacities, self.capacity]


class Source(NamedTuple):
    """A sentence to translate."""

    tokens: Sequence[int]
    sentence_id: int = 0  # for constraints and random numbers
    prefix: Sequence[int] | None = None  # forced tokens; None in all sources, or in none


@dataclasses.dataclass(frozen=True, eq=False)
class Stages(Plan[Source, BatchShape, Decoded]):
    """Decodes sources of similar lengths together; see the top of this module.

    Attributes:
      shortlist: Likely target tokens, to which the search is restricted; None for all.
      n_best: Number of hypotheses that are needed; 0 for all of the search.
      free: Number of forced tokens, the first, whose probability does not count.
    """

    shortlist: Shortlist | None = None
    n_best: int = 0
    free: int = 0

    def batches(self, decoder: Decoder, items: Sequence[Source]) -> Iterator[Batch[BatchShape]]:
        """Yields the batches of :func:`plan_batches`; blank sources are in none."""
        search = decoder.search
        longest = decoder.models.max_length
        if search.min_length >= longest:
            raise UserError(
                f"min_length must be less than model.max_length={longest}: got {search.min_length}"
            )

        forced = None
        if any(source.prefix is not None for source in items):
            forced = [len(source.prefix or ()) for source in items]
        plan = plan_batches(
            [len(source.tokens) for source in items],
            longest,
            search,
            forced=forced,
        )
        for numbers, shape in plan:
            yield Batch(numbers, shape._replace(free=self.free))

    def decode(
        self,
        decoder: Decoder,
        items: Sequence[Source],
        shape: BatchShape,
    ) -> Iterator[tuple[int, Decoded]]:
        """Yields the hypotheses of the sentences of a batch as they finish."""
        batch = _source_batch(shape, items)
        batch = batch._replace(n_best=np.int32(self.n_best))
        if self.shortlist is not None:
            sources = [source.tokens for source in items]
            candidates = self.shortlist.candidates(sources, decoder.models.output_size)
            batch = batch._replace(candidates=candidates)

        # Most translations end before this length; the others continue in smaller batches. If the
        # first stage already has the full capacity, a second stage would only cost a compilation.
        until = shape.first_capacity
        if until < shape.capacity:
            longest = int((batch.src != PAD).sum(axis=1).max())
            most = longest + longest // 4 + 4
            until = min(until, most)

        first_stage = _run_first_stage(decoder, shape, batch, until)
        done, result = jax.device_get((first_stage.done, first_stage.result))
        for row in np.flatnonzero(done).tolist():
            yield row, _read_row(result, row, batch)

        unfinished = np.flatnonzero(~done)
        second_stage = decoder.program(_second_stage, shape, shape.second_stage_rows)
        for start in range(0, len(unfinished), shape.second_stage_rows):
            rows = unfinished[start : start + shape.second_stage_rows]
            # Unfinished sentences are repeated to fill the batch.
            padded_rows = np.resize(rows, shape.second_stage_rows).astype(np.int32)
            leaves = second_stage(first_stage.state_leaves, padded_rows, batch.candidates)
            result = BeamResult(*jax.device_get(leaves))
            for i, row in enumerate(rows.tolist()):
                yield row, _read_row(result, i, batch)

    def compile(self, decoder: Decoder, shape: BatchShape, *, prefixes: bool) -> None:
        """Compiles the programs of a shape by running them on an empty batch."""
        shape = shape._replace(free=self.free)
        widths = _prefix_capacities(shape.capacity) if prefixes else [0]
        for width in widths:
            shape = shape._replace(prefix=width)
            batch = _source_batch(shape, [])
            first_stage = _run_first_stage(decoder, shape, batch, until=0)
            result = first_stage.result

            if shape.first_capacity < shape.capacity:
                rows = np.zeros(shape.second_stage_rows, np.int32)
                second_stage = decoder.program(_second_stage, shape, shape.second_stage_rows)
                result = second_stage(first_stage.state_leaves, rows, None)
            jax.block_until_ready(result)


def plan_batches(
    lengths: Sequence[int],
    longest: int,
    search: Algorithm,
    forced: Sequence[int] | None = None,
) -> Iterator[tuple[list[int], BatchShape]]:
    """Yields the indices of the sentences of each batch, and its shape.

    The longest batch comes first, so that a lack of memory shows at once. Sentences with prefixes
    of similar length share a batch, since prefill covers their common length in one pass.
    ``lengths`` are the numbers of source tokens, and ``forced`` of prefix tokens, if there are any.
    """

    def order(index: int) -> tuple[int, int]:
        num_forced = 0 if forced is None else forced[index]
        return -lengths[index], -num_forced

    indices = [index for index, length in enumerate(lengths) if length]
    indices.sort(key=order)
    buckets = _buckets(len(indices), longest, search)

    while indices:
        longest_source = lengths[indices[0]]
        source, rows = next(bucket for bucket in buckets if bucket[0] >= longest_source)
        chosen = indices[:rows]

        num_forced = None
        if forced is not None:
            num_forced = max(forced[index] for index in chosen)
        shape = _batch_shape(
            source,
            rows,
            num_forced,
            longest=longest,
            search=search,
        )

        yield chosen, shape
        indices = indices[rows:]


def _buckets(num_sentences: int, longest: int, search: Algorithm) -> list[tuple[int, int]]:
    """Returns the source lengths that batches are padded to, growing, and the rows of each."""
    hypotheses = search.num_hypotheses
    max_rows = max(1, backend().max_hypotheses // hypotheses)

    # The smallest batch that holds all sentences, if they are few.
    least_rows = max(num_sentences, -(-_LEAST_HYPOTHESES // hypotheses))
    enough_rows = [rows for rows in _FEW_ROWS if rows >= least_rows]
    buckets = [*_BUCKETS]
    if enough_rows:
        max_rows = min(max_rows, enough_rows[0])
    else:
        shortest = backend().shortest_source
        buckets += [bucket for bucket in _MORE_BUCKETS if bucket[0] >= shortest]

    limited = []
    for source, rows in [*sorted(buckets), (longest, 1)]:
        limited.append((min(source, longest), min(rows, max_rows)))
    return limited


def _batch_shape(
    source: int,
    rows: int,
    num_forced: int | None,
    *,
    longest: int,
    search: Algorithm,
) -> BatchShape:
    """Returns the shape of a batch of ``rows`` sources, with up to ``num_forced`` forced tokens."""
    capacity = min(source + search.extra_length, longest)
    if search.max_length:
        capacity = min(capacity, search.max_length)
    first_capacity = min(max(source, _LEAST_CAPACITY), capacity)

    prefix = 0
    if num_forced is not None:
        needed = min(capacity, num_forced)
        prefix = next(width for width in _prefix_capacities(capacity) if width >= needed)

    # Greedy search has at least two, since a matmul of a single hypothesis is slow.
    least_rows = 1 if search.num_hypotheses > 1 else 2
    second_stage_rows = max(rows // backend().second_stage_divisor, least_rows)
    second_stage_rows = min(second_stage_rows, rows)

    return BatchShape(
        rows=rows,
        source=source,
        first_capacity=first_capacity,
        capacity=capacity,
        second_stage_rows=second_stage_rows,
        prefix=prefix,
    )


def _prefix_capacities(capacity: int) -> list[int]:
    """Returns the capacities for prefixes; they are few, since each needs a program."""
    smaller = [width for width in _PREFIXES if width < capacity]
    return [*smaller, capacity]


def all_shapes(sentences: int, tokens: int, longest: int, search: Algorithm) -> list[BatchShape]:
    """Returns the shapes of all batches of calls with up to so many sentences and tokens.

    >>> from jaxformer.search import BeamSearch
    >>> [shape[:2] for shape in all_shapes(4, 30, 1024, BeamSearch())]  # rows and source tokens
    [(1, 16), (1, 32), (2, 16), (2, 32), (4, 16), (4, 32)]
    """
    # All calls with more than the largest of _FEW_ROWS use the same shapes.
    counts = [count for count in _FEW_ROWS if count < sentences]
    counts.append(min(sentences, _FEW_ROWS[-1] + 1))

    lengths = [length for length, _ in _BUCKETS + _MORE_BUCKETS if length < tokens]
    lengths.append(tokens)

    shapes = set()
    for count in counts:
        for length in lengths:
            lengths_of_sentences = [length] * count
            for _, shape in plan_batches(lengths_of_sentences, longest, search):
                shapes.add(shape)
    return sorted(shapes)


class _SourceBatch(NamedTuple):
    """Padded inputs of a search, int32, and the index of each sentence in the whole input."""

    src: Int[np.ndarray, "B S"]
    prefix: Int[np.ndarray, "B P"] | None
    sentence_ids: Int[np.ndarray, " B"]
    candidates: Int[np.ndarray, " C"] | None = None  # tokens that may be generated; None for all
    n_best: Int[np.ndarray, ""] | np.int32 = np.int32(0)


def _source_batch(shape: BatchShape, sources: Sequence[Source]) -> _SourceBatch:
    """Pads the sources and prefixes of a batch; rows without a sentence are padding."""
    src = np.full((shape.rows, shape.source), PAD, np.int32)
    for row, source in zip(src, sources, strict=False):
        row[: len(source.tokens)] = source.tokens

    prefix = None
    if shape.prefix:
        prefix = np.full((shape.rows, shape.prefix), PAD, np.int32)
        for row, source in zip(prefix, sources, strict=False):
            # Prefixes are cut at the maximum length of a translation.
            forced = source.prefix or []
            row[: len(forced)] = forced[: len(row)]

    ids = np.asarray([source.sentence_id for source in sources], np.int32)
    return _SourceBatch(
        src=src,
        prefix=prefix,
        sentence_ids=np.resize(ids, shape.rows),
    )


class _FirstStage(NamedTuple):
    """Outcome of the first stage of a batch."""

    state_leaves: list[Array]  # of the search's state
    done: Bool[Array, " B"]  # which sentences are finished
    result: BeamResult


def _run_first_stage(
    decoder: Decoder,
    shape: BatchShape,
    batch: _SourceBatch,
    until: int,
) -> _FirstStage:
    """Runs the first stage, and names the leaves that its program returns."""
    first_stage = decoder.program(_first_stage, shape, shape.rows)
    leaves = first_stage(batch, np.int32(until))

    # The structure of the state is unknown without a trace, which a kept program spares.
    num_results = len(BeamResult._fields)
    return _FirstStage(
        state_leaves=leaves[: -num_results - 1],
        done=leaves[-num_results - 1],
        result=BeamResult(*leaves[-num_results:]),
    )


@functools.partial(KeptProgram, static_argnums=(1, 2))
def _first_stage(
    models: Models,
    search: Algorithm,
    shape: BatchShape,
    numbers: Numbers,
    batch: _SourceBatch,
    until: Int[Array, ""],
) -> tuple[Any, Bool[Array, " B"], BeamResult]:
    """Encodes a batch, decodes ``until`` tokens, and returns which sentences are finished."""
    search = search.join_numbers(numbers)
    segments = (batch.src != PAD).astype(jnp.int32)  # [B, S]

    # Attention reads the whole capacity, so the first half of the steps uses half of it. In the
    # smallest batches, a second loop takes longer to compile and to load than it saves.
    if shape.rows * search.num_hypotheses <= _SMALL_HYPOTHESES:
        half = shape.first_capacity
    else:
        half = max(1, shape.first_capacity // 2)

    num_unfinished = _num_unfinished(shape)
    caches = models.start(
        batch.src,
        segments,
        num_beams=search.num_hypotheses,
        capacity=max(half, shape.prefix),
    )

    lengths = segments.sum(axis=1)
    max_lengths = jnp.where(lengths > 0, lengths + search.max_extra_length, 0)  # [B]
    state = search.start(
        caches,
        max_lengths,
        capacity=shape.capacity,
        prefix=batch.prefix,
        sentence_ids=jnp.asarray(batch.sentence_ids),
        n_best=jnp.asarray(batch.n_best),
        contrast=models.is_contrast,
    )
    if shape.prefix:
        state = search.prefill(models.prefill_fn(shape.free), state)

    candidates = None if batch.candidates is None else jnp.asarray(batch.candidates)
    step_fn = models.step_fn(candidates)
    if half < shape.first_capacity:
        state = search.advance(
            step_fn,
            state,
            until=jnp.minimum(until, half),
            unfinished=num_unfinished,
        )
        state = _grow(models, state, shape.first_capacity)
    state = search.advance(
        step_fn,
        state,
        until=until,
        unfinished=num_unfinished,
    )
    return state, state.done, search.finalize(state)


@functools.partial(KeptProgram, static_argnums=(1, 2))
def _second_stage(
    models: Models,
    search: Algorithm,
    shape: BatchShape,
    numbers: Numbers,
    leaves: list[Array],
    rows: Int[Array, " R"],
    candidates: Int[Array, " C"] | None,
) -> BeamResult:
    """Decodes the selected sentences of a batch to the end, from the leaves of their state."""
    # The state is the first of the three results of the first stage.
    batch = _source_batch(shape, [])
    structure = _first_stage.structure(
        models,
        search,
        shape,
        numbers,
        batch,
        np.int32(0),
    )
    state = jax.tree.unflatten(structure.children()[0], leaves)

    search = search.join_numbers(numbers)
    state = take_sentences(state, rows)
    step_fn = models.step_fn(candidates)
    for capacity in shape.second_stage_capacities:
        state = _grow(models, state, capacity)
        state = search.advance(step_fn, state, capacity)
    return search.finalize(state)


def _num_unfinished(shape: BatchShape) -> int:
    """Returns how many unfinished sentences end the first stage; 0 if a second gains nothing."""
    is_small = shape.rows < 2 * _SMALL_HYPOTHESES
    has_second_stage = shape.first_capacity < shape.capacity
    if backend().ends_first_stage and has_second_stage and not is_small:
        return shape.second_stage_rows
    return 0


def _grow(models: Models, state: Any, capacity: int) -> Any:
    return state.replace(cache=models.grow(state.cache, capacity))


def _read_row(result: BeamResult, row: int, batch: _SourceBatch) -> Decoded:
    return read_row(
        result,
        row,
        n_best=int(batch.n_best),
        candidates=batch.candidates,
    )
