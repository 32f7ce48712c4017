"""Files of others: every workdir ends in the right parameters or in one error of one line.

The processes here run without the type checks of the tests, as users' processes do.
"""

import collections
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer.errors import UserError
from jaxformer.inference.weights import load_model
from jaxformer.interop.marian import import_marian

SECONDS, BYTES = 2.0, 1 << 30

HERE = pathlib.Path(__file__).parent


def run(program, *arguments, folder):
    """Runs a program of this folder in a process of its own; returns the objects it prints."""
    environment = os.environ | {
        "JAXFORMER_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
        "XLA_FLAGS": "",
    }
    (folder / "cache").mkdir()
    command = [sys.executable, str(HERE / program), str(folder), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(0, 12, id="12"),
        pytest.param(12, 88, id="88", marks=pytest.mark.ci),
        pytest.param(100, 400, id="400", marks=pytest.mark.nightly),
    ],
)
def test_hostile_workdirs(first, count, tmp_path):
    results = run("hostile_workdirs.py", first, count, folder=tmp_path)
    assert [result["seed"] for result in results] == list(range(first, first + count))
    kinds = collections.Counter()
    for result in results:
        kind, _, message = result["outcome"].partition(": ")
        allowed = {"good", "refused", *(["other parameters"] if result["may_differ"] else [])}
        assert kind in allowed, result
        assert len(message) < 1500, result
        assert message.isprintable(), result
        assert not result["seen"], result
        # The machine may be busy: processor time, and a bound on what a FIFO would take.
        assert result["seconds"] <= SECONDS, result
        assert result["waited"] <= 30, result
        assert result["bytes"] <= BYTES, result
        kinds[kind] += 1
    assert kinds["refused"] > count / 2, kinds
    assert kinds["good"], kinds


@pytest.mark.ci
def test_hostile_models(tmp_path, monkeypatch):
    """Each of 200 mutated Marian models is imported or refused, with a bounded amount of work."""
    monkeypatch.syspath_prepend(HERE)
    from hostile_workdirs import mutate_model

    kinds = collections.Counter()
    for seed in range(200):
        folder, output = tmp_path / str(seed) / "model", tmp_path / str(seed) / "run"
        shutil.copytree(HERE.parent / "fixtures" / "marian" / "swish_tied", folder)
        what, began = mutate_model(folder, seed), time.process_time()
        with contextlib.suppress(UserError):
            import_marian(folder, output)
        kinds["imported" if (output / "config.json").exists() else "refused"] += 1
        assert time.process_time() - began < SECONDS, what
    assert kinds["refused"] > 80, kinds


def test_weights_of_torch_are_imported(tmp_path, monkeypatch):
    """pytorch_model.bin, here built by hand, gives the parameters that model.safetensors gives."""
    monkeypatch.syspath_prepend(HERE)
    from hostile_pickles import archive, state, tensor

    folder = tmp_path / "model"
    shutil.copytree(HERE.parent / "fixtures" / "marian" / "swish_tied", folder)
    import_marian(folder, tmp_path / "expected")
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    tensors = {
        name: tensor(
            str(key), array.size, shape=array.shape, stride=[n // 4 for n in array.strides]
        )
        for key, (name, array) in enumerate(arrays.items())
    }
    storages = {f"data/{key}": array.tobytes() for key, array in enumerate(arrays.values())}
    (folder / "pytorch_model.bin").write_bytes(archive(state(tensors), storages))
    import_marian(folder, tmp_path / "found")
    found, expected = (load_model(tmp_path / name)[1] for name in ("found", "expected"))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_hostile_pickles(tmp_path):
    """Files like pytorch_model.bin are refused; none of what they hold runs."""
    results = run("hostile_pickles.py", folder=tmp_path)
    assert len(results) > 40
    for result in results:
        kind, _, message = result["outcome"].partition(": ")
        assert kind == "refused", result
        assert message.isprintable(), result
        assert not result["seen"], result
        assert not result["ran"], result
        assert result["seconds"] <= SECONDS, result
        assert result["bytes"] <= 256 << 20, result
    # Python's unpickler does run the first ones.
    assert [result["would"] for result in results] == [True] * 8 + [False] * (len(results) - 8)


@pytest.mark.ci
def test_use_of_data_runs_nothing(tmp_path):
    """Loading and using a workdir, importing a model, reading corpora and configs."""
    [seen] = run("audited_use.py", folder=tmp_path)
    assert seen == {use: [] for use in seen}
    assert len(seen) == 4
    assert not list(tmp_path.rglob("betrayed"))


def test_audit_hook_notices(tmp_path):
    (tmp_path / "inside").mkdir()
    program = (
        "import os, pickle, socket, subprocess, sys\n"
        "from hostile_workdirs import Watch\n"
        "watch = Watch([sys.argv[1] + '/inside'])\n"
        "watch.on = True\n"
        "os.chdir(sys.argv[1] + '/inside')\n"
        "open('good', 'w').close()\n"
        "for bad in (\n"
        "    lambda: open('../outside', 'w').close(),\n"
        "    lambda: os.listdir('..'),\n"
        "    lambda: eval('1'),\n"
        "    lambda: pickle.loads(b'cos\\ngetcwd\\n.'),\n"
        "    lambda: os.system('true'),\n"
        "    lambda: subprocess.Popen('nothing'),\n"
        "    lambda: socket.socket(socket.AF_UNIX).connect('nothing'),\n"
        "):\n"
        "    try:\n"
        "        bad()\n"
        "    except OSError:\n"
        "        pass\n"
        "watch.on = False\n"
        "print(*[text.split()[0] for text in watch.seen])\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert [event for event in found if event != "exec"] == [
        *("open", "os.listdir", "compile", "pickle.find_class", "os.system"),
        *("subprocess.Popen", "socket.connect"),
    ]
    assert "exec" in found
