"""Two processes train the same model as one. If one is lost, the others end, and it resumes."""

import math
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

from jaxformer.errors import RESUMABLE

from ..profiles import NIGHTLY, by_profile
from ..runs import reports
from . import training_process
from .training_process import finish, free_address, newest_step, result, wait_until

STALL = by_profile(12, nightly=20)  # a loaded machine takes seconds for a step
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
LOST = "another process is lost"
STUCK = f"no progress for {STALL} s (stall_timeout) after step"


class Outcome(NamedTuple):
    """The ends of processes after a fault of one of them."""

    limit: float  # seconds until the others end: twice what is promised, for a busy machine
    cause: str  # what the others say
    own_code: int
    own_cause: str  # what the process itself says


OUTCOMES = {
    "kill": Outcome(30, LOST, -signal.SIGKILL, ""),
    "raise": Outcome(40, LOST, 1, "RuntimeError: injected"),
    "hang": Outcome(2 * STALL + 10, STUCK, RESUMABLE, STUCK),
    "hold": Outcome(2 * STALL + 10, STUCK, 1, f"Timeout (0:00:{STALL + 5}"),
    "stop": Outcome(30, LOST, -signal.SIGKILL, ""),
}


def start_all(
    folder,
    count=2,
    victim=None,
    fault="none 0",
    devices=1,
    others=(),
    **settings,
):
    """Starts processes of faulty_training.py; ``others`` are flags of all but the first."""
    address = free_address()

    def start(process):
        flags = [
            f"--coordinator={address}",
            f"--num_processes={count}",
            f"--process_id={process}",
        ]
        if process > 0:
            flags.extend(others)
        own_fault = fault if process == victim else "none 0"
        return training_process.start_training(
            folder,
            *flags,
            devices=devices,
            script="tests/integration/faulty_training.py",
            variables={"FAULT": own_fault},
            **training_process.WHOLE | settings,
        )

    return [start(process) for process in range(count)]


def inject(folder, count, victim, fault, step):
    """Trains until the fault, and checks how all processes end."""
    marker = pathlib.Path(f"{folder}-{fault}-{step}")
    stall = {"training.stall_timeout": STALL}
    running = start_all(folder, count, victim=victim, fault=f"{fault} {step}", **stall)
    others = [process for number, process in enumerate(running) if number != victim]
    try:
        if fault in SIGNALS:
            assert wait_until(lambda: newest_step(folder) >= step, *running)
            began = time.time()
            running[victim].send_signal(SIGNALS[fault])
        else:
            assert wait_until(marker.exists, *running)
            began = marker.stat().st_mtime

        codes, said = finish(*others)
        seconds = time.time() - began
        print(f"{fault} of {victim} in {count}: others ended after {seconds:.1f} s")
        check_others(fault, codes, said, seconds)

        if fault == "stop":
            running[victim].kill()
        (code,), (errors,) = finish(running[victim])
        check_victim(fault, code, errors)
    finally:
        for process in running:
            process.kill()
            process.wait()
            process.stderr.close()


def check_others(fault, codes, said, seconds):
    assert codes == [RESUMABLE] * len(codes), said
    assert seconds < OUTCOMES[fault].limit
    for errors in said:
        assert_cause(fault, OUTCOMES[fault].cause, errors)
        # The stack of the main thread, in a step or, if that or a checkpoint failed, in a wait
        # for the cause or for the end of JAX.
        waits = r'watchdog.py", line \d+ in watch\n|_run_and_abort_on_failure'
        assert re.search(rf'fitting.py", line|{waits}', errors), errors


def check_victim(fault, code, errors):
    expected = OUTCOMES[fault]
    assert code == expected.own_code, errors
    assert_cause(fault, expected.own_cause, errors)
    if expected.own_cause:
        assert "in fault" in errors


def assert_cause(fault, cause, errors):
    # Both hang at the same moment: whichever ends first is lost to the other one.
    causes = (cause, LOST) if fault == "hang" else (cause,)
    assert any(cause in errors for cause in causes), errors


def complete(folder, count, **options):
    codes, said = finish(*start_all(folder, count, **options))
    assert codes == [0] * count, said
    assert "stall_timeout" not in "".join(said)
    assert "step 48/48" not in "".join(said[1:])  # only process 0 reports
    return result(folder)


CASES = [
    (2, [("kill", 0), ("hang", 1)]),
    (2, [("raise", 0), ("hang", 0), ("stop", 0), ("hold", 0)]),
    (3, [("kill", 2), ("raise", 1), ("stop", 1)]),
]


@pytest.mark.ci
@pytest.mark.parametrize(("count", "faults"), by_profile(CASES[:1], nightly=CASES))
def test_the_others_end_and_the_run_resumes(tmp_path, tmp_path_factory, count, faults):
    run = tmp_path / "run"
    copy = tmp_path / "copy"
    for number, (fault, victim) in enumerate(faults):
        inject(run, count, victim=victim, fault=fault, step=12 * number + 8)

    found = complete(run, count, **{"training.mirror": copy})

    whole = result(training_process.whole_run(tmp_path_factory))
    training_process.assert_close_result(found, whole)
    training_process.assert_same_result(result(copy), found)
    if NIGHTLY:
        training_process.assert_same_result(complete(tmp_path / "whole", count), found)


@pytest.mark.nightly
def test_two_processes_with_four_devices_each_equal_one(tmp_path, tmp_path_factory):
    found = complete(tmp_path / "two", 2, devices=4, **{"mesh.fsdp": 2})
    whole = result(training_process.whole_run(tmp_path_factory))
    training_process.assert_close_result(found, whole)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "settings",
    [{"training.eval_every": 48}, {"training.eval_sentences": 500}],
)
def test_one_process_asked_to_stop_stops_both(tmp_path, settings):
    """After the same step, or in a long validation."""
    folder = tmp_path / "run"
    pair = start_all(folder, **settings)
    assert wait_until(lambda: newest_step(folder) >= 8, *pair)
    pair[1].send_signal(signal.SIGTERM)

    codes, said = finish(*pair)
    assert codes == [RESUMABLE, RESUMABLE], said
    for errors in said:
        assert f"SIGTERM: step {newest_step(folder)} is saved" in errors

    assert "valid" not in {report["kind"] for report in reports(folder)}
    if "training.eval_sentences" in settings:
        assert newest_step(folder) == 8


@pytest.mark.nightly
def test_processes_started_differently_are_refused(tmp_path):
    others = ["--config.training.label_smoothing=0.2"]
    codes, said = finish(*start_all(tmp_path / "run", others=others))

    assert codes == [2, 2], said
    for errors in said:
        assert "process 1 was started with another config than process 0" in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.ci
@pytest.mark.parametrize("number", [0, 1])
def test_a_lone_process_says_that_it_waits_and_can_be_interrupted(number, tmp_path):
    address = free_address()
    flags = [f"--coordinator={address}", "--num_processes=2", f"--process_id={number}"]
    process = training_process.start_training(tmp_path / "run", *flags, **training_process.WHOLE)

    for line in process.stderr:
        if line == f"waiting for 1 of 2 processes at {address}\n":
            process.send_signal(signal.SIGINT)
            break

    codes, (errors,) = finish(process)
    assert codes == [130], errors
    assert "Check failure" not in errors


# As on a pod, devices are not in the order of processes: process 0 has the devices 0 and 3.
PLACE_ROWS = """
import sys
import jax, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxformer.data.batch import Batch
from jaxformer.training.placement import BatchShards, to_devices

jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
order = np.array(jax.devices())[[0, 2, 3, 1]]
mesh = Mesh(order.reshape(2, 2, 1), ("data", "fsdp", "tensor"))
local = BatchShards.of(mesh).local_shards
assert local == [[0, 3], [1, 2]][jax.process_index()]
shards = np.arange(24, dtype=np.int32).reshape(4, 2, 3)
batch = to_devices(mesh, Batch(*[shards[local].reshape(4, 3)] * 7))
for whole in multihost_utils.process_allgather(batch, tiled=True):
    np.testing.assert_array_equal(whole, shards.reshape(8, 3))
"""


@pytest.mark.nightly
def test_rows_reach_the_devices():
    address = free_address()

    def start(process):
        return subprocess.Popen(
            [sys.executable, "-c", PLACE_ROWS, address, str(process)],
            cwd=training_process.PROJECT,
            env=training_process.environment(2),
            stderr=subprocess.PIPE,
            text=True,
        )

    pair = [start(0), start(1)]
    codes, said = finish(*pair)
    assert codes == [0, 0], said


MESHES = [{"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}, {"mesh.fsdp": 4}, {"mesh.tensor": 2}]


@pytest.mark.ci
@pytest.mark.parametrize("mesh", by_profile(MESHES[:1], nightly=MESHES), ids=str)
def test_resumes_on_other_devices_and_meshes(mesh, tmp_path, tmp_path_factory):
    whole = training_process.whole_run(tmp_path_factory)
    folder = tmp_path / "moved"
    training_process.cut_back(whole, folder, 40)

    devices = math.prod(mesh.values())
    settings = training_process.WHOLE | mesh
    process = training_process.start_training(folder, devices=devices, **settings)
    codes, (errors,) = finish(process)

    assert codes == [0], errors
    assert "resumed from step 40" in errors
    assert f"on {devices} cpu devices" in errors
    training_process.assert_close_result(result(folder), result(whole))
