"""Optax transformations: N devices equal one."""

import functools
import math

import jax
import numpy as np
import optax
import pytest

from jaxformer import Config, MeshConfig, ModelConfig, make_mesh, muon, per_layer
from jaxformer.data.batch import make_batch
from jaxformer.kinds import describe_model, make_init
from jaxformer.tasks.translation import TranslationLoss
from jaxformer.training.mesh import batch_sharding
from jaxformer.training.state import init_state
from jaxformer.training.step import make_train_step

from ..profiles import by_profile

CONFIG = Config(
    model=ModelConfig(
        vocab_size=40, d_model=16, d_ff=24, num_heads=8, num_layers=1, dropout_rate=0.3
    )
)
INIT, LOSS = make_init(CONFIG.model), TranslationLoss.of(CONFIG)
INFO = describe_model(CONFIG.model)
OPTIMIZERS = {
    # Factors parameters with two axes of at least 8, which this small model has.
    "adafactor": optax.adafactor(0.01, min_dim_size_to_factor=8, momentum=0.9),
    "muon": muon(0.02, INFO, adam_learning_rate=0.01, weight_decay=0.01),
    "lamb": per_layer(optax.lamb(0.01)),
    "ema": optax.chain(optax.scale_by_lion(), optax.ema(0.9), optax.scale(-1e-3)),
}
NAMES = by_profile(["muon"], nightly=list(OPTIMIZERS))
# The first one splits everything that the others split.
MESHES = [(2, 2, 2), (8, 1, 1), (1, 8, 1), (1, 1, 8)]


def mesh_of(data, fsdp, tensor):
    devices = jax.devices()[: data * fsdp * tensor]
    return make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor), devices)


def batch_of(seed):
    """Returns eight rows of uneven length, one of them empty."""
    rng = np.random.default_rng(seed)
    rows = [
        [(rng.integers(3, 40, rng.integers(1, 6)), rng.integers(3, 40, rng.integers(1, 6)))]
        for _ in range(7)
    ]
    return make_batch(rows, (8, 6, 6))


@functools.cache
def train(name, sizes=(1, 1, 1), seeds=tuple(range(10))):
    """Returns the parameters before, the state after steps on these batches, and the losses."""
    mesh = mesh_of(*sizes)
    state, losses = init_state(INIT, OPTIMIZERS[name], mesh), []
    start = jax.device_get(state.params)
    step = make_train_step(LOSS, OPTIMIZERS[name], mesh)
    for seed in seeds:
        state, sums = step(state, jax.device_put(batch_of(seed), batch_sharding(mesh)))
        losses.append(float(sums["loss"]) / float(sums["count"]))
    assert int(state.skipped) == 0
    return start, state, losses


def norm(tree):
    return math.sqrt(sum((a**2).sum() for a in jax.tree.leaves(tree)))


@pytest.mark.ci
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", by_profile(MESHES[:1], nightly=MESHES), ids=str)
def test_the_mesh_does_not_change_results(name, sizes):
    (start, expected, losses), (_, actual, found) = train(name), train(name, sizes)
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    actual, expected = jax.device_get((actual.params, expected.params))
    error, moved = (jax.tree.map(np.subtract, expected, other) for other in (actual, start))
    assert norm(error) < 2e-3 * norm(moved)
