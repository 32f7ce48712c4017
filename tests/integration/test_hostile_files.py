"""Untrusted files: every workdir ends in the right parameters or in one error of one line.

The processes here run without the type checks of the tests, as users' processes do.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from ..profiles import by_profile

SECONDS = 2.0

HERE = pathlib.Path(__file__).parent


def run(program, *arguments, folder):
    """Runs a program of this folder in a process of its own; returns the objects it prints."""
    environment = os.environ | {
        "JAXFORMER_CACHE": str(folder / "cache"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
        "XLA_FLAGS": "",
    }
    (folder / "cache").mkdir()

    command = [sys.executable, str(HERE / program), str(folder), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(result, allowed, most_bytes):
    """Checks kind, message, time and memory of a result."""
    kind, _, message = result["outcome"].partition(": ")
    assert kind in allowed, result
    assert len(message) < 1500, result
    assert message.isprintable(), result
    assert not result["seen"], result
    # Processor time, since the machine may be busy.
    assert result["seconds"] <= SECONDS, result
    assert result["bytes"] <= most_bytes, result


def test_hostile_workdirs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    from hostile_workdirs import HARMLESS, HOSTILE

    count = by_profile(6, nightly=300)
    results = run("hostile_workdirs.py", count, folder=tmp_path)
    named = results[:-count]
    random = results[-count:]

    assert [result["what"] for result in named] == list(HOSTILE)
    for result in named:
        allowed = "good" if result["what"] in HARMLESS else "refused"
        check(result, [allowed], 1 << 30)

    for result in random:
        allowed = ["good", "refused"]
        if result["may_differ"]:
            allowed.append("other parameters")
        check(result, allowed, 1 << 30)

    assert max(result["waited"] for result in results) <= 30  # It would wait for a FIFO.


@pytest.mark.ci
def test_use_of_data_runs_nothing(tmp_path):
    """Loading and using a workdir, importing a model, reading corpora and configs."""
    [seen] = run("audited_use.py", folder=tmp_path)
    assert seen == {use: [] for use in seen}
    assert len(seen) == 4
    assert not list(tmp_path.rglob("betrayed"))


HOOK = """
import os, pickle, sys
from hostile_workdirs import Watch
watch = Watch([sys.argv[1]])
watch.on = True
for bad in (
    lambda: open("../outside"),
    lambda: eval("1"),
    lambda: pickle.loads(b"cos\\ngetcwd\\n."),
    lambda: os.system("true"),
):
    try:
        bad()
    except OSError:
        pass
watch.on = False
print(*{text.split()[0] for text in watch.seen} - {"exec"})
"""


def test_audit_hook_notices(tmp_path):
    command = [sys.executable, "-c", HOOK, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"open", "compile", "pickle.find_class", "os.system"}
