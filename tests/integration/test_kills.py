"""``train.py`` is killed and stopped, or loses its disk or machine; it ends as if nothing had been.

``JAXFORMER_KILLS=300`` sets the number of interruptions of the nightly test.
"""

import collections
import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

from jaxformer.errors import RESUMABLE

from ..profiles import by_profile
from . import training_process
from .training_process import WHOLE, assert_same_result, newest_step, result, wait_until

DEADLY = [signal.SIGKILL] * 6 + [signal.SIGSEGV, signal.SIGABRT]
POLITE = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return training_process.whole_run(tmp_path_factory)


class Run:
    """A run of train.py that is interrupted and resumed until it is finished."""

    def __init__(self, folder):
        self.folder, self.log = folder, folder.with_suffix(".log")

    def start(self, **settings):
        with self.log.open("w") as log:
            self.process = training_process.start_training(
                self.folder, stderr=log, **WHOLE | settings
            )

    def end(self, number=None):
        """Returns the exit code after a signal, if one is given."""
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

    def moment(self):
        """Returns what the process was doing when it died, judged by what it left."""
        for name in ("saving", "validating", "training"):
            if getattr(self, f"is_{name}")():
                return name
        return "starting"


def stop_in_a_save(run, after):
    """Stops the process while it saves a step after a given one."""
    while True:
        assert run.wait_until(lambda: newest_step(run.folder) >= after and run.is_saving())
        run.process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        if run.is_saving():
            return
        run.process.send_signal(signal.SIGCONT)


def flip_a_bit(step):
    path = max((path for path in step.rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.ci
def test_one_fault_after_the_other_changes_nothing(tmp_path, whole):
    run, copy = Run(tmp_path / "run"), tmp_path / "copy"
    mirror = {"training.mirror": copy}
    run.start()
    stop_in_a_save(run, after=8)
    assert run.end(signal.SIGKILL) == -signal.SIGKILL
    assert run.is_saving()
    saved = newest_step(run.folder)
    flip_a_bit(run.folder / "checkpoints" / str(saved))
    run.start()
    assert run.wait_until(run.is_validating), run.said()
    assert run.end(signal.SIGTERM) == RESUMABLE, run.said()
    assert f"going back to step {saved - 4}" in run.said()
    stopped = newest_step(run.folder)
    assert f"SIGTERM: step {stopped} is saved" in run.said()
    run.start(**mirror)
    assert run.wait_until(lambda: newest_step(copy) > stopped and not run.is_saving()), run.said()
    assert run.end(signal.SIGKILL) == -signal.SIGKILL  # in a step
    assert f"resumed from step {stopped}" in run.said()
    shutil.rmtree(run.folder)  # as with its machine
    run.start(**mirror)
    assert run.end() == 0, run.said()
    assert "brought back the checkpoints of steps " in run.said()
    for folder in (run.folder, copy):
        assert_same_result(result(folder), result(whole))


def interrupt(run, chance, settings):
    """Kills or stops the process at a random moment; returns how and when, or None if it ended."""
    run.start(**settings)
    when = chance.choice(["starting", "training", "training", "saving", "validating"])
    if when != "starting" and not run.wait_until(run.is_training):
        return None
    if when in ("saving", "validating"):
        if not run.wait_until(getattr(run, f"is_{when}")):
            return None
        time.sleep(chance.uniform(0, 0.03))
    else:
        time.sleep(chance.uniform(0, 3.0))
    if chance.random() < 0.1:
        run.process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        run.process.send_signal(signal.SIGCONT)
    number = chance.choice(DEADLY if chance.random() < 0.75 or not run.is_training() else POLITE)
    code = run.end(number)
    # A signal that comes while Python exits ends the process in its own way.
    if code == 0 or (number in POLITE and "step 48/48  validation" in run.said()):
        return None
    expected = {-number} if number in DEADLY else {RESUMABLE}
    if number == signal.SIGABRT:
        # Python prints the stacks of threads that still run, and may crash over a changing one.
        expected.add(-signal.SIGSEGV)
    assert code in expected, run.said()
    return f"{number.name} {run.moment()}"


@pytest.mark.nightly
def test_many_interruptions_change_nothing(tmp_path, whole):
    kills, chance = int(os.environ.get("JAXFORMER_KILLS", "50")), random.Random(1)
    seen, number, expected = collections.Counter(), 0, result(whole)
    assert len(expected[1]) == 7 + 6, expected[1]
    while seen.total() < kills:
        number += 1
        run, copy = Run(tmp_path / str(number)), tmp_path / f"copy {number}"
        mirror = {"training.mirror": copy} if number % 2 else {}
        while seen.total() < kills and (how := interrupt(run, chance, mirror)) is not None:
            seen[how] += 1
            print(seen.total(), f"run {number}", how, flush=True)
            if newest_step(copy) > 0 and chance.random() < 0.5:
                shutil.rmtree(run.folder)
        if run.process.returncode != 0:
            run.start(**mirror)
            assert run.end() == 0, run.said()
        for folder in (run.folder, copy) if mirror else (run.folder,):
            assert_same_result(result(folder), expected)
    for moment in ("starting", "training", "saving", "validating"):
        assert any(moment in how for how in seen), seen


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
NOT_SAVED = r"step 44 could not be saved; the steps \[.*40\] are intact. Free or repair the"
# The fault, its repair, and the error.
BROKEN_DISKS = [
    (  # leaves room for less than one checkpoint
        'head -c $(($(df --output=avail -k "$0" | tail -n 1) - 300))k /dev/zero > "$0/filler"',
        'rm "$0/filler"',
        f"{NOT_SAVED}.*No space left on device",
    ),
    (
        'mount -o remount,ro "$0"',
        'mount -o remount,rw "$0"',
        "/disk/run/.*Read-only file system|Read-only file system.*/disk/run/",
    ),
    # As with a quota, some files can be written, and large ones cannot.
    ("ulimit -S -f 30", "ulimit -S -f unlimited", f"{NOT_SAVED}.*File too large"),
]


@pytest.mark.ci
def test_training_on_a_broken_disk_ends_and_resumes(tmp_path, whole):
    """The errors come from a real file system, in a user namespace."""
    if subprocess.run(["unshare", "-Urm", "true"], check=False).returncode:
        pytest.skip("this system does not let users mount file systems of their own")
    disks, disk = by_profile(BROKEN_DISKS[:2], nightly=BROKEN_DISKS), tmp_path / "disk"
    training_process.cut_back(whole, tmp_path / "disk.before", 40)
    disk.mkdir()
    faults = "".join(BROKEN.format(fault, repair) for fault, repair, _ in disks)
    script = ON_A_BROKEN_DISK.format(faults=faults)
    found = subprocess.run(
        [
            "unshare",
            "-Urm",
            "sh",
            "-c",
            script,
            disk,
            *training_process.command(disk / "run", **WHOLE),
        ],
        cwd=training_process.PROJECT,
        env=training_process.environment(),
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stdout) == (0, "exit code 1\n" * len(disks)), found.stderr
    errors = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
    for error, (_, _, expected) in zip(errors, disks, strict=True):
        assert re.search(expected, error), error
    assert_same_result(result(tmp_path / "disk.after"), result(whole))
