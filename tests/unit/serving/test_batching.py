"""The queue of batches with fake functions: order, errors, cancellation, overload and shutdown."""

import asyncio
import contextlib
import threading
import time

import pytest

from jaxformer.serving.batching import BatchQueue, OverloadedError


class Doubler:
    """Doubles numbers, and fails on negative ones; waits for ``go`` before each batch."""

    def __init__(self):
        self.batches = []
        self.is_called = False
        self.go = threading.Event()
        self.go.set()

    def __call__(self, numbers):
        self.is_called = True
        assert self.go.wait(10)
        self.batches.append(numbers)
        if 0 in numbers:
            raise ZeroDivisionError
        if 13 in numbers:
            return []
        return list(map(self.answer, numbers))

    def answer(self, number):
        return ValueError(number) if number < 0 else 2 * number


def run(main, *, max_batch=4, capacity=8, **options):
    """Runs ``main(queue, doubler)`` beside the queue; returns its result and the batches."""

    async def both():
        doubler = Doubler()
        queue = BatchQueue(doubler, max_batch=max_batch, capacity=capacity, **options)
        running = asyncio.create_task(queue.run())
        try:
            return await main(queue, doubler), doubler.batches
        finally:
            doubler.go.set()
            queue.close()
            await asyncio.wait_for(running, 10)

    return asyncio.run(both())


async def busy(queue, doubler):
    """Submits a number that keeps the queue busy until ``doubler.go``."""
    doubler.go.clear()
    task = asyncio.create_task(queue.submit([100]))
    while not doubler.is_called:
        await asyncio.sleep(0.001)
    return task


def test_a_batch_waits_for_others_but_not_long():
    async def main(queue, doubler):
        await queue.submit([7, 8])
        began = time.perf_counter()
        tasks = [asyncio.create_task(queue.submit([n])) for n in (1, 2)]
        await asyncio.gather(*tasks)
        return time.perf_counter() - began

    seconds, batches = run(main, max_wait=0.05)
    assert batches == [[7, 8], [1, 2]]
    assert 0.05 <= seconds < 5


def test_single_items_do_not_wait():
    async def main(queue, doubler):
        doubled = [await queue.submit([n]) for n in (1, 2, 3)]
        together = await queue.submit([4, 5])  # The newest batch had one item.
        return doubled, together

    async def within_seconds(queue, doubler):
        return await asyncio.wait_for(main(queue, doubler), 10)

    (doubled, together), batches = run(within_seconds, max_wait=60)
    assert doubled == [[2], [4], [6]]
    assert together == [8, 10]
    assert batches == [[1], [2], [3], [4, 5]]


def test_a_full_batch_does_not_wait():
    async def main(queue, doubler):
        return await queue.submit([1, 2, 3, 4])

    doubled, _ = run(main, max_wait=60)
    assert doubled == [2, 4, 6, 8]


def test_an_error_fails_its_own_request_alone():
    async def main(queue, doubler):
        requests = map(queue.submit, ([1], [2, -3], [4]))
        return await asyncio.gather(*requests, return_exceptions=True)

    (one, error, four), batches = run(main)
    assert one == [2]
    assert four == [8]
    assert repr(error) == "ValueError(-3)"
    assert batches == [[1, 2, -3, 4]]


def test_the_queue_survives_a_failing_batch():
    async def main(queue, doubler):
        for number, error in ((0, ZeroDivisionError), (13, ValueError)):
            with pytest.raises(error):
                await queue.submit([number])
        return await queue.submit([1])

    result, _ = run(main)
    assert result == [2]


def test_closing_finishes_what_waits_and_refuses_the_rest():
    async def main(queue, doubler):
        running = await busy(queue, doubler)
        waiting = asyncio.create_task(queue.submit([1]))
        await asyncio.sleep(0)

        queue.close()
        with pytest.raises(OverloadedError):
            await queue.submit([2])

        doubler.go.set()
        return await running, await waiting

    # A batch that waits for others would wait for a minute.
    results, _ = run(main, max_wait=60, max_batch=1)
    assert results == ([200], [2])


def test_threads_compute_batches_at_the_same_time():
    barrier = threading.Barrier(3)

    def meet(numbers):
        barrier.wait(10)  # All batches are computed, or none.
        return numbers

    async def main():
        queue = BatchQueue(meet, max_batch=2, capacity=8, threads=3)
        running = asyncio.create_task(queue.run())
        results = await queue.submit(range(6))
        queue.close()
        await running
        return results

    assert asyncio.run(main()) == list(range(6))


def test_many_callers_get_their_own_answers():
    def is_impatient(number):
        return number % 7 == 0

    async def caller(queue, number):
        seconds = 0.002 if is_impatient(number) else 10
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await queue.submit([number] * (number % 3 + 1))

    async def main(queue, doubler):
        callers = [caller(queue, number) for number in range(14, 100)]
        return await asyncio.gather(*callers)

    results, batches = run(main, capacity=1000, threads=2)
    for number, result in enumerate(results, 14):
        if result is None:
            assert is_impatient(number)
        else:
            assert result == [2 * number] * (number % 3 + 1)
    assert max(map(len, batches)) == 4
