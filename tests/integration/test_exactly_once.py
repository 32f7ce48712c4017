"""Every pair is trained on once an epoch, over kills, restarts, and other devices and hosts."""

import collections
import random
import signal
import subprocess
import sys

import pytest

from jaxformer.data.plan import make_plan
from jaxformer.data.store import build_store
from jaxformer.data.tokenizer import cached_tokenizer

from ..profiles import NIGHTLY, by_profile
from .exactly_once_run import COUNT, STEPS, Numbers, config
from .training_process import PROJECT, environment, free_address, wait_until

pytestmark = pytest.mark.ci
EVERY_NUMBER = [n for n in range(COUNT) if n % 1000 != 999]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns the tokenizer and the store of all pairs but the empty ones, which are skipped."""
    cache = tmp_path_factory.mktemp("cache")
    tokenizer = cached_tokenizer(Numbers(), "train", 300, cache)
    return tokenizer, build_store(Numbers(), "train", tokenizer, 16, cache)


def start_run(folder, attempt, devices, *flags):
    script = str(PROJECT / "tests" / "integration" / "exactly_once_run.py")
    arguments = [str(folder / "run"), str(folder / "log"), str(attempt), *flags]
    with (folder / f"said-{attempt}-{len(flags) and flags[1]}").open("w") as said:
        variables = environment(devices) | {"JAXFORMER_CACHE": str(folder / "cache")}
        command = [sys.executable, script, *arguments]
        return subprocess.Popen(command, cwd=PROJECT, env=variables, stderr=said)


def steps_of(log):
    """Returns, by attempt and step, the numbers that all processes have logged."""
    found = collections.defaultdict(list)
    for line in log.read_text().split("\n")[:-1] if log.exists() else []:
        attempt, _, step, *numbers = map(int, line.split())
        found[attempt, step] += numbers
    return found


# Devices of each attempt that is killed; in a tuple: of each of two processes.
ATTEMPTS = by_profile([2], nightly=[1, 4, (1, 1), 2, (2, 2), 8])


def test_every_number_once_an_epoch_over_kills(tmp_path, data):
    """A real run is killed after random steps, and resumes on other devices and processes."""
    plan = make_plan(data[1], config().data, config().training.seed)
    assert len(data[1]) == len(EVERY_NUMBER)
    dice, log = random.Random(0), tmp_path / "log"
    for attempt, devices in enumerate([*ATTEMPTS, 3]):
        flags, last = [()], attempt == len(ATTEMPTS)
        if isinstance(devices, tuple):
            address, devices = free_address(), devices[0]
            flags = [(address, "0"), (address, "1")]
        processes = [start_run(tmp_path, attempt, devices, *some) for some in flags]
        if not last:
            steps = dice.randrange(8, 28)
            wait_until(
                lambda attempt=attempt, steps=steps: (
                    sum(number == attempt for number, _ in steps_of(log)) >= steps
                ),
                *processes,
                every=0.05,
            )
            for process in processes:
                process.kill()
        codes = {process.wait(timeout=300) for process in processes}
        said = (tmp_path / f"said-{attempt}-0").read_text()
        assert codes == {0 if last else -signal.SIGKILL}, said
        assert f"{COUNT // 1000} with an empty side" in said
    check_log(steps_of(log), plan.batches_per_epoch)


def check_log(logged, batches_per_epoch):
    """Checks that each number comes once an epoch when repeated steps are removed."""
    last = {}
    for (_, step), numbers in sorted(logged.items()):  # a later attempt replaces an earlier one
        # A process that was killed may have logged nothing.
        assert not collections.Counter(last.get(step, ())) - collections.Counter(numbers)
        last[step] = numbers
    assert sorted(last) == list(range(1, STEPS + 1))
    assert not NIGHTLY or len(logged) > STEPS  # some steps were repeated
    epochs, rest = divmod(STEPS, batches_per_epoch)
    assert epochs >= 2
    assert rest
    for epoch in range(epochs + 1):
        first = epoch * batches_per_epoch + 1
        steps = range(first, min(first + batches_per_epoch, STEPS + 1))
        numbers = [n for step in steps for n in last[step]]
        if epoch < epochs:
            assert sorted(numbers) == EVERY_NUMBER
        else:
            assert len(set(numbers)) == len(numbers)
            assert set(numbers) < set(EVERY_NUMBER)
