"""Numbers that the compiler gets right, at the shapes that people train with.

The fusion that jaxlib 0.10.2 and 0.11 have on CPUs computes some programs wrongly (jax issues
39103, 40412), and is where bfloat16's speed comes from. Ours are run with it and without it.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

PROJECT = pathlib.Path(__file__).parents[2]
FLAG = "--xla_cpu_experimental_ynn_fusion_type="
# Loss and gradients in float32 agree to seven digits; bfloat16 rounds inputs, sums in other orders.
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.02}

# A product of so many rows is where issue 39103 begins.
AROUND_32768 = [f"{rows}-{dtype}" for rows in (32_640, 33_024) for dtype in TOLERANCE]
SMALL_CONFIGS = ["configs/numerals.py", "configs/multi30k.py", "configs/parsing.py:small"]
LARGE_CONFIGS = [
    *("configs/newstest.py", "configs/base.py", "configs/base_fr.py", "configs/parsing.py"),
    *("configs/big.py", "configs/big_fr.py", "configs/table3.py:D1"),
]


def results(folder, flags, cases):
    """What a process of its own computes, compiled as for a user: with all optimizations."""
    output = folder / f"{len(flags)}.npz"
    settings = {"XLA_FLAGS": flags, "JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "PYTHONPATH": PROJECT}
    subprocess.run(
        [sys.executable, "tests/system/compiler_results.py", output, *cases],
        check=True,
        cwd=PROJECT,
        env=os.environ | {name: str(value) for name, value in settings.items()},
    )
    return np.load(output)


def agree(folder, cases):
    with_fusion, without = results(folder, "", cases), results(folder, FLAG, cases)
    assert set(with_fusion.files) == set(without.files)
    assert any("gradient" in name for name in with_fusion.files)
    for name in with_fusion.files:
        found, expected = with_fusion[name], without[name]
        error = np.linalg.norm(found - expected) / (np.linalg.norm(expected) + 1e-9)
        dtype = "bfloat16" if "bfloat16" in name or ".py" in name else "float32"
        assert error < TOLERANCE[dtype], name


@pytest.mark.slow
@pytest.mark.parametrize("cases", [AROUND_32768, SMALL_CONFIGS], ids=["around 32,768", "small"])
def test_loss_gradients_and_translations_are_those_without_the_fusion(tmp_path, cases):
    agree(tmp_path, cases)


@pytest.mark.nightly
@pytest.mark.parametrize("case", LARGE_CONFIGS)
def test_large_configs_compute_what_they_compute_without_the_fusion(tmp_path, case):
    agree(tmp_path, [case])
