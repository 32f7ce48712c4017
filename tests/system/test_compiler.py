"""Correctness of compiled programs at realistic training shapes.

The CPU fusion of jaxlib 0.10.2 computes some programs incorrectly (jax issues 39103, 40412), but
bfloat16 is fast only with it. The tests compare our programs with and without the fusion. They run
this file as a script, in one process for each:

    python tests/system/test_compiler.py RESULTS.npz CASE ...

A case is a config, ``configs/base.py``, or rows and a dtype, ``33024-float32``.
"""

import dataclasses
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxformer.cli.config_file import load_config
from jaxformer.config import Config, DataConfig, ModelConfig
from jaxformer.data.batch import Batch
from jaxformer.models.transformer import Transformer
from jaxformer.tasks.translation import TranslationLoss
from jaxformer.training.task import Randomness

PROJECT = pathlib.Path(__file__).parents[2]
FLAG = "--xla_cpu_experimental_ynn_fusion_type="
# Loss and gradients in float32 agree to seven digits; bfloat16 rounds inputs and reorders sums.
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.02}

# Issue 39103 affects matrix multiplications with at least this many rows.
AROUND_32768 = [f"{rows}-{dtype}" for rows in (32_640, 33_024) for dtype in TOLERANCE]
SMALL_CONFIGS = ["configs/numerals.py", "configs/multi30k.py", "configs/parsing.py:small"]
LARGE_CONFIGS = [
    "configs/newstest.py",
    "configs/base.py",
    "configs/base_fr.py",
    "configs/parsing.py",
    "configs/big.py",
    "configs/big_fr.py",
    "configs/table3.py:D1",
]


def results(folder, flags, cases):
    """Computes results in a separate process, with all compiler optimizations."""
    output = folder / f"{len(flags)}.npz"
    environment = os.environ | {
        "XLA_FLAGS": flags,
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
        "PYTHONPATH": str(PROJECT),
    }
    command = [sys.executable, __file__, output, *cases]
    subprocess.run(command, check=True, cwd=PROJECT, env=environment)
    return np.load(output)


@pytest.mark.nightly
@pytest.mark.parametrize("cases", [AROUND_32768, SMALL_CONFIGS, *([c] for c in LARGE_CONFIGS)])
def test_configs_compute_the_same_without_the_fusion(tmp_path, cases):
    with_fusion = results(tmp_path, "", cases)
    without = results(tmp_path, FLAG, cases)
    assert set(with_fusion.files) == set(without.files)
    assert any("gradient" in name for name in with_fusion.files)

    for name in with_fusion.files:
        found = with_fusion[name]
        expected = without[name]
        if name.endswith("['cross_attention']['key_bias']"):
            # It adds the same to all scores of a query, so its gradient is 0 but for rounding.
            scale = np.linalg.norm(without[name.replace("key_bias", "key")])
            assert np.linalg.norm(found) < 1e-3 * scale, name
            assert np.linalg.norm(expected) < 1e-3 * scale, name
            continue

        difference = np.linalg.norm(found - expected)
        size = np.linalg.norm(expected) + 1e-9
        error = difference / size
        print(f"relative difference: {error:.1e}, {name}")  # Shown by -rP.
        case = name.split("|")[0]
        assert error < TOLERANCE[dtype_of(case)], name


def dtype_of(case):
    if "." in case:
        return load_config(str(PROJECT / case)).model.compute_dtype
    return case.rpartition("-")[2]


def experiment(case):
    """Returns the config of a case, with one layer, since all layers have the same shapes."""
    if "." in case:
        config = load_config(case)
    else:
        rows, dtype = case.split("-")
        config = Config(
            model=ModelConfig(
                vocab_size=1000,
                d_model=64,
                d_ff=128,
                num_heads=4,
                compute_dtype=dtype,
            ),
            data=DataConfig(tokens_per_batch=int(rows), max_length=64),
        )

    # Rounding differences at the kink of "relu" would be amplified in the gradients.
    model = dataclasses.replace(config.model, num_layers=1, activation="swish")
    return dataclasses.replace(config, model=model)


def results_of(config):
    """Computes loss and gradients of a batch of the config's size without padding."""
    length = config.data.max_length
    rows = config.data.tokens_per_batch // length
    shape = (rows, length)

    random = np.random.default_rng(0)
    src = random.integers(3, config.model.vocab_size, shape, np.int32)
    tgt = random.integers(3, config.model.output_size, shape, np.int32)
    begin = np.full((rows, 1), 2, np.int32)
    tgt_in = np.concatenate([begin, tgt[:, :-1]], axis=1)
    segments = np.ones(shape, np.int32)
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), shape)
    batch = Batch(
        src,
        segments,
        positions,
        tgt_in=tgt_in,
        tgt_out=tgt,
        tgt_segments=segments,
        tgt_positions=positions,
    )

    model = Transformer(config.model)
    key = jax.random.key(0)
    variables = jax.jit(model.init)(key, src[:1], tgt_in[:1])
    params = variables["params"]
    loss_of = TranslationLoss(config.model, 0.1)

    def loss(params):
        sums = loss_of(params, batch, Randomness(key, np.arange(rows)))
        return sums["loss"] / sums["count"]

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    found = {"loss": value}
    for path, gradient in jax.tree.leaves_with_path(gradients):
        found[f"gradient {jax.tree_util.keystr(path)}"] = gradient
    return found


if __name__ == "__main__":
    output, *cases = sys.argv[1:]
    results = {}
    for case in cases:
        for name, value in results_of(experiment(case)).items():
            results[f"{case}|{name}"] = np.asarray(value, np.float32)
    np.savez(output, **results)
