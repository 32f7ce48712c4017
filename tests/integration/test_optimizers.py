"""Any optax transformation: N devices equal one, the loss falls, and Muon updates only matrices."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import Config, MeshConfig, ModelConfig, make_mesh, muon
from jaxformer.checkpoint import Checkpoints
from jaxformer.data.batch import make_batch
from jaxformer.models.selection import describe_model
from jaxformer.nn import ParameterInfo
from jaxformer.tasks.translation import make_init, make_loss
from jaxformer.training.mesh import batch_sharding
from jaxformer.training.optimizer import matrix_dimensions
from jaxformer.training.step import abstract_state, init_state, make_train_step

CONFIG = Config(
    model=ModelConfig(
        vocab_size=40, d_model=16, d_ff=24, num_heads=8, num_layers=2, dropout_rate=0.3
    )
)
INFO = describe_model(CONFIG.model)
INIT, LOSS = make_init(CONFIG.model), make_loss(CONFIG)
OPTIMIZERS = {
    # Factors parameters with two axes of at least 8, which this small model has.
    "adafactor": optax.adafactor(0.01, min_dim_size_to_factor=8, momentum=0.9),
    "muon": muon(0.02, INFO, adam_learning_rate=0.01, weight_decay=0.01),
    "ema": optax.chain(optax.scale_by_lion(), optax.ema(0.9), optax.scale(-1e-3)),
}
# The last one splits everything that the others split.
MESHES = [
    *(
        pytest.param(sizes, marks=pytest.mark.nightly)
        for sizes in [(8, 1, 1), (1, 8, 1), (1, 1, 8)]
    ),
    (2, 2, 2),
]


def batch_of(seed):
    """Returns eight rows of uneven length, one of them empty."""
    rng = np.random.default_rng(seed)
    rows = [
        [(rng.integers(3, 40, rng.integers(1, 6)), rng.integers(3, 40, rng.integers(1, 6)))]
        for _ in range(7)
    ]
    return make_batch(rows, (8, 6, 6))


@functools.cache
def ten_steps(name, sizes, seeds=tuple(range(10))):
    """Returns the state after ten steps, and the losses."""
    mesh = make_mesh(MeshConfig(**sizes_of(sizes)), jax.devices()[: math.prod(sizes)])
    state = init_state(INIT, OPTIMIZERS[name], mesh)
    step, losses = make_train_step(LOSS, OPTIMIZERS[name], mesh), []
    for seed in seeds:
        state, sums = step(state, jax.device_put(batch_of(seed), batch_sharding(mesh)))
        losses.append(float(sums["loss"] / sums["count"]))
    assert int(state.skipped) == 0
    return state, losses


def sizes_of(sizes):
    return dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))


def distance(actual, expected):
    """Returns the norm of the difference of two trees relative to the norm of the expected one."""
    difference = optax.tree.norm(jax.tree.map(np.subtract, actual, expected))
    return float(difference / optax.tree.norm(expected))


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name != "muon")) for name in OPTIMIZERS],
)
@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_the_mesh_does_not_change_results(name, sizes):
    (expected, losses), (actual, found) = ten_steps(name, (1, 1, 1)), ten_steps(name, sizes)
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    start = jax.device_get(init_state(INIT, OPTIMIZERS[name], make_mesh(devices=jax.devices()[:1])))
    moved = jax.tree.map(np.subtract, jax.device_get(expected.params), start.params)
    also = jax.tree.map(np.subtract, jax.device_get(actual.params), start.params)
    assert distance(also, moved) < 2e-3


@pytest.mark.ci
@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_the_loss_falls(name):
    losses = ten_steps(name, (1, 1, 1), seeds=(0,) * 30)[1]
    assert np.mean(losses[-5:]) < losses[0] - 0.5


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_are_sharded_like_their_parameters(name):
    """An array with a parameter's path and shape is sharded like it; all others are replicated."""
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    state = abstract_state(INIT, OPTIMIZERS[name], mesh)
    inner = state.params["encoder"]["layers"]["feed_forward"]["inner"]
    assert tuple(inner.sharding.spec) == (None, "fsdp", "tensor")
    layouts = {
        (leaf.shape, tuple(leaf.sharding.spec))
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state)
        if "['feed_forward']['inner']" in jax.tree_util.keystr(path)
    }
    moments = {(inner.shape, (None, "fsdp", "tensor"))}
    # The mean over each of the two axes, and an unused placeholder.
    factored = {((2, 16), ()), ((2, 24), ()), ((1,), ())}
    assert layouts == moments | (factored if name == "adafactor" else set())


@pytest.mark.ci
@pytest.mark.parametrize("name", [pytest.param("adafactor", marks=pytest.mark.nightly), "muon"])
def test_a_checkpoint_is_restored_on_another_mesh(name, tmp_path):
    state, _ = ten_steps(name, (2, 2, 2))
    template = abstract_state(INIT, OPTIMIZERS[name], make_mesh(devices=jax.devices()[:1]))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(10, state, metadata={})
        restored = checkpoints.restore(template)
    assert restored is not None
    jax.tree.map(
        np.testing.assert_array_equal, jax.device_get(restored.state), jax.device_get(state)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"biases": True, "embeddings": "separate", "positions": "learned", "norm_position": "pre"},
    ],
)
def test_muon_orthogonalizes_only_matrices_of_layers(changes):
    config = dataclasses.replace(CONFIG.model, **changes)
    shapes = jax.eval_shape(make_init(config), jax.random.key(0))
    orthogonalized, dimensions = {}, matrix_dimensions(describe_model(config))
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        numbers = dimensions
        for key in path:
            numbers = numbers[key.key]
        if numbers is not None:
            orthogonalized[name] = (leaf.shape, *numbers)
    query, output = ((2, 16, 8, 2), (1,), (2, 3)), ((2, 16, 16), (1,), (2,))
    matrices = {"query": query, "key": query, "value": query, "output": output}
    feed_forward = {"inner": ((2, 16, 24), (1,), (2,)), "outer": ((2, 24, 16), (1,), (2,))}
    assert orthogonalized == {
        f"{side}/layers/{part}/{name}": expected
        for side, attentions in {
            "encoder": ["self_attention"],
            "decoder": ["self_attention", "cross_attention"],
        }.items()
        for part, names in {
            **dict.fromkeys(attentions, matrices),
            "feed_forward": feed_forward,
        }.items()
        for name, expected in names.items()
    }


def test_updates_of_muon_are_orthogonal():
    """Singular values of a layer's Muon update are near 1, unlike Adam's update or a head's."""
    rng = np.random.default_rng(0)
    params = {"query": jnp.zeros((3, 32, 4, 4)), "inner_bias": jnp.zeros((3, 32))}
    # Not orthogonal at all: singular values span two orders of magnitude.
    gradients = jax.tree.map(
        lambda a: jnp.asarray(
            rng.normal(size=a.shape)
            * np.geomspace(1, 100, a.shape[1]).reshape(1, -1, *[1] * (a.ndim - 2)),
            jnp.float32,
        ),
        params,
    )
    info = {
        "query": ParameterInfo((None, "d_model", "heads", None), "matrix"),
        "inner_bias": ParameterInfo((None, None), "vector"),
    }
    optimizer = muon(1.0, info, adam_learning_rate=1e-3)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    for layer, gradient in zip(
        np.asarray(updates["query"]), np.asarray(gradients["query"]), strict=True
    ):
        found = np.linalg.svd(layer.reshape(32, 16), compute_uv=False)
        before = np.linalg.svd(gradient.reshape(32, 16), compute_uv=False)
        assert before.max() > 3 * before.min()
        assert found.min() > 0.6
        assert found.max() < 1.3
        # The negative orthogonal factor of the gradient.
        u, _, v = np.linalg.svd(gradient.reshape(32, 16), full_matrices=False)
        assert np.sum(-layer.reshape(32, 16) * (u @ v)) / 16 > 0.7
    assert np.abs(updates["inner_bias"]).max() < 2e-3
