"""Every pair is trained on once an epoch, over kills, restarts, and other devices and hosts."""

import collections
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from jaxformer.config import DataConfig
from jaxformer.data.findings import EMPTY
from jaxformer.data.loader import load_batches
from jaxformer.data.plan import make_plan
from jaxformer.data.store import build_store
from jaxformer.data.tokenizer import cached_tokenizer

from .exactly_once_run import COUNT, STEPS, Numbers, config, numbers_of
from .test_processes import pair_flags

PROJECT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.ci
EVERY_NUMBER = [n for n in range(COUNT) if n % 1000 != 999]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns the tokenizer and the store of 100,000 pairs, less the 100 that are skipped."""
    cache = tmp_path_factory.mktemp("cache")
    tokenizer = cached_tokenizer(Numbers(), "train", 300, cache)
    return tokenizer, build_store(Numbers(), "train", tokenizer, 16, cache)


def rows_of(store, plan, tokenizer, start, stop, shards):
    """Yields the numbers in the batches, read by ``shards`` processes of one device each."""
    processes = [
        load_batches(
            store,
            plan,
            start=start,
            stop=stop,
            row_multiple=shards,
            local_shards=(shard,),
            shard_count=shards,
        )
        for shard in range(shards)
    ]
    for batches in zip(*processes, strict=True):
        yield sorted(n for batch in batches for n in numbers_of(batch, tokenizer))


@pytest.mark.parametrize("batching", ["buckets", "packing"])
def test_every_number_once_an_epoch_over_restarts(batching, data):
    """The run restarts at a random earlier step, on another number of processes."""
    tokenizer, store = data
    options = DataConfig(batching=batching, tokens_per_batch=8192, max_length=16)
    plan = make_plan(store, options, seed=3)
    assert len(store) == len(EVERY_NUMBER)
    assert store.findings[EMPTY].count == COUNT - len(EVERY_NUMBER)
    dice, done, seen = random.Random(batching), 0, {}
    while done < 2 * plan.batches_per_epoch:
        start = max(0, done - dice.randrange(4))
        stop = min(start + 1 + dice.randrange(40), 2 * plan.batches_per_epoch)
        shards = dice.choice([1, 2, 3, 4, 8])
        for step, numbers in enumerate(rows_of(store, plan, tokenizer, start, stop, shards), start):
            assert seen.setdefault(step, numbers) == numbers
        done = stop
    for epoch in range(2):
        steps = range(epoch * plan.batches_per_epoch, (epoch + 1) * plan.batches_per_epoch)
        assert sorted(n for step in steps for n in seen[step]) == EVERY_NUMBER


def test_step_one_million_is_reached_at_once(data):
    tokenizer, store = data
    began = time.process_time()
    plan = make_plan(store, DataConfig(tokens_per_batch=8192, max_length=16), seed=3)
    batch = next(load_batches(store, plan, start=1_000_000))
    assert time.process_time() - began < 2
    (rows,) = {frozenset(i for row in plan.rows(1_000_000)[1] for i in row)}
    assert set(numbers_of(batch, tokenizer)) == {int(store.numbers[i]) for i in rows}


def start_run(folder, attempt, devices, *flags):
    command = [sys.executable, str(PROJECT / "tests" / "integration" / "exactly_once_run.py")]
    arguments = [str(folder / "run"), str(folder / "log"), str(attempt), *flags]
    with (folder / f"said-{attempt}-{len(flags) and flags[1]}").open("w") as said:
        return subprocess.Popen(
            command + arguments,
            cwd=PROJECT,
            env={
                **os.environ,
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
                "JAXFORMER_CACHE": str(folder / "cache"),
            },
            stderr=said,
        )


def steps_of(log):
    """Returns, by attempt and step, the numbers that all processes have logged."""
    found = collections.defaultdict(list)
    for line in log.read_text().split("\n")[:-1] if log.exists() else []:
        attempt, _, step, *numbers = map(int, line.split())
        found[attempt, step] += numbers
    return found


# Devices of each attempt; in a tuple: of each of two processes.
ATTEMPTS = [1, 4, (1, 1), 2, (2, 2), 8]


@pytest.mark.nightly
def test_every_number_once_an_epoch_over_kills(tmp_path, data):
    """A real run is killed after random steps, and resumes on other devices and processes."""
    _, store = data
    plan = make_plan(store, config().data, config().training.seed)
    dice, log = random.Random(0), tmp_path / "log"
    for attempt, devices in enumerate([*ATTEMPTS, 3]):
        flags = [()]
        if isinstance(devices, tuple):
            coordinator = pair_flags()[0][0].removeprefix("--coordinator=")
            flags, devices = [(coordinator, "0"), (coordinator, "1")], devices[0]
        processes = [start_run(tmp_path, attempt, devices, *some) for some in flags]
        steps = dice.randrange(8, 28) if attempt < len(ATTEMPTS) else STEPS
        deadline = time.monotonic() + 400
        while sum(number == attempt for number, _ in steps_of(log)) < steps:
            assert time.monotonic() < deadline
            time.sleep(dice.random() / 10)
            if any(process.poll() is not None for process in processes):
                break
        if attempt < len(ATTEMPTS):
            for process in processes:
                process.kill()
        codes = {process.wait(timeout=60) for process in processes}
        expected = -signal.SIGKILL if attempt < len(ATTEMPTS) else 0
        said = (tmp_path / f"said-{attempt}-0").read_text()
        assert codes == {expected}, said
        assert "100 with an empty side" in said
    check_log(steps_of(log), plan.batches_per_epoch)


def check_log(logged, batches_per_epoch):
    """Checks that each number comes once an epoch when repeated steps are removed."""
    last = {}
    for (_, step), numbers in sorted(logged.items()):  # a later attempt replaces an earlier one
        # A process that was killed may have logged nothing.
        assert not collections.Counter(last.get(step, ())) - collections.Counter(numbers)
        last[step] = numbers
    assert sorted(last) == list(range(1, STEPS + 1))
    assert len(logged) > STEPS  # some steps were repeated
    epochs, rest = divmod(STEPS, batches_per_epoch)
    assert epochs >= 2
    assert rest
    for epoch in range(epochs + 1):
        first = epoch * batches_per_epoch + 1
        steps = range(first, min(first + batches_per_epoch, STEPS + 1))
        numbers = sorted(n for step in steps for n in last[step])
        if epoch < epochs:
            assert numbers == EVERY_NUMBER
        else:
            assert len(set(numbers)) == len(numbers)
            assert set(numbers) < set(EVERY_NUMBER)
