"""Threads that decode batches at the same time, which keeps all cores of a CPU busy."""

import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax

from jaxformer.inference.kept_programs import is_distributed
from jaxformer.inference.members import Models
from jaxformer.nn.backend import backend

Batch = TypeVar("Batch")
Result = TypeVar("Result")


def decode_batches(
    decode: Callable[[Batch], Result],
    batches: Sequence[Batch],
    models: Models,
    report: Callable[[Result], object],
) -> None:
    """Decodes batches, several at a time where that helps, and reports their results in order."""
    if len(batches) < 2 or not can_thread(models):
        for batch in batches:
            report(decode(batch))
        return

    # Every thread gets a copy of this one's context, with the settings of use_backend.
    contexts = [contextvars.copy_context() for _ in batches]

    def decode_in_context(context: contextvars.Context, batch: Batch) -> Result:
        return context.run(decode, batch)

    pool = ThreadPoolExecutor(backend().decoding_threads)
    try:
        for result in pool.map(decode_in_context, contexts, batches):
            report(result)
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
