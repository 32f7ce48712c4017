"""XLA's memory estimate for a step against measured memory, and a closed formula."""

import dataclasses
import os
import subprocess
import sys

import jax
import pytest

from jaxformer.analysis.memory import savings, step_memory, with_settings
from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig

CONFIG = Config(
    model=ModelConfig(vocab_size=100, d_model=16, d_ff=32, num_heads=2, num_layers=1),
    data=DataConfig(tokens_per_batch=100, max_length=30),
)


@pytest.mark.ci
def test_state_is_parameters_two_moments_and_the_batch():
    d, f, v = 16, 32, 100
    attention, norm, feed_forward = 4 * d * d, 2 * d, 2 * d * f + f + d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    parameters = v * d + encoder + decoder
    counters, row = 6, 7 * 30
    memory = step_memory(CONFIG, jax.devices()[:1])
    assert memory.state == 4 * (3 * parameters + counters + 3 * row)
    assert memory.total == memory.state + memory.work
    # The work includes at least the gradients.
    assert memory.work > 4 * parameters
    # 3 rows of 30 tokens become 4: 2 devices x 2 accumulated batches x 1 row.
    two = with_settings(CONFIG, {"training.gradient_accumulation": 2})
    assert step_memory(two, jax.devices()[:2]).state == memory.state + 4 * (2 - 3) * row


def test_savings_start_unchanged_and_change_results_last():
    one = list(savings(CONFIG, devices=1))
    assert one[0] == {}
    assert [s.get("training.gradient_accumulation") for s in one[1:4]] == [2, 4, 8]
    assert [s.get("training.remat") for s in one[4:6]] == ["dots", "layer"]
    assert ["training.adam_dtype" in s for s in one] == [False] * 6 + [True]
    eight = list(savings(CONFIG, devices=8))
    assert eight[1] == {"mesh.data": -1, "mesh.fsdp": 8}
    assert list(savings(with_settings(CONFIG, {"mesh.tensor": 2}), 8))[1]["mesh.fsdp"] == 4
    taken = with_settings(CONFIG, {"mesh.data": 1, "mesh.tensor": -1})
    assert not any("mesh.fsdp" in settings for settings in savings(taken, 8))
    muon = with_settings(CONFIG, {"training.optimizer": "muon"})
    assert not any("training.adam_dtype" in settings for settings in savings(muon, devices=1))
    training = TrainingConfig(gradient_accumulation=4, remat="layer", adam_dtype="bfloat16")
    saving = dataclasses.replace(CONFIG, training=training)
    assert list(savings(saving, devices=1)) == [
        {},
        {"training.gradient_accumulation": 8},
        {"training.gradient_accumulation": 16},
        {"training.gradient_accumulation": 32},
    ]


PROGRAM = """
import re

import jax
import numpy as np

from jaxformer.config import Config, DataConfig, ModelConfig
from jaxformer.data.batch import Batch
from jaxformer.analysis.memory import step_memory
from jaxformer.tasks.translation import make_init, make_loss
from jaxformer.training.mesh import make_mesh, to_devices
from jaxformer.experiment import make_optimizer
from jaxformer.training.step import init_state, make_train_step

config = Config(
    model=ModelConfig(vocab_size=100, d_model=64, d_ff=128, num_heads=4, num_layers=2),
    data=DataConfig(tokens_per_batch=32 * 256),
)
predicted = step_memory(config).work
mesh, optimizer = make_mesh(), make_optimizer(config)
state = init_state(make_init(config.model), optimizer, mesh, seed=0)
ids, places = np.full((32, 256), 7, np.int32), np.tile(np.arange(256, dtype=np.int32), (32, 1))
batch = Batch(ids, ids, places, ids, ids, ids, places)
step = make_train_step(make_loss(config), optimizer, mesh).compile(state, batch)


def kilobytes(name):
    # The peak of getrusage starts at the parent process's, so it cannot be used.
    return int(re.search(rf"{name}:\\s*(\\d+) kB", open("/proc/self/status").read())[1])


resident = kilobytes("VmRSS")
jax.block_until_ready(step(state, to_devices(mesh, batch)))
print(predicted, 1024 * (kilobytes("VmHWM") - resident))
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_measured_memory_matches_the_estimate():
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"},
    ).stdout
    predicted, taken = map(int, output.split())
    assert predicted > 2e8
    assert taken == pytest.approx(predicted, rel=0.15)
