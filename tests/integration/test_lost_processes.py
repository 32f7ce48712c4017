"""One process of a run is killed, raises, hangs or is stopped: the others end, and it resumes."""

import pathlib
import signal
import socket
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

from .test_processes import newest_step, wait_for_step
from .training_process import start_training

STALL = 20  # a loaded machine takes seconds for a step
STEPS = 50
SETTINGS = {
    "training.steps": STEPS,
    "training.eval_every": STEPS,
    "training.eval_sentences": 0,
    "training.keep_checkpoints": 9,
    "training.stall_timeout": STALL,
}
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "segv": signal.SIGSEGV}
# Exit code of the others, seconds until they end (twice what is promised, because the machine may
# be busy), and what they say about the process.
OUTCOMES = {
    "kill": (RESUMABLE, 30, " is gone "),
    "segv": (RESUMABLE, 30, " is gone "),
    "raise": (1, 10, "raised RuntimeError: injected"),
    "hang": (RESUMABLE, 2 * STALL + 10, f"has made no progress for {STALL} s"),
    "hold": (RESUMABLE, 2 * STALL + 10, f"has made no progress for {STALL} s"),
    "stop": (RESUMABLE, 2 * STALL + 10, "it is stopped"),
}

pytestmark = pytest.mark.ci


def start_all(folder, processes, victim=None, fault="none", step=0, slow_copy=0, **settings):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    return [
        start_training(
            folder,
            f"--coordinator={coordinator}",
            f"--processes={processes}",
            f"--process={process}",
            script="tests/integration/faulty_training.py",
            variables={
                "FAULT": f"{fault if victim in (process, 'all') else 'none'} {step}",
                "SLOW_COPY": str(slow_copy),
            },
            **(SETTINGS | settings),
        )
        for process in range(processes)
    ]


def ended_after(began, processes):
    """Returns the time until the last process ended."""
    deadline = time.monotonic() + 120
    while any(process.poll() is None for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return time.time() - began


def end(processes):
    for process in processes:
        process.kill()
        process.wait()
        process.stderr.close()


def inject(folder, processes, victim, fault, step):
    """Trains until the fault, and checks how the other processes end."""
    running = start_all(folder, processes, victim, fault, step)
    others = [process for number, process in enumerate(running) if number != victim]
    try:
        if fault in SIGNALS:
            wait_for_step(folder, step, running)
            began = time.time()
            running[victim].send_signal(SIGNALS[fault])
        else:
            marker = pathlib.Path(f"{folder}-{fault}-{step}")
            deadline = time.monotonic() + 400
            while not marker.exists():
                assert time.monotonic() < deadline
                assert all(process.poll() is None for process in running)
                time.sleep(0.05)
            began = marker.stat().st_mtime
        code, limit, cause = OUTCOMES[fault]
        seconds = ended_after(began, others)
        print(f"{fault} of {victim} in {processes}: others ended after {seconds:.1f} s")
        said = [process.communicate()[1] for process in others]
        assert [process.returncode for process in others] == [code] * len(others), said
        assert seconds < limit
        for errors in said:
            # JAX may log errors of its own after our message, on one line or several.
            *_, last = (line for line in errors.splitlines() if line.startswith("process "))
            assert last.startswith(f"process {victim} ")
            assert cause in last
            assert "after step" in last
            assert 'fitting.py", line' in errors  # the stack of the main thread
        if fault == "raise":
            running[victim].wait(timeout=30)
    finally:
        end(running)


def final_params(folder):
    config = config_lib.load(folder / "config.json")
    mesh = make_mesh(devices=jax.devices()[:1])
    template = abstract_state(make_init(config.model), make_optimizer(config), mesh)
    with Checkpoints(folder / "checkpoints") as checkpoints:
        return jax.device_get(checkpoints.restore(template, step=STEPS).state)


def complete(folder, processes):
    running = start_all(folder, processes, **{"training.stall_timeout": 600})
    said = [process.communicate(timeout=600)[1] for process in running]
    assert [process.returncode for process in running] == [0] * processes, said
    return final_params(folder)


CASES = [
    pytest.param(2, [("kill", 0), ("hang", 1)], id="2"),
    pytest.param(3, [("stop", 0), ("raise", 2)], id="3", marks=pytest.mark.nightly),
    *(
        pytest.param(n, faults, id=f"{n} {names}", marks=pytest.mark.nightly)
        for n, names, faults in [
            (2, "first", [(fault, 0) for fault in ("raise", "hang", "stop", "hold")]),
            (2, "last", [(fault, 1) for fault in ("kill", "raise", "stop", "segv")]),
            (3, "first", [(fault, 0) for fault in ("kill", "raise", "hang", "segv")]),
            (3, "last", [(fault, 2) for fault in ("kill", "hang", "stop", "hold")]),
        ]
    ),
]


@pytest.mark.parametrize(("processes", "faults"), CASES)
def test_the_others_end_and_the_run_resumes_exactly(tmp_path, processes, faults):
    for number, (fault, victim) in enumerate(faults):
        inject(tmp_path / "run", processes, victim, fault, step=10 * number + 10)
    assert 0 < newest_step(tmp_path / "run") < STEPS
    resumed, expected = (
        complete(tmp_path / "run", processes),
        complete(tmp_path / "whole", processes),
    )
    jax.tree.map(np.testing.assert_array_equal, resumed, expected)


@pytest.mark.parametrize(
    ("fault", "code", "steps"),
    [
        ("none", 0, 20),
        pytest.param("terminate", RESUMABLE, 5000, marks=pytest.mark.nightly),
        pytest.param("raise", 1, 20, marks=pytest.mark.nightly),
    ],
)
def test_all_processes_wait_for_a_slow_last_copy(tmp_path, fault, code, steps):
    """It may take longer than steps, and longer than an exception has to end its process."""
    settings = {
        "training.steps": steps,
        "training.eval_every": steps,
        "training.mirror": tmp_path / "copy",
    }
    run = tmp_path / "run"
    pair = start_all(run, 2, "all", fault, 15, slow_copy=1.5 * STALL, **settings)
    try:
        said = [process.communicate(timeout=300)[1] for process in pair]
    finally:
        end(pair)
    assert [process.returncode for process in pair] == [code] * 2, said
    newest = newest_step(run)
    assert newest >= 10
    assert (tmp_path / "copy" / "checkpoints" / str(newest) / "manifest.json").exists()
    assert "stall_timeout" not in "".join(said)


def test_a_stop_ends_a_validation_on_all_processes(tmp_path):
    folder = tmp_path / "run"
    settings = {
        "training.steps": 5000,
        "training.eval_every": 10,
        "training.eval_sentences": 500,
        "training.stall_timeout": 600,
    }
    pair = start_all(folder, 2, **settings)
    wait_for_step(folder, 10, pair)
    pair[1].send_signal(signal.SIGTERM)
    said = [process.communicate(timeout=600)[1] for process in pair]
    assert [process.returncode for process in pair] == [75, 75], said
    for errors in said:
        assert "SIGTERM: step 10 is saved" in errors
    assert "valid" not in (folder / "metrics.jsonl").read_text()
