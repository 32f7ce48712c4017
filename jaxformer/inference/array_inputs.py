"""The plan of inputs that are arrays of a fixed shape, such as pictures or windows of sound.

The encoder of a model reads the arrays. Its decoder writes the output after a prompt, by default
only the token that begins every sentence. Inputs with prompts of similar length are decoded
together, in batches of few sizes, each with one program whose caches hold the whole output.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxformer.data.tokenizer import PAD
from jaxformer.errors import UserError
from jaxformer.inference.decoder import Batch, Decoder, Plan
from jaxformer.inference.hypotheses import Decoded, read_row
from jaxformer.inference.kept_programs import KeptProgram
from jaxformer.inference.members import Models
from jaxformer.nn.backend import backend
from jaxformer.search import Algorithm, BeamResult
from jaxformer.search.algorithm import Numbers

# Inputs of a batch, for few programs.
_ROWS = (1, 4, 16, 64)


class ArrayInput(NamedTuple):
    """An input of arrays.

    Attributes:
      arrays: The arguments of the model's ``start``, without the axis of the batch. They have the
        same shapes and dtypes in all inputs of a call.
      prompt: The first tokens that the decoder reads. They belong neither to the output nor to its
        probability and length. When empty, the decoder reads the search's ``bos_id``.
      number: Number of the input, for constraints and random numbers.
    """

    arrays: tuple[np.ndarray, ...]
    prompt: Sequence[int] = ()
    number: int = 0


class ArrayShape(NamedTuple):
    """Static shape of a batch, for which its program is compiled."""

    rows: int
    prompt: int  # tokens of the prompts, padding included
    capacity: int  # most tokens of an output
    has_starts: bool  # whether prompts of several lengths are padded on the left


@dataclasses.dataclass(frozen=True)
class ArrayInputs(Plan[ArrayInput, ArrayShape, Decoded]):
    """Decodes arrays of a fixed shape; see the top of this module.

    Attributes:
      max_tokens: Most tokens of an output; None for as many as the model reads.
      n_best: Number of hypotheses that are needed; 0 for all of the search.
      most_rows: Most inputs of a batch, which bounds the memory of their encoding.
    """

    max_tokens: int | None = None
    n_best: int = 0
    most_rows: int = _ROWS[-1]

    def batches(
        self,
        decoder: Decoder,
        items: Sequence[ArrayInput],
    ) -> Iterator[Batch[ArrayShape]]:
        """Yields batches of inputs with prompts of similar lengths, the longest first.

        Prompts after which an output may fill the context have the same length.
        """
        longest = decoder.models.max_length
        lengths = [_prompt_length(item) for item in items]
        for number, length in enumerate(lengths):
            if length > longest:
                raise UserError(
                    f"input {number}: expected a prompt of at most {longest} tokens "
                    f"(model.max_length), got {length}"
                )

        capacity = self._capacity(decoder)
        most_with_capacity = longest + 1 - capacity

        def group_of(number: int) -> int:
            return max(most_with_capacity, lengths[number])

        by_length = sorted(range(len(items)), key=lambda number: -lengths[number])
        sizes = self._sizes(decoder.search)
        for _, group in itertools.groupby(by_length, group_of):
            while numbers := list(itertools.islice(group, sizes[-1])):
                lengths_of_batch = {lengths[number] for number in numbers}
                shape = ArrayShape(
                    rows=next(size for size in sizes if size >= len(numbers)),
                    prompt=_padded_length(max(lengths_of_batch), longest),
                    capacity=capacity,
                    has_starts=len(lengths_of_batch) > 1,
                )
                yield Batch(numbers, shape)

    def _sizes(self, search: Algorithm) -> list[int]:
        """Returns the numbers of rows of batches, growing."""
        most = max(1, backend().max_hypotheses // search.num_hypotheses)
        most = min(most, self.most_rows)
        return [*(rows for rows in _ROWS if rows < most), most]

    def _capacity(self, decoder: Decoder) -> int:
        """Returns the most tokens of an output."""
        search = decoder.search
        limits = [decoder.models.max_length]
        for limit in (self.max_tokens, search.max_length):
            if limit is not None:
                limits.append(limit)

        capacity = min(limits)
        if search.min_length >= capacity:
            raise UserError(
                f"min_length must be less than the {capacity} tokens of an output: got "
                f"{search.min_length}"
            )
        return capacity

    def decode(
        self,
        decoder: Decoder,
        items: Sequence[ArrayInput],
        shape: ArrayShape,
    ) -> Iterator[tuple[int, Decoded]]:
        """Yields the hypotheses of each input of a batch."""
        batch = _array_batch(
            shape,
            items,
            longest=decoder.models.max_length,
            bos_id=decoder.search.bos_id,
        )
        decode = decoder.program(_decode, shape, shape.rows)
        leaves = decode(batch, np.int32(self.n_best))

        result = BeamResult(*jax.device_get(leaves))
        for row in range(len(items)):
            yield row, read_row(result, row, n_best=self.n_best)


class _ArrayBatch(NamedTuple):
    """Arrays with the axis of the batch, and prompts that are padded on both sides."""

    arrays: tuple[np.ndarray, ...]
    prompts: Int[np.ndarray, "B P"]
    length: Int[np.ndarray, ""] | np.int32  # tokens of the prompts, with the padding on the left
    starts: Int[np.ndarray, " B"] | None  # indices of the first tokens
    max_lengths: Int[np.ndarray, " B"]  # most tokens of each output; 0 on padding
    numbers: Int[np.ndarray, " B"]


def _array_batch(
    shape: ArrayShape,
    items: Sequence[ArrayInput],
    *,
    longest: int,
    bos_id: int,
) -> _ArrayBatch:
    """Stacks the arrays and pads the prompts of a batch; rows without an input are padding."""
    length = max(_prompt_length(item) for item in items)
    prompts = np.full((shape.rows, shape.prompt), PAD, np.int32)
    starts = np.zeros(shape.rows, np.int32)
    max_lengths = np.zeros(shape.rows, np.int32)
    numbers = np.zeros(shape.rows, np.int32)

    for row, item in enumerate(items):
        prompt = item.prompt or [bos_id]
        starts[row] = length - len(prompt)
        prompts[row, starts[row] : length] = prompt
        numbers[row] = item.number
        # The decoder does not read the last token, so that it needs no position.
        max_lengths[row] = longest + 1 - length

    columns = zip(*(item.arrays for item in items), strict=True)
    return _ArrayBatch(
        arrays=tuple(_stack(column, shape.rows) for column in columns),
        prompts=prompts,
        length=np.int32(length),
        starts=starts if shape.has_starts else None,
        max_lengths=max_lengths,
        numbers=numbers,
    )


def _stack(arrays: Sequence[np.ndarray | np.generic], rows: int) -> np.ndarray:
    """Stacks arrays, with zeros for the missing rows."""
    stacked = np.stack(arrays)
    padded = np.zeros((rows, *stacked.shape[1:]), stacked.dtype)
    padded[: len(stacked)] = stacked
    return padded


@functools.partial(KeptProgram, static_argnums=(1, 2))
def _decode(
    models: Models,
    search: Algorithm,
    shape: ArrayShape,
    numbers: Numbers,
    batch: _ArrayBatch,
    n_best: Int[Array, ""],
) -> BeamResult:
    """Encodes a batch, reads the prompts in one pass, and decodes the outputs to the end."""
    leaves = jax.tree.map(jnp.asarray, tuple(batch))
    arrays, prompts, length, starts, max_lengths, item_numbers = leaves

    # The decoder reads neither the last token of an output nor more than the model's length.
    needed = shape.prompt + shape.capacity - 1
    caches = models.start(
        *arrays,
        num_beams=search.num_hypotheses,
        capacity=min(needed, models.max_length),
    )

    # The last token of a prompt is not prefilled, since the first step feeds it.
    if shape.prompt > 1:
        _, caches = models.prefill(prompts, caches, length - 1, starts)
    last_tokens = jnp.take(prompts, length - 1, axis=1)

    search = search.join_numbers(numbers)
    state = search.start(
        caches,
        max_lengths,
        shape.capacity,
        sentence_ids=item_numbers,
        first_tokens=last_tokens,
        n_best=n_best,
        contrast=models.is_contrast,
    )
    state = search.advance(models.step_fn(), state, shape.capacity)
    return search.finalize(state)


def _prompt_length(item: ArrayInput) -> int:
    return max(1, len(item.prompt))


def _padded_length(length: int, longest: int) -> int:
    """Rounds the length of prompts up to one of few; a single token needs no prefill."""
    power_of_two = 1 << (length - 1).bit_length()
    return min(power_of_two, longest)
