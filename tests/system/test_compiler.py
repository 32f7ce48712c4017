"""Correctness of compiled programs at realistic training shapes.

The CPU fusion of jaxlib 0.10.2 computes some programs incorrectly (jax issues 39103, 40412), but
bfloat16 is fast only with it. The tests compare our programs with and without the fusion.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from jaxformer.cli.config_file import load_config

# ml_collections 1.1 loads config files in a way that Python has deprecated (2026-11).
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

PROJECT = pathlib.Path(__file__).parents[2]
FLAG = "--xla_cpu_experimental_ynn_fusion_type="
# Loss and gradients in float32 agree to seven digits; bfloat16 rounds inputs and reorders sums.
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.02}

# Issue 39103 affects matrix multiplications with at least this many rows.
AROUND_32768 = [f"{rows}-{dtype}" for rows in (32_640, 33_024) for dtype in TOLERANCE]
SMALL_CONFIGS = ["configs/numerals.py", "configs/multi30k.py", "configs/parsing.py:small"]
LARGE_CONFIGS = [
    *("configs/newstest.py", "configs/base.py", "configs/base_fr.py", "configs/parsing.py"),
    *("configs/big.py", "configs/big_fr.py", "configs/table3.py:D1"),
]


def results(folder, flags, cases):
    """Computes results in a separate process, with all compiler optimizations."""
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
    errors = {}
    for name in with_fusion.files:
        found, expected = with_fusion[name], without[name]
        errors[name] = np.linalg.norm(found - expected) / (np.linalg.norm(expected) + 1e-9)
    largest = max(errors, key=lambda name: errors[name])
    print(f"largest relative difference: {errors[largest]:.1e}, {largest}")  # Shown by -rP.
    for name, error in errors.items():
        case = name.split("|")[0]
        dtype = "bfloat16" if case.endswith("-bfloat16") else "float32"
        if case.endswith(".py") or ":" in case:
            dtype = load_config(str(PROJECT / case)).model.compute_dtype
        assert error < TOLERANCE[dtype], name


@pytest.mark.nightly
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(AROUND_32768, id="around 32,768"),
        pytest.param(SMALL_CONFIGS, id="small"),
    ],
)
def test_small_configs_compute_the_same_without_the_fusion(tmp_path, cases):
    agree(tmp_path, cases)


@pytest.mark.nightly
@pytest.mark.parametrize("case", LARGE_CONFIGS)
def test_large_configs_compute_the_same_without_the_fusion(tmp_path, case):
    agree(tmp_path, [case])
