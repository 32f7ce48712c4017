"""Batched decoding of many sentences with few compiled programs and bounded memory.

Sentences are sorted by length and decoded in batches. In the first stage, the caches of a batch
have capacity for about as many tokens as the sources. Unfinished sentences continue in a
second stage, in smaller batches with capacity up to the maximum length; on CPUs, as soon as they
are an eighth of a batch. Every batch has one of a few shapes, with two programs each.
"""

import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxformer.data.tokenizer import PAD
from jaxformer.errors import UserError
from jaxformer.inference.kept_programs import KeptProgram, is_distributed
from jaxformer.inference.members import Member, token_log_probs
from jaxformer.inference.shortlist import Shortlist
from jaxformer.layout import global_mesh
from jaxformer.models.stepwise import step_fn
from jaxformer.search import Algorithm, BeamResult, PrefillFn, StepFn, ensemble, take_sentences
from jaxformer.search.algorithm import Numbers

Members: TypeAlias = tuple[Member, ...]

# Source lengths that batches are padded to, and the number of sentences in each.
_BUCKETS = ((16, 64), (32, 64), (64, 64), (256, 16), (1024, 4))
# Also for calls with many sentences, which are worth more programs; the first on CPUs only.
_MORE_BUCKETS = ((12, 64), (128, 32))
# Batch sizes for calls with few sentences. On CPUs a matmul of fewer than four rows takes longer
# than one of four, so a batch has at least four hypotheses.
_FEW_ROWS = (1, 4, 8, 32)
_MIN_HYPOTHESES = 4
# Limits the memory of wide beams to that for eight hypotheses of 64 sentences.
_MAX_HYPOTHESES = 512
# Batches that a CPU decodes at the same time, since much of a step keeps only one core busy, and
# most hypotheses of each, few enough for the processor's caches (docs/LOG.md, 2026-11-27).
_CPU_THREADS, _CPU_HYPOTHESES = 3, 192
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
    def num_unfinished(self) -> int:
        """Number of unfinished sentences that end the first stage; 0 if a second gains nothing."""
        small = self.rows < 2 * _MIN_HYPOTHESES or self.first_capacity == self.capacity
        return 0 if small or jax.default_backend() != "cpu" else self.second_stage_rows

    @property
    def second_stage_capacities(self) -> list[int]:
        """Capacities of the second stage, growing, since attention reads the whole capacity.

        >>> BatchShape(rows=24, source=32, first_capacity=32, capacity=332).second_stage_capacities
        [64, 128, 332]
        """
        capacities, capacity = [], self.first_capacity
        # Every capacity is one more loop to compile, which is too costly for the last few tokens.
        while 5 * capacity < self.capacity:
            capacity *= 2
            capacities.append(capacity)
        return [*capacities, self.capacity]


class Decoded(NamedTuple):
    """Hypotheses of one sentence, best first; there may be fewer than the beam size."""

    tokens: list[list[int]]
    scores: list[float]
    log_probs: list[float]


@global_mesh(None)
def search_batches(
    members: Members,
    search: Algorithm,
    sources: Sequence[Sequence[int]],
    prefixes: Sequence[Sequence[int]] | None = None,
    *,
    shortlist: Shortlist | None = None,
    n_best: int = 0,
    free: int = 0,
    first: int = 0,
    report: Callable[[int], object] = lambda finished: None,
) -> list[Decoded]:
    """Decodes every source; see :meth:`~jaxformer.Translator.translate_ids`, which checks them."""
    decoded = [Decoded([], [], [])] * len(sources)
    report(sum(not source for source in sources))
    longest = min(member.config.max_length for member in members)
    if (least := search.min_length) >= longest:
        raise UserError(f"min_length must be less than model.max_length={longest}: got {least}")
    lengths = [len(source) for source in sources]
    forced = None if prefixes is None else [len(prefix) for prefix in prefixes]

    def decode(numbers: list[int], shape: BatchShape) -> int:
        own, shape = [sources[n] for n in numbers], shape._replace(free=free)
        targets = [] if prefixes is None else [prefixes[n] for n in numbers]
        batch = _source_batch(shape, own, targets, [first + n for n in numbers])
        batch = batch._replace(n_best=np.int32(n_best))
        if shortlist is not None:
            vocabulary = min(member.config.output_size for member in members)
            batch = batch._replace(candidates=shortlist.candidates(own, vocabulary))
        for row, result in _search(members, search, shape, batch):
            if row < len(numbers):
                decoded[numbers[row]] = result
        return len(numbers)

    batches = list(plan_batches(lengths, longest, search, forced))
    if len(batches) == 1 or not _can_thread(members):
        for batch in batches:
            report(decode(*batch))
        return decoded
    pool = ThreadPoolExecutor(_CPU_THREADS)
    contexts = [contextvars.copy_context() for _ in batches]  # with the settings of use_backend
    try:
        for finished in pool.map(lambda own, batch: own.run(decode, *batch), contexts, batches):
            report(finished)
    finally:
        pool.shutdown(cancel_futures=True)
    return decoded


def _can_thread(members: Members) -> bool:
    """Returns whether other threads can decode at the same time, with the same results."""
    # Concurrent collectives can deadlock.
    if jax.default_backend() != "cpu" or is_distributed(jax.tree.leaves(members)):
        return False
    # A context of JAX, such as jax.default_matmul_precision, holds in its own thread only.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: jax.config.values).result() == jax.config.values


def plan_batches(
    lengths: Sequence[int], longest: int, search: Algorithm, forced: Sequence[int] | None = None
) -> Iterator[tuple[list[int], BatchShape]]:
    """Yields the indices of the sentences of each batch, and its shape.

    The longest batch comes first, so that a lack of memory shows at once. Sentences with prefixes
    of similar length share a batch, since prefill covers their common length in one pass.
    ``lengths`` are the numbers of source tokens, and ``forced`` of prefix tokens, if there are any.
    """

    def order(number: int) -> tuple[int, int]:
        return -lengths[number], -forced[number] if forced is not None else 0

    numbers = sorted((n for n, length in enumerate(lengths) if length), key=order)
    hypotheses = search.num_hypotheses
    few = [r for r in _FEW_ROWS if r >= len(numbers) and r * hypotheses >= _MIN_HYPOTHESES]
    on_cpu = jax.default_backend() == "cpu"
    most = _CPU_HYPOTHESES if on_cpu else _MAX_HYPOTHESES
    max_rows = min([max(1, most // hypotheses), *few])
    more = () if few else _MORE_BUCKETS[0 if on_cpu else 1 :]
    all_buckets = (*sorted(_BUCKETS + more), (longest, 1))
    buckets = [(min(source, longest), rows) for source, rows in all_buckets]
    while numbers:
        source, rows = next(b for b in buckets if b[0] >= lengths[numbers[0]])
        rows = min(rows, max_rows)
        capacity = min(source + search.extra_length, longest, search.max_length or longest)
        first_capacity, width = min(max(source, _LEAST_CAPACITY), capacity), 0
        if forced is not None:
            needed = min(capacity, max(forced[n] for n in numbers[:rows]))
            width = next(w for w in _prefix_capacities(capacity) if w >= needed)
        # On CPUs, malloc can keep the arrays of so few sentences (docs/LOG.md, 2026-11-28). Greedy
        # search has at least two, since a matmul of a single hypothesis is slow.
        second_rows = min(rows, max(rows // (8 if on_cpu else 4), 1 if hypotheses > 1 else 2))
        shape = BatchShape(rows, source, first_capacity, capacity, second_rows, width)
        yield numbers[:rows], shape
        numbers = numbers[rows:]


def _prefix_capacities(capacity: int) -> list[int]:
    """Returns the capacities for prefixes; they are few, since each needs a program."""
    return [*(width for width in _PREFIXES if width < capacity), capacity]


def all_shapes(sentences: int, tokens: int, longest: int, search: Algorithm) -> list[BatchShape]:
    """Returns the shapes of all batches of calls with up to so many sentences and tokens.

    >>> from jaxformer.search import BeamSearch
    >>> [shape[:2] for shape in all_shapes(4, 30, 1024, BeamSearch())]  # rows and source tokens
    [(1, 16), (1, 32), (4, 16), (4, 32)]
    """
    # All calls with more than the largest of _FEW_ROWS use the same shapes.
    counts = [*(n for n in _FEW_ROWS if n < sentences), min(sentences, _FEW_ROWS[-1] + 1)]
    lengths = [*(length for length, _ in _BUCKETS + _MORE_BUCKETS if length < tokens), tokens]
    found = [plan_batches([tokens] * n, longest, search) for n in counts for tokens in lengths]
    return sorted({shape for batch in found for _, shape in batch})


@global_mesh(None)
def compile_programs(
    members: Members, search: Algorithm, shape: BatchShape, *, prefixes: bool
) -> None:
    """Compiles the programs of a shape by running them on an empty batch."""
    search, numbers = search.split_numbers(shape.capacity)
    for width in _prefix_capacities(shape.capacity) if prefixes else [0]:
        shape = shape._replace(prefix=width)
        batch = _source_batch(shape, [], [], [])
        state, _, result = _run_first_stage(members, search, shape, numbers, batch, np.int32(0))
        if shape.first_capacity < shape.capacity:
            rows = np.zeros(shape.second_stage_rows, np.int32)
            result = _second_stage(members, search, shape, numbers, state, rows, None)
        jax.block_until_ready(result)


class _SourceBatch(NamedTuple):
    """Padded inputs of a search, int32, and the index of each sentence in the whole input."""

    src: Int[np.ndarray, "B S"]
    prefix: Int[np.ndarray, "B P"] | None
    sentence_ids: Int[np.ndarray, " B"]
    candidates: Int[np.ndarray, " C"] | None = None  # tokens that may be generated; None for all
    n_best: Int[np.ndarray, ""] | np.int32 = np.int32(0)


def _source_batch(
    shape: BatchShape,
    sources: Sequence[Sequence[int]],
    prefixes: Sequence[Sequence[int]],
    sentence_ids: Sequence[int],
) -> _SourceBatch:
    src = np.full((shape.rows, shape.source), PAD, np.int32)
    prefix = np.full((shape.rows, shape.prefix), PAD, np.int32)
    for array, sentences in ((src, sources), (prefix, prefixes)):
        for row, sentence in zip(array, sentences, strict=False):  # The other rows are padding.
            row[: len(sentence)] = sentence[: len(row)]
    ids = np.resize(np.asarray(sentence_ids, np.int32), shape.rows)
    return _SourceBatch(src, prefix if shape.prefix else None, ids)


def _search(
    members: Members, search: Algorithm, shape: BatchShape, batch: _SourceBatch
) -> Iterator[tuple[int, Decoded]]:
    """Yields row and hypotheses of the sentences of a batch as they finish."""
    search, numbers = search.split_numbers(shape.capacity)
    # Most translations end before this length; the others continue in smaller batches. If the
    # first stage already has the full capacity, a second stage would only cost a compilation.
    longest = int((batch.src != PAD).sum(axis=1).max())
    until = shape.first_capacity
    if until < shape.capacity:
        until = min(until, longest + longest // 4 + 4)
    state, done, result = _run_first_stage(members, search, shape, numbers, batch, np.int32(until))
    done, result = jax.device_get((done, result))
    for row in np.flatnonzero(done).tolist():
        yield row, _read_row(result, row, batch)
    left = np.flatnonzero(~done)
    for start in range(0, len(left), shape.second_stage_rows):
        rows = left[start : start + shape.second_stage_rows]
        # Unfinished sentences are repeated to fill the batch.
        padded = np.resize(rows, shape.second_stage_rows).astype(np.int32)
        arguments = members, search, shape, numbers, state, padded, batch.candidates
        result = BeamResult(*jax.device_get(_second_stage(*arguments)))
        for i, row in enumerate(rows.tolist()):
            yield row, _read_row(result, i, batch)


def _run_first_stage(*args: Any) -> tuple[list[Array], Bool[Array, " B"], BeamResult]:
    """Runs the first stage; returns the leaves of its state."""
    *state, done, tokens, lengths, scores, log_probs = _first_stage(*args)
    return state, done, BeamResult(tokens, lengths, scores, log_probs)


@functools.partial(KeptProgram, static_argnums=(1, 2))
def _first_stage(
    members: Members,
    search: Algorithm,
    shape: BatchShape,
    numbers: Numbers,
    batch: _SourceBatch,
    until: Int[Array, ""],
) -> tuple[Any, Bool[Array, " B"], BeamResult]:
    """Encodes a batch, decodes ``until`` tokens, and returns which sentences are finished."""
    search = search.join_numbers(numbers)
    segments = (batch.src != PAD).astype(jnp.int32)
    # In the smallest batches, a second loop takes longer to compile and to load than it saves.
    few = shape.rows * search.num_hypotheses <= _MIN_HYPOTHESES
    half = shape.first_capacity if few else max(1, shape.first_capacity // 2)
    sizes = {"num_beams": search.num_hypotheses, "capacity": max(half, shape.prefix)}
    caches = tuple(m(batch.src, segments, **sizes, method="start") for m in members)
    lengths = segments.sum(axis=1)
    max_lengths = jnp.where(lengths > 0, lengths + search.max_extra_length, 0)
    ids = jnp.asarray(batch.sentence_ids)
    options = {"sentence_ids": ids, "n_best": batch.n_best}
    state = search.start(caches, max_lengths, shape.capacity, batch.prefix, **options)
    if shape.prefix:
        state = search.prefill(_prefill_fn(members, shape.free), state)
    chosen = None if batch.candidates is None else jnp.asarray(batch.candidates)
    step_fn = _step_fn(members, chosen)
    # Attention reads the whole capacity, so the first half of the steps uses half of it.
    if half < shape.first_capacity:
        state = search.advance(step_fn, state, jnp.minimum(until, half), shape.num_unfinished)
        state = _grow(state, shape.first_capacity)
    state = search.advance(step_fn, state, until, shape.num_unfinished)
    return state, state.done, search.finalize(state)


@functools.partial(KeptProgram, static_argnums=(1, 2))
def _second_stage(
    members: Members,
    search: Algorithm,
    shape: BatchShape,
    numbers: Numbers,
    leaves: list[Array],
    rows: Int[Array, " R"],
    candidates: Int[Array, " C"] | None,
) -> BeamResult:
    """Decodes the selected sentences of a batch to the end, from the leaves of their state."""
    batch = _source_batch(shape, [], [], [])
    structure = _first_stage.structure(members, search, shape, numbers, batch, np.int32(0))
    state = jax.tree.unflatten(structure.children()[0], leaves)
    search = search.join_numbers(numbers)
    state, step_fn = take_sentences(state, rows), _step_fn(members, candidates)
    for capacity in shape.second_stage_capacities:
        state = search.advance(step_fn, _grow(state, capacity), capacity)
    return search.finalize(state)


def _grow(state: Any, capacity: int) -> Any:
    return state.replace(cache=tuple(cache.grow(capacity) for cache in state.cache))


def _step_fn(members: Members, candidates: Int[Array, " C"] | None) -> StepFn:
    return ensemble([step_fn(member.model, member.params, candidates) for member in members])


def _prefill_fn(members: Members, free: int) -> PrefillFn:
    def prefill(
        inputs: Int[Array, "B P"], targets: Int[Array, "B P"], length: Int[Array, ""], caches: Any
    ) -> tuple[Float[Array, "B P"], Any]:
        pairs = zip(members, caches, strict=True)
        found = [member(inputs, cache, length, method="prefill") for member, cache in pairs]
        features, caches = zip(*found, strict=True)
        log_probs = token_log_probs(members, features, targets)
        return (log_probs.at[:, :free].set(0) if free else log_probs), caches

    return prefill


def _read_row(result: BeamResult, row: int, batch: _SourceBatch) -> Decoded:
    """Returns the needed hypotheses; their ids are indices of the candidates if there are any."""
    exist = np.flatnonzero(result.scores[row] != -np.inf)[: int(batch.n_best) or None]
    tokens = result.tokens[row]
    tokens = tokens if batch.candidates is None else batch.candidates[tokens]
    return Decoded(
        tokens=[tokens[i, : result.lengths[row, i]].tolist() for i in exist],
        scores=result.scores[row, exist].tolist(),
        log_probs=result.log_probs[row, exist].tolist(),
    )
