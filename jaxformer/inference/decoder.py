"""The decoder of all uses of trained models: translation, generation, alignment and scores.

A :class:`Plan` makes batches of items and decodes each with the programs of its own, and the
:class:`Decoder` runs it. There are four plans:

- :class:`~jaxformer.inference.stages.Stages` translates sources, by length, in two stages.
- :class:`~jaxformer.inference.array_inputs.ArrayInputs` reads arrays of a fixed shape, as pictures.
- :class:`~jaxformer.inference.windows.Windows` continues prompts, window after window.
- :class:`~jaxformer.inference.forced_pass.ForcedPass` reads given pairs in one pass.
"""

import abc
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import jax
from jaxtyping import Array

from jaxformer.inference.bound_models import program_of
from jaxformer.inference.kept_programs import KeptProgram, is_distributed
from jaxformer.inference.members import Models
from jaxformer.layout import global_mesh
from jaxformer.nn.backend import backend
from jaxformer.search import Algorithm

Item = TypeVar("Item")
Shape = TypeVar("Shape")
Result = TypeVar("Result")
Found = TypeVar("Found")


@dataclasses.dataclass(frozen=True)
class Batch(Generic[Shape]):
    """Items that are decoded together."""

    numbers: list[int]  # the indices of the items
    shape: Shape  # what the plan compiles programs for


class Plan(abc.ABC, Generic[Item, Shape, Result]):
    """A way to decode items in batches of few shapes, for few compiled programs."""

    @abc.abstractmethod
    def batches(self, decoder: "Decoder", items: Sequence[Item]) -> Iterable[Batch[Shape]]:
        """Returns the batches; an item without tokens may be in none."""

    @abc.abstractmethod
    def decode(
        self,
        decoder: "Decoder",
        items: Sequence[Item],
        shape: Shape,
    ) -> Iterator[tuple[int, Result]]:
        """Yields rows of a batch with their results as they become known.

        A result replaces an earlier one of the same row. Rows beyond the items are padding.
        """


@dataclasses.dataclass(frozen=True, eq=False)
class Decoder(Generic[Item, Shape, Result]):
    """Models that decode the batches of a plan by a search."""

    models: Models
    search: Algorithm
    plan: Plan[Item, Shape, Result]

    def decode(
        self,
        items: Sequence[Item],
        *,
        report: Callable[[int], object] = lambda finished: None,
    ) -> dict[int, Result]:
        """Returns the last result of each item by its index; an item in no batch has none.

        Args:
          items: Inputs of the plan.
          report: Called with the number of items in no batch, and in each finished batch.
        """
        batches = list(self.plan.batches(self, items))
        num_in_batches = sum(len(batch.numbers) for batch in batches)
        report(len(items) - num_in_batches)

        found: dict[int, Result] = {}

        def decode(batch: Batch[Shape]) -> dict[int, Result]:
            return dict(self._decode_batch(items, batch))

        def store(results: dict[int, Result]) -> None:
            found.update(results)
            report(len(results))

        _for_each_batch(decode, batches, self.models, store)
        return found

    def stream(self, items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        """Yields indices of items and results as they become known, one batch after another."""
        for batch in self.plan.batches(self, items):
            yield from self._decode_batch(items, batch)

    def _decode_batch(
        self,
        items: Sequence[Item],
        batch: Batch[Shape],
    ) -> Iterator[tuple[int, Result]]:
        own_items = [items[number] for number in batch.numbers]
        for row, result in self.plan.decode(self, own_items, batch.shape):
            is_padding = row >= len(own_items)
            if not is_padding:
                yield batch.numbers[row], result

    def program(self, program: KeptProgram, shape: Any, rows: int) -> Callable[..., list[Array]]:
        """Returns a program of a search with its first arguments given.

        Args:
          program: A function of models, a search, a shape, the search's numbers, and arrays. The
            search and the shape are static.
          shape: A shape of the plan, with a ``capacity``: most tokens of a hypothesis.
          rows: Number of items of the program's batch, which may be fewer than the shape's.
        """
        search, numbers = self.search.split_numbers(shape.capacity)
        bound = program_of(program, self.models, rows * search.num_hypotheses)
        without_mesh = global_mesh(None)(bound)
        return functools.partial(without_mesh, search, shape, numbers)


def _for_each_batch(
    decode: Callable[[Batch[Shape]], Found],
    batches: Sequence[Batch[Shape]],
    models: Models,
    store: Callable[[Found], object],
) -> None:
    """Decodes batches, several at a time where that helps, and stores what they give in order."""
    if len(batches) < 2 or not can_thread(models):
        for batch in batches:
            store(decode(batch))
        return

    # Every thread gets a copy of this one's context, with the settings of use_backend.
    contexts = [contextvars.copy_context() for _ in batches]

    def decode_in_context(context: contextvars.Context, batch: Batch[Shape]) -> Found:
        return context.run(decode, batch)

    pool = ThreadPoolExecutor(backend().decoding_threads)
    try:
        for found in pool.map(decode_in_context, contexts, batches):
            store(found)
    finally:
        pool.shutdown(cancel_futures=True)


def can_thread(models: Models) -> bool:
    """Returns whether other threads can decode at the same time, with the same results."""
    if backend().decoding_threads == 1:
        return False
    # Concurrent collectives can deadlock.
    if is_distributed(jax.tree.leaves(models)):
        return False

    # A context of JAX, such as jax.default_matmul_precision, holds in its own thread only.
    with ThreadPoolExecutor(1) as pool:
        settings_of_thread = pool.submit(lambda: jax.config.values).result()
    return settings_of_thread == jax.config.values
