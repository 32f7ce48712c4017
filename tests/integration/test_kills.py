"""``train.py`` is killed and stopped, or loses its disk or machine; its result is the same."""

import random
import re
import shutil
import signal
import subprocess
import time

import pytest

from jaxformer.errors import RESUMABLE

from ..runs import flip_a_bit
from . import training_process
from .training_process import WHOLE, assert_same_result, newest_step, result, wait_until


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return training_process.whole_run(tmp_path_factory)


class Run:
    """A run of train.py that is interrupted and resumed until it is finished."""

    def __init__(self, folder):
        self.folder = folder
        self.log = folder.with_suffix(".log")
        self.process = None

    def start(self, **settings):
        settings = WHOLE | settings
        with self.log.open("w") as log:
            self.process = training_process.start_training(self.folder, stderr=log, **settings)

    def end(self, number=None):
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(timeout=300)

    def wait_until(self, condition):
        return wait_until(condition, self.process)

    def said(self):
        return self.log.read_text()

    def is_training(self):
        return " parameters on 1 cpu device" in self.said()

    def is_saving(self):
        return any((self.folder / "checkpoints").glob("*.orbax-checkpoint-tmp*"))

    def is_validating(self):
        step = newest_step(self.folder)
        score = self.folder / "checkpoints" / str(step) / "score.json"
        return step > 0 and step % 8 == 0 and not score.exists()


def stop_in_a_save(run, after):
    """Stops the process while it saves a step after a given one."""

    def is_late_save():
        return newest_step(run.folder) >= after and run.is_saving()

    while True:
        assert run.wait_until(is_late_save)
        run.process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        if run.is_saving():
            return
        run.process.send_signal(signal.SIGCONT)


@pytest.mark.ci
def test_one_fault_after_the_other_changes_nothing(tmp_path, whole):
    run = Run(tmp_path / "run")
    copy = tmp_path / "copy"
    mirror = {"training.mirror": copy}

    # Killed while it saves a step, and the step before it is damaged.
    run.start()
    stop_in_a_save(run, after=8)
    assert run.end(signal.SIGKILL) == -signal.SIGKILL
    assert run.is_saving()
    saved = newest_step(run.folder)
    flip_a_bit(run.folder / "checkpoints" / str(saved))

    # Stopped in a validation.
    run.start()
    assert run.wait_until(run.is_validating), run.said()
    assert run.end(signal.SIGTERM) == RESUMABLE, run.said()
    assert f"going back to step {saved - 4}" in run.said()
    stopped = newest_step(run.folder)
    assert f"SIGTERM: step {stopped} is saved" in run.said()

    # Killed in a step, with a mirror; then its folder is lost, as with its machine.
    def is_mirrored():
        return newest_step(copy) > stopped and not run.is_saving()

    run.start(**mirror)
    assert run.wait_until(is_mirrored), run.said()
    assert run.end(signal.SIGKILL) == -signal.SIGKILL
    assert f"resumed from step {stopped}" in run.said()
    shutil.rmtree(run.folder)

    # Brought back from the mirror.
    run.start(**mirror)
    assert run.end() == 0, run.said()
    assert "brought back the checkpoints of steps " in run.said()
    for folder in (run.folder, copy):
        assert_same_result(result(folder), result(whole))


@pytest.mark.nightly
def test_kills_at_random_times_change_nothing(tmp_path, whole):
    chance = random.Random(1)
    run = Run(tmp_path / "run")

    def finish():
        run.start()
        assert run.end() == 0, run.said()
        assert_same_result(result(run.folder), result(whole))

    for _ in range(50):
        run.start()
        if chance.random() < 0.8:
            run.wait_until(run.is_training)
        time.sleep(chance.uniform(0, 3))

        is_finished = run.end(signal.SIGKILL) == 0 or newest_step(run.folder) == 48
        if is_finished:
            finish()
            shutil.rmtree(run.folder)

    finish()


# Trains on a file system of its own that is broken in one way after the other.
ON_A_BROKEN_DISK = """
mount -t tmpfs -o size=8m tmpfs "$0" || exit 99
cp -r "$0.before" "$0/run" || exit 98
{faults}
"$@" || exit 97
cp -r "$0/run" "$0.after"
"""
BROKEN = """
{} || exit 96
"$@"
echo "exit code $?"
{} || exit 95
"""
# The fault, its repair, and the error.
BROKEN_DISKS = [
    (  # leaves room for less than one checkpoint
        'head -c $(($(df --output=avail -k "$0" | tail -n 1) - 300))k /dev/zero > "$0/filler"',
        'rm "$0/filler"',
        # The checkpoint is written in the background, while other files are written.
        "step 44 could not be saved; .*40] are intact. Free or repair .*No space left on device|"
        "No space left on device: .*/disk/run/",
    ),
    (
        'mount -o remount,ro "$0"',
        'mount -o remount,rw "$0"',
        "/disk/run/.*Read-only file system|Read-only file system.*/disk/run/",
    ),
]


@pytest.mark.ci
def test_training_on_a_broken_disk_ends_and_resumes(tmp_path, whole):
    """The errors come from a real file system, in a user namespace."""
    if subprocess.run(["unshare", "-Urm", "true"], check=False).returncode:
        pytest.skip("this system does not let users mount file systems of their own")

    disk = tmp_path / "disk"
    training_process.cut_back(whole, tmp_path / "disk.before", 40)
    disk.mkdir()
    faults = "".join(BROKEN.format(fault, repair) for fault, repair, _ in BROKEN_DISKS)
    script = ON_A_BROKEN_DISK.format(faults=faults)
    command = ["unshare", "-Urm", "sh", "-c", script, disk]
    found = subprocess.run(
        command + training_process.command(disk / "run", **WHOLE),
        cwd=training_process.PROJECT,
        env=training_process.environment(),
        capture_output=True,
        text=True,
    )

    assert found.returncode == 0, found.stderr
    assert found.stdout == "exit code 1\n" * 2, found.stderr
    errors = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
    for error, (_, _, expected) in zip(errors, BROKEN_DISKS, strict=True):
        assert re.search(expected, error), error

    assert_same_result(result(tmp_path / "disk.after"), result(whole))
