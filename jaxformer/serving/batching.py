"""Micro-batches: the items of many callers share the calls of a function.

The queue knows neither HTTP nor models. The function runs in threads, and the event loop is free.
"""

import asyncio
import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class OverloadedError(Exception):
    """The queue has no capacity; in about ``retry_after`` seconds, at least 1, it is empty."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many texts are waiting; retry in {retry_after} s")
        self.retry_after = retry_after


class BatchQueue(Generic[Item, Result]):
    """Collects items into batches, in the order of arrival.

    A batch starts when it is full, or when its oldest item has waited for ``max_wait`` seconds.
    Items that arrive while a batch is computed form the next one. After a batch of one item, the
    next batch does not wait: callers are so few that another item would hardly come in time.
    """

    def __init__(
        self,
        compute: Callable[[list[Item]], Sequence[Result | Exception]],
        *,
        max_batch: int,
        capacity: int,
        threads: int = 1,
        max_wait: float = 0.005,
    ) -> None:
        """Takes a function that returns a result or an exception for each item of a batch.

        ``max_batch`` items are a full batch, at most ``capacity`` items wait, and ``threads``
        batches are computed at the same time.
        """
        self._compute = compute
        self._max_batch = max_batch
        self._capacity = capacity
        self._threads = threads
        self._max_wait = max_wait

        # Items and times of arrival; a dictionary keeps the order, and removes any item at once.
        self._waiting: dict[asyncio.Future[Result], tuple[Item, float]] = {}
        self._changed = asyncio.Event()
        self._closed = False
        self._newest_size = 0  # items of the batch that started last
        self._seconds_per_item = 0.0  # in the newest batch

    def __len__(self) -> int:
        return len(self._waiting)

    async def submit(self, items: Sequence[Item]) -> list[Result]:
        """Returns the results of some items in order, or raises the error of one of them.

        The items of a cancelled caller leave the queue.

        Raises:
          OverloadedError: The queue has no capacity for all of the items.
        """
        num_waiting = len(self)
        if self._closed or num_waiting + len(items) > self._capacity:
            seconds = num_waiting * self._seconds_per_item
            raise OverloadedError(max(1, math.ceil(seconds)))

        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in items]
        for future, item in zip(futures, items, strict=True):
            self._waiting[future] = (item, loop.time())
        self._changed.set()

        try:
            return await asyncio.gather(*futures)
        finally:
            for future in futures:
                self._waiting.pop(future, None)
                future.cancel()

    async def run(self) -> None:
        """Computes batches until the queue is closed and empty."""
        with ThreadPoolExecutor(self._threads) as pool:
            runs = [self._run_batches(pool) for _ in range(self._threads)]
            await asyncio.gather(*runs)

    def close(self) -> None:
        """Refuses new items; :meth:`run` finishes the items that wait, and returns."""
        self._closed = True
        self._changed.set()

    async def _run_batches(self, pool: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()

        while await self._is_ready():
            futures = list(itertools.islice(self._waiting, self._max_batch))
            items = []
            for future in futures:
                item, _ = self._waiting.pop(future)
                items.append(item)
            self._newest_size = len(items)

            began = loop.time()
            try:
                results = await loop.run_in_executor(pool, self._compute, items)
                pairs = list(zip(futures, results, strict=True))
            except Exception as error:
                pairs = [(future, error) for future in futures]

            for future, result in pairs:
                if future.done():  # Its caller has left.
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

            seconds = loop.time() - began
            self._seconds_per_item = seconds / len(items) / self._threads

    async def _is_ready(self) -> bool:
        """Waits until a batch starts; returns False if the queue is closed and empty."""
        loop = asyncio.get_running_loop()

        while self._waiting or not self._closed:
            if self._waiting:
                _, oldest_arrival = next(iter(self._waiting.values()))
                deadline = oldest_arrival
                if self._newest_size > 1:
                    deadline += self._max_wait
                is_full = len(self) >= self._max_batch
                if self._closed or is_full or loop.time() >= deadline:
                    return True
            else:
                deadline = None

            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()

        return False
