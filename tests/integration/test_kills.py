"""``train.py`` is killed and stopped at random moments, or its disk is full; results are the same.

``JAXFORMER_KILLS=300`` sets the number of interruptions of the nightly test.
"""

import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import time

import jax
import numpy as np
import pytest

from jaxformer import config as config_lib
from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import RESUMABLE
from jaxformer.experiment import make_optimizer
from jaxformer.tasks.translation import make_init
from jaxformer.training.mesh import make_mesh
from jaxformer.training.step import abstract_state

from .training_process import PROJECT, command, environment, start_training

# No interval divides another, except that checkpoints are validated.
SETTINGS = {
    "training.steps": 48,
    "training.log_every": 7,
    "training.checkpoint_every": 4,
    "training.eval_every": 8,
    "training.eval_sentences": 3,
}
TIMES = {"seconds_per_step", "waiting", "tokens_per_second"}
DEADLY = [signal.SIGKILL] * 6 + [signal.SIGSEGV, signal.SIGABRT]
POLITE = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


class Run:
    """A run of train.py that is interrupted and resumed until it is finished."""

    def __init__(self, folder: pathlib.Path, settings=SETTINGS) -> None:
        self.folder, self.settings, self.log = folder, settings, folder.with_suffix(".log")

    def start(self):
        with self.log.open("w") as log:
            self.process = start_training(self.folder, stderr=log, **self.settings)

    def finish(self):
        self.start()
        assert self.process.wait(timeout=300) == 0, self.log.read_text()

    def wait_until(self, condition) -> bool:
        """Returns whether the condition came true before the process ended."""
        deadline = time.monotonic() + 300
        while not condition():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.001)
        return True

    def is_training(self) -> bool:
        return " parameters on 1 cpu device" in self.log.read_text()

    def is_saving(self) -> bool:
        return any((self.folder / "checkpoints").glob("*.orbax-checkpoint-tmp*"))

    def is_validating(self) -> bool:
        steps = Checkpoints(self.folder / "checkpoints").steps()
        validated = [s for s in steps if s % 8 == 0]
        return bool(steps) and steps[-1] in validated and not self.is_scored(steps[-1])

    def is_scored(self, step: int) -> bool:
        return (self.folder / "checkpoints" / str(step) / "score.json").exists()

    def moment(self) -> str:
        """Returns what the process was doing when it died, judged by what it left."""
        for name in ("saving", "validating"):
            if getattr(self, f"is_{name}")():
                return name
        return "training" if self.is_training() else "starting"

    def result(self):
        """Returns state, metrics without times, steps and best step."""
        config = config_lib.load(self.folder / "config.json")
        mesh = make_mesh(devices=jax.devices()[:1])
        template = abstract_state(make_init(config.model), make_optimizer(config), mesh)
        checkpoints = Checkpoints(self.folder / "checkpoints")
        lines = (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        metrics = [
            {name: value for name, value in json.loads(line).items() if name not in TIMES}
            for line in lines
        ]
        state = jax.device_get(checkpoints.restore(template).state)
        return state, metrics, checkpoints.steps(), checkpoints.best_step()


def interrupt(run: Run, chance: random.Random) -> str | None:
    """Kills or stops the process at a random moment; returns how and when, or None if it ended."""
    run.start()
    when = chance.choice(["starting", "training", "training", "saving", "validating"])
    if when != "starting" and not run.wait_until(run.is_training):
        return None
    if when in ("saving", "validating"):
        if not run.wait_until(run.is_saving if when == "saving" else run.is_validating):
            return None
        time.sleep(chance.uniform(0, 0.03))
    else:
        time.sleep(chance.uniform(0, 3.0))
    if chance.random() < 0.1:
        run.process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        run.process.send_signal(signal.SIGCONT)
    number = chance.choice(DEADLY if chance.random() < 0.75 or not run.is_training() else POLITE)
    run.process.send_signal(number)
    code = run.process.wait(timeout=300)
    # A signal that comes while Python exits ends the process in its own way.
    if code == 0 or (number in POLITE and "step 48/48  validation" in run.log.read_text()):
        return None
    expected = {-number} if number in DEADLY else {RESUMABLE}
    if number == signal.SIGABRT:
        # Python prints the stacks of threads that still run, and may crash over a changing one.
        expected.add(-signal.SIGSEGV)
    assert code in expected, run.log.read_text()
    return f"{number.name} {run.moment()}"


def interrupt_often(folder: pathlib.Path, kills: int, seed: int) -> collections.Counter[str]:
    """Compares interrupted runs with an uninterrupted one; returns how often they were how."""
    whole = Run(folder / "whole")
    whole.finish()
    expected = whole.result()
    assert len(expected[1]) == 7 + 6, expected[1]
    chance, seen, number = random.Random(seed), collections.Counter[str](), 0
    while seen.total() < kills:
        number += 1
        run = Run(folder / str(number))
        while seen.total() < kills:
            how = interrupt(run, chance)
            if how is None:
                break
            seen[how] += 1
            print(seen.total(), f"run {number}", how, flush=True)
        if run.process.returncode != 0:
            run.finish()
        found = run.result()
        jax.tree.map(np.testing.assert_array_equal, found[0], expected[0])
        assert found[1:] == expected[1:]
    print(number, "runs", dict(seen))
    return seen


@pytest.mark.ci
def test_interruptions_change_nothing(tmp_path):
    seen = interrupt_often(tmp_path, kills=8, seed=0)
    assert any("starting" not in how for how in seen), seen


@pytest.mark.nightly
def test_many_interruptions_change_nothing(tmp_path):
    seen = interrupt_often(tmp_path, kills=int(os.environ.get("JAXFORMER_KILLS", "50")), seed=1)
    for moment in ("starting", "training", "saving", "validating"):
        assert any(moment in how for how in seen), seen


# Trains on a file system of its own, which is broken for a while.
ON_A_BROKEN_DISK = """
mount -t tmpfs -o size=8m tmpfs "$0" || exit 99
"$@" --config.training.steps=8 || exit 98
{fault} || exit 96
"$@"
echo "exit code $?"
{repair} || exit 95
"$@" || exit 97
cp -r "$0/run" "$0.copy"
"""
# Leaves room for less than one checkpoint.
FILL = """
free=$(df --output=avail -k "$0" | tail -n 1)
head -c $((free - 300))k /dev/zero > "$0/filler" """
FREE = 'rm "$0/filler"'
FREEZE, THAW = 'mount -o remount,ro "$0"', 'mount -o remount,rw "$0"'
# As with a quota, some files can be written, and large ones cannot.
LIMIT, UNLIMIT = "ulimit -S -f 30", "ulimit -S -f unlimited"

NOT_SAVED = "step 12 could not be saved; the steps [4, 8] are intact. Free or repair the"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "repair", "messages"),
    [
        pytest.param(FILL, FREE, [NOT_SAVED, "No space left on device"], id="full"),
        pytest.param(FREEZE, THAW, ["Read-only file system", "/disk/run/"], id="read-only"),
        pytest.param(LIMIT, UNLIMIT, [NOT_SAVED, "File too large"], id="file size limit"),
    ],
)
def test_training_on_a_broken_disk_ends_and_resumes(tmp_path, fault, repair, messages):
    """The errors come from a real file system, in a user namespace."""
    if subprocess.run(["unshare", "-Urm", "true"], check=False).returncode:
        pytest.skip("this system does not let users mount file systems of their own")
    # The run ends after 8 steps at first, which must not make a difference to reports.
    aligned = SETTINGS | {"training.log_every": 4}
    whole, disk = Run(tmp_path / "whole", aligned), tmp_path / "disk"
    whole.finish()
    disk.mkdir()
    script = ON_A_BROKEN_DISK.format(fault=fault, repair=repair)
    words = ["unshare", "-Urm", "sh", "-c", script, disk]
    found = subprocess.run(
        [*words, *command(disk / "run", **aligned)],
        cwd=PROJECT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stdout) == (0, "exit code 1\n"), found.stderr
    (error,) = (line for line in found.stderr.splitlines() if line.startswith("error: "))
    assert all(message in error for message in messages), error
    state, *rest = Run(tmp_path / "disk.copy").result()
    expected, *others = whole.result()
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    assert rest == others
