"""The plan of generated texts: windows of a model's context, which continue prompts."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from jaxformer.data.tokenizer import EOS, PAD
from jaxformer.errors import UserError
from jaxformer.inference.decoder import Batch, Decoder, Plan
from jaxformer.inference.kept_programs import KeptProgram
from jaxformer.inference.members import Models
from jaxformer.layout import global_mesh
from jaxformer.search import Algorithm, BeamSearch, Sampling
from jaxformer.search.algorithm import Numbers
from jaxformer.search.sampling import sentence_keys

# Batches are padded to one of these sizes, so that few programs serve all calls.
BATCH_SIZES = (1, 4, 16, 64)
_CHUNK = 8  # number of tokens generated between two updates of a stream
_SMALLEST_CAPACITY = 64


class Prompt(NamedTuple):
    """A text to continue."""

    tokens: list[int]
    # Random numbers depend on these two.
    number: int
    sample: int = 0


@dataclasses.dataclass(frozen=True)
class Windows(Plan[Prompt, int, Int[np.ndarray, "N n"]]):
    """Continues prompts of similar lengths together; the shape of a batch is its number of rows.

    The results of a prompt are all tokens generated so far, of each hypothesis. A sampled text may
    be longer than the context: when that is full, its second half is prefilled into a new cache,
    the next window.

    Attributes:
      max_tokens: Most tokens of a continuation.
    """

    max_tokens: int

    def batches(self, decoder: Decoder, items: Sequence[Prompt]) -> Iterator[Batch[int]]:
        """Yields batches of prompts of similar lengths.

        Prompts whose context will be full have the same length.
        """
        longest = decoder.models.max_length - max(1, self.max_tokens - 1)

        def length_of(number: int) -> int:
            return len(items[number].tokens)

        def group_of(number: int) -> int:
            return max(longest, length_of(number))

        by_length = sorted(range(len(items)), key=length_of)
        for _, group in itertools.groupby(by_length, group_of):
            while numbers := list(itertools.islice(group, BATCH_SIZES[-1])):
                rows = next(size for size in BATCH_SIZES if size >= len(numbers))
                yield Batch(numbers, rows)

    def decode(
        self,
        decoder: Decoder,
        items: Sequence[Prompt],
        shape: int,
    ) -> Iterator[tuple[int, Int[np.ndarray, "N n"]]]:
        """Yields all tokens generated so far for each prompt, after each chunk."""
        search = decoder.search
        max_tokens = self.max_tokens
        if max_tokens < 1:
            raise UserError(f"max_tokens must be at least 1: got {max_tokens}")
        if search.max_length:
            max_tokens = min(max_tokens, search.max_length)

        context, starts = _pad_prompts(items, shape)
        longest = decoder.models.max_length
        check_context(search, context.shape[1], max_tokens, longest=longest)

        if isinstance(search, Sampling):
            chunks = _sample(
                decoder,
                items,
                context,
                starts,
                seed=search.seed,
                max_tokens=max_tokens,
            )
        else:
            chunks = _generate_window(
                decoder,
                context,
                starts,
                keys=None,
                count=max_tokens,
                chunk=max_tokens,
            )
        for tokens in chunks:
            yield from enumerate(tokens)


def check_context(search: Algorithm, length: int, max_tokens: int, longest: int) -> None:
    """Refuses a beam search that exceeds the context of ``longest`` tokens, after a prompt."""
    if not isinstance(search, BeamSearch):
        return

    # The last token is generated, but never fed to the model.
    most = longest + 1 - length
    if max_tokens > most:
        raise UserError(
            f"beam search keeps to the model's context of {longest} tokens: expected at "
            f"most {max(0, most)} tokens after this prompt, got "
            f"{max_tokens}; sample, or ask for fewer"
        )


def _sample(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    context: Int[np.ndarray, "B T"],
    starts: Int[np.ndarray, " B"] | None,
    *,
    seed: int,
    max_tokens: int,
) -> Iterator[Int[np.ndarray, "B 1 n"]]:
    """Generates window after window, and yields all tokens so far after each chunk."""
    batch_size = len(context)
    longest = decoder.models.max_length
    done = np.zeros((batch_size, 1, 0), np.int32)  # tokens of earlier windows

    for window in itertools.count():
        num_done = done.shape[2]
        ended = (done == EOS).any(axis=2, keepdims=True)
        if num_done >= max_tokens or ended.all():
            return

        # A full context continues from its second half, in a new cache.
        if context.shape[1] >= longest:
            half = max(1, longest // 2)
            context = context[:, -half:]
        capacity = longest + 1 - context.shape[1]

        # Texts that have ended are padded until all have.
        new = done[:, :, :0]
        chunks = _generate_window(
            decoder,
            context,
            starts,
            keys=_keys(seed, prompts, size=batch_size, window=window),
            count=min(max_tokens - num_done, capacity),
            chunk=_CHUNK,
        )
        for new in chunks:
            new = np.where(ended, PAD, new)
            yield np.concatenate([done, new], axis=2)

        done = np.concatenate([done, new], axis=2)
        context = np.concatenate([context, new[:, 0]], axis=1)


def _generate_window(
    decoder: Decoder,
    context: Int[np.ndarray, "B T"],
    starts: Int[np.ndarray, " B"] | None,
    *,
    keys: Key[Array, " B"] | None,
    count: int,
    chunk: int,
) -> Iterator[Int[np.ndarray, "B N n"]]:
    """Generates ``count`` tokens after a context and yields all tokens after each chunk."""
    batch_size, length = context.shape

    # The last token is generated, but not fed, so that it needs no capacity.
    longest = decoder.models.max_length
    shape = _WindowShape(
        rows=batch_size,
        prompt=_capacity(length, longest),
        capacity=_capacity(length - 1 + count, longest) + 1,
        has_starts=starts is not None,
    )

    window = _empty_window(shape, keys)
    window.context[:, :length] = context
    window = window._replace(
        length=np.int32(length),
        starts=starts,
        count=np.int32(count),
    )
    start_window = decoder.program(_start_window, shape, batch_size)
    advance_window = decoder.program(_advance_window, shape, batch_size)
    leaves = start_window(window)

    for until in (*range(chunk, count, chunk), count):
        results = advance_window(leaves, np.int32(until))
        # The state, and then the tokens.
        leaves = results[:-1]
        yield np.asarray(results[-1])[:, :, :until]


class _WindowShape(NamedTuple):
    """Static shape of a window, for which its programs are compiled."""

    rows: int  # hypotheses of a beam share a row
    prompt: int  # tokens of the context, padding included
    capacity: int  # tokens of the context and of the text
    has_starts: bool  # whether prompts of several lengths are padded on the left


class _Window(NamedTuple):
    """The context that a window of a text continues."""

    context: Int[np.ndarray, "B T"]
    length: Int[np.ndarray, ""] | np.int32  # tokens of the context
    starts: Int[np.ndarray, " B"] | None  # indices of the first tokens
    count: Int[np.ndarray, ""] | np.int32  # tokens to generate
    keys: Key[Array, " B"] | None  # for samples


def _empty_window(shape: _WindowShape, keys: Key[Array, " B"] | None) -> _Window:
    """Returns a window of padding, whose arrays have the shapes of all windows of a shape."""
    return _Window(
        context=np.zeros((shape.rows, shape.prompt), np.int32),
        length=np.int32(0),
        starts=np.zeros(shape.rows, np.int32) if shape.has_starts else None,
        count=np.int32(0),
        keys=keys,
    )


@functools.partial(KeptProgram, static_argnums=(1, 2))
def _start_window(
    models: Models,
    search: Algorithm,
    shape: _WindowShape,
    numbers: Numbers,
    window: _Window,
) -> Any:
    """Prefills contexts, and returns the state before the first new token."""
    context, length, starts, count, keys = jax.tree.map(jnp.asarray, tuple(window))
    caches = models.start(
        context,
        num_beams=search.num_hypotheses,
        capacity=shape.capacity - 1,
    )
    # The last token is not prefilled, since the first step feeds it.
    _, caches = models.prefill(context, caches, length - 1, starts)

    search = search.join_numbers(numbers)
    max_lengths = jnp.broadcast_to(count, context.shape[:1])
    last_tokens = context[:, length - 1]
    return search.start(
        caches,
        max_lengths,
        shape.capacity,
        keys=keys,
        first_tokens=last_tokens,
        contrast=models.is_contrast,
    )


@functools.partial(KeptProgram, static_argnums=(1, 2), donate_argnums=(4,))
def _advance_window(
    models: Models,
    search: Algorithm,
    shape: _WindowShape,
    numbers: Numbers,
    leaves: list[Array],
    until: Int[Array, ""],
) -> tuple[Any, Int[Array, "B N T"]]:
    """Generates until hypotheses have ``until`` tokens; returns the state and the tokens."""
    keys = None
    if isinstance(search, Sampling):
        keys = jax.eval_shape(lambda: sentence_keys(0, jnp.arange(shape.rows)))
    structure = _start_window.structure(
        models,
        search,
        shape,
        numbers,
        _empty_window(shape, keys),
    )
    state = jax.tree.unflatten(structure, leaves)

    search = search.join_numbers(numbers)
    state = search.advance(models.step_fn(), state, until)
    result = search.finalize(state)
    return state, result.tokens


@global_mesh(None)
def _keys(seed: int, prompts: Sequence[Prompt], size: int, window: int) -> Key[Array, " B"]:
    """Returns the random keys of prompts, padded to ``size`` keys."""
    # The keys depend neither on the batch nor on the order of its rows.
    indices = [(prompt.number, prompt.sample) for prompt in prompts]
    padded = np.resize(indices, (size, 2))
    numbers, samples = map(jnp.asarray, padded.T)

    fold_in = jax.vmap(jax.random.fold_in)
    keys_of_prompts = sentence_keys(seed, numbers)
    keys_of_samples = fold_in(keys_of_prompts, samples)
    windows = jnp.full(size, window)
    return fold_in(keys_of_samples, windows)


def _capacity(tokens: int, max_capacity: int) -> int:
    """Rounds a number of tokens up to one of few capacities, to compile few programs."""
    power_of_two = 1 << (tokens - 1).bit_length()
    return min(max_capacity, max(_SMALLEST_CAPACITY, power_of_two))


def _pad_prompts(
    prompts: Sequence[Prompt],
    rows: int,
) -> tuple[Int[np.ndarray, "B T"], Int[np.ndarray, " B"] | None]:
    """Pads prompts on the left to one length, and repeats them up to a number of rows.

    Returns:
      The prompts, and the indices of their first tokens; None if all are 0.
    """
    width = max(len(prompt.tokens) for prompt in prompts)
    context = np.full((len(prompts), width), PAD, np.int32)
    starts = np.zeros(len(prompts), np.int32)
    for number, prompt in enumerate(prompts):
        start = width - len(prompt.tokens)
        starts[number] = start
        context[number, start:] = prompt.tokens

    context = np.resize(context, (rows, width))
    if not starts.any():
        return context, None
    return context, np.resize(starts, rows)
