"""Freed memory is reused: the system counts the pages that a process touches for the first time."""

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys
from jaxformer.runs.allocator import keep_freed_memory

print(keep_freed_memory(training=sys.argv[1] == "training"))
import numpy as np

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

np.ones(2**23)
before = faults()
for _ in range(10):
    np.ones(2**23)  # 64 MiB
print((faults() - before) * resource.getpagesize() // 2**20)
"""


def run(work="training", **environment):
    """Returns whether memory is kept, and the MiB mapped by ten arrays of 64 MiB."""
    chosen = ("MALLOC", "GLIBC", "JAX_PLA")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(chosen)}

    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, work],
        env=kept | environment,
        check=True,
        capture_output=True,
    )
    answer, mebibytes = done.stdout.decode().split()
    return answer == "True", int(mebibytes)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
@pytest.mark.parametrize("work", ["training", "decoding"])
def test_arrays_are_mapped_once(work):
    kept, mebibytes = run(work, JAX_PLATFORMS="cpu")
    assert kept
    assert mebibytes < 64


@pytest.mark.parametrize("environment", [{"MALLOC_ARENA_MAX": "2"}, {"JAX_PLATFORMS": "cuda"}])
def test_settings_of_users_and_accelerators_are_left_alone(environment):
    kept, _ = run(**environment)
    assert kept is False
