"""A step does not depend on the number of devices or micro-batches, even on ragged batches."""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer.config import Config, MeshConfig, ModelConfig, TrainingConfig
from jaxformer.data.batch import Batch, make_batch
from jaxformer.errors import UserError
from jaxformer.experiment import make_optimizer
from jaxformer.models.transformer import Transformer
from jaxformer.tasks.translation import loss_sums, make_init, make_loss
from jaxformer.training.mesh import batch_sharding, make_mesh
from jaxformer.training.step import abstract_state, init_state, make_eval_step, make_train_step

CONFIG = Config(
    model=ModelConfig(
        vocab_size=37, d_model=16, d_ff=24, num_heads=4, num_layers=1, dropout_rate=0.3
    ),
    training=TrainingConfig(warmup_steps=2),
)
DEEP = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, num_layers=2))
ROWS = 8
# Plain SGD; with a momentum of zero, the state holds the gradients themselves.
OPTIMIZER = optax.sgd(1.0, momentum=0.0)


def ragged_batch(seed=0):
    """Rows of 0 to 6 tokens. The last row is empty, so that one of eight devices has no token."""
    rng = np.random.default_rng(seed)

    def side(lengths):
        real = np.arange(6) < np.asarray(lengths)[:, None]
        tokens = np.where(real, rng.integers(3, 37, (ROWS, 6)), 0).astype(np.int32)
        return tokens, real.astype(np.int32), np.tile(np.arange(6, dtype=np.int32), (ROWS, 1))

    src, tgt = side([6, 1, 3, 2, 5, 6, 4, 0]), side([1, 6, 2, 2, 3, 1, 5, 0])
    tgt_out = np.where(tgt[1], rng.integers(3, 37, (ROWS, 6)), 0).astype(np.int32)
    return Batch(*src, tgt[0], tgt_out, *tgt[1:])


@functools.cache
def step_on(devices, config, mesh=None):
    """Returns the mesh and the compiled step."""
    mesh = make_mesh(mesh, jax.devices()[:devices])
    step = make_train_step(
        make_loss(config),
        OPTIMIZER,
        mesh,
        gradient_accumulation=config.training.gradient_accumulation,
    )
    return mesh, step


def one_step(devices, gradient_accumulation=1, config=CONFIG, batch=None, mesh=None):
    """Returns the state after one step on ``devices`` devices, its gradients and metrics."""
    config = dataclasses.replace(
        config,
        training=dataclasses.replace(config.training, gradient_accumulation=gradient_accumulation),
    )
    mesh, train_step = step_on(devices, config, mesh)
    state = init_state(make_init(config.model), OPTIMIZER, mesh, seed=0)
    batch = jax.device_put(ragged_batch() if batch is None else batch, batch_sharding(mesh))
    state, metrics = train_step(state, batch)
    gradients = jax.device_get(optax.tree.get(state.opt_state, "trace"))
    return state, gradients, jax.device_get(metrics)


@pytest.fixture(scope="module")
def reference():
    return one_step(devices=1)


def assert_same(actual, expected):
    """Checks that each array differs by less than a millionth of its norm."""
    distances = jax.tree.map(relative_distance, actual, expected)
    assert all(distance < 1e-6 for distance in jax.tree.leaves(distances)), distances


def assert_same_sums(actual, expected):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), actual, expected)


@pytest.mark.smoke
@pytest.mark.ci
@pytest.mark.parametrize(("devices", "gradient_accumulation"), [(1, 4), (4, 2)])
def test_accumulation_does_not_change_loss_or_gradients(reference, devices, gradient_accumulation):
    _, gradients, metrics = one_step(devices, gradient_accumulation)
    np.testing.assert_allclose(metrics["loss"], reference[2]["loss"], rtol=1e-6)
    assert metrics["count"] == 20
    assert_same(gradients, reference[1])


@pytest.mark.ci
def test_rematerialization_changes_nothing_but_memory():
    """It also turns the layers into a loop, which are unrolled on CPUs otherwise."""
    _, expected, expected_metrics = one_step(1, config=DEEP)
    for remat in ("dots", "layer"):
        training = dataclasses.replace(DEEP.training, remat=remat)
        config = dataclasses.replace(DEEP, training=training)
        _, gradients, metrics = one_step(2, config=config)
        np.testing.assert_allclose(metrics["loss"], expected_metrics["loss"], rtol=1e-6)
        assert_same(gradients, expected)


@pytest.mark.nightly
def test_rematerialization_saves_memory():
    """Activations take most of the memory of a deep model."""
    needed = [temporary_memory(remat) for remat in ("none", "dots", "layer")]
    assert needed[0] > 1.3 * needed[1] > 1.5 * needed[2], needed


def temporary_memory(remat):
    config = dataclasses.replace(
        CONFIG,
        model=dataclasses.replace(CONFIG.model, num_layers=4, d_model=64, d_ff=256),
        training=dataclasses.replace(CONFIG.training, remat=remat),
    )
    mesh, train_step = step_on(1, config)
    state = abstract_state(make_init(config.model), OPTIMIZER, mesh)
    ids = jax.ShapeDtypeStruct((16, 32), np.int32)
    step = train_step.lower(state, Batch(*[ids] * 7)).compile()
    return step.memory_analysis().temp_size_in_bytes


# One, two and four devices, and every split of eight.
MESHES = [
    (2, 1, 1),
    (4, 1, 1),
    *((d, f, 8 // d // f) for d in (1, 2, 4, 8) for f in (1, 2, 4, 8) if d * f <= 8),
]
DIVISIBLE = dataclasses.replace(
    CONFIG, model=dataclasses.replace(CONFIG.model, vocab_size=40, num_heads=8)
)


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param((2, 2, 2), marks=[pytest.mark.ci, pytest.mark.smoke]),
        *(pytest.param(m, marks=pytest.mark.nightly) for m in MESHES if m != (2, 2, 2)),
    ],
    ids=str,
)
def test_the_mesh_changes_neither_gradients_nor_weights_after_twenty_steps(mesh):
    expected, actual = twenty_steps((1, 1, 1)), twenty_steps(mesh)
    np.testing.assert_allclose(actual.metrics["loss"], expected.metrics["loss"], rtol=1e-6)
    np.testing.assert_allclose(actual.metrics["nll"], expected.metrics["nll"], rtol=1e-6)
    norms = actual.metrics["grad_norm"], expected.metrics["grad_norm"]
    np.testing.assert_allclose(*norms, rtol=1e-5)
    assert (actual.metrics["count"], actual.metrics["tokens"]) == (20, 47)
    assert_same(actual.gradients, expected.gradients)
    assert relative_distance(actual.params, expected.params) < 1e-4
    _, fsdp, tensor = mesh
    assert actual.inner_shard == (1, 16 // fsdp, 24 // tensor)


class TwentySteps(NamedTuple):
    """Metrics and gradients of the first step, and parameters after the last step."""

    metrics: dict
    gradients: dict
    params: dict
    inner_shard: tuple[int, ...]


@functools.cache
def twenty_steps(sizes):
    """Takes twenty steps of Adam with dropout on ragged batches."""
    optimizer = make_optimizer(DIVISIBLE)
    config = MeshConfig(data=sizes[0], fsdp=sizes[1], tensor=sizes[2])
    mesh = make_mesh(config, jax.devices()[: math.prod(sizes)])
    state = init_state(make_init(DIVISIBLE.model), optimizer, mesh, seed=0)
    train_step = make_train_step(make_loss(DIVISIBLE), optimizer, mesh)
    for seed in range(20):
        batch = jax.device_put(ragged_batch(seed), batch_sharding(mesh))
        state, metrics = jax.block_until_ready(train_step(state, batch))
        if seed == 0:
            first = jax.device_get(metrics)
            # Adam's first moment after one step is a tenth of the gradient.
            gradients = jax.device_get(optax.tree.get(state.opt_state, "mu"))
    shard = state.params["decoder"]["layers"]["feed_forward"]["inner"].addressable_shards[0]
    return TwentySteps(first, gradients, jax.device_get(state.params), shard.data.shape)


def relative_distance(actual, expected):
    """Returns the norm of the difference of two trees, relative to the norm of one."""
    difference = optax.tree.norm(jax.tree.map(np.subtract, actual, expected))
    return float(difference / optax.tree.norm(expected))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("fsdp", "tensor"), [pytest.param(1, 8, marks=pytest.mark.nightly), (2, 4)]
)
def test_what_cannot_be_split_evenly_is_not_split(reference, fsdp, tensor):
    mesh = MeshConfig(data=-1, fsdp=fsdp, tensor=tensor)  # for 37 words, and for 4 heads
    state, gradients, _ = one_step(8, mesh=mesh)
    assert_same(gradients, reference[1])
    shape = state.params["embedding"].addressable_shards[0].data.shape
    assert shape == (37, 16 // fsdp)


def test_a_mesh_that_does_not_fit_the_devices_is_refused():
    with pytest.raises(UserError, match=r"mesh.tensor=3 do not fit 8 device"):
        make_mesh(MeshConfig(data=-1, tensor=3))


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("devices", "gradient_accumulation"), [pytest.param(8, 1, marks=pytest.mark.ci), (4, 2)]
)
def test_gradient_equals_autodiff_of_the_mean_over_all_tokens(devices, gradient_accumulation):
    """The reference is the loss in one line, without dropout."""
    model_config = dataclasses.replace(CONFIG.model, dropout_rate=0.0)
    config = dataclasses.replace(CONFIG, model=model_config)
    batch = ragged_batch()
    model = Transformer(model_config)

    def mean_loss(params):
        logits = model.apply({"params": params}, jnp.asarray(batch.src), jnp.asarray(batch.tgt_in))
        log_p = jax.nn.log_softmax(logits)
        smoothed = 0.9 * jax.nn.one_hot(batch.tgt_out, 37) + 0.1 / 37
        return -((smoothed * log_p).sum(-1) * batch.tgt_segments).sum() / batch.tgt_segments.sum()

    params = init_state(
        make_init(model_config), OPTIMIZER, make_mesh(devices=jax.devices()[:1]), seed=0
    ).params
    loss, expected = jax.jit(jax.value_and_grad(mean_loss))(params)
    _, gradients, metrics = one_step(devices, gradient_accumulation, config)
    np.testing.assert_allclose(metrics["loss"] / metrics["count"], loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], optax.tree.norm(expected), rtol=1e-5)
    assert_same(gradients, jax.device_get(expected))


@pytest.mark.ci
def test_packing_does_not_change_loss_or_gradients():
    rng = np.random.default_rng(0)
    pairs = [(rng.integers(3, 37, n), rng.integers(3, 37, m)) for n, m in [(3, 2), (4, 6), (1, 5)]]
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, dropout_rate=0.0))
    unpacked = make_batch([[pair] for pair in pairs], (3, 8, 8))
    packed = make_batch([[pairs[2], pairs[0]], [pairs[1]]], (2, 9, 9))
    _, expected, expected_metrics = one_step(1, config=config, batch=unpacked)
    _, gradients, metrics = one_step(1, config=config, batch=packed)
    assert_same_sums(metrics, expected_metrics)
    assert_same(gradients, expected)


@pytest.mark.ci
def test_dropout_changes_with_the_step(reference):
    """The same parameters and batch have another loss at the second step."""
    state, _, first = reference
    mesh, train_step = step_on(1, CONFIG)
    fresh = init_state(make_init(CONFIG.model), OPTIMIZER, mesh, seed=0)
    state, second = train_step(fresh._replace(step=jnp.copy(state.step)), ragged_batch())
    assert int(state.step) == 2
    assert float(first["loss"]) != float(second["loss"])


@pytest.mark.ci
def test_step_with_nan_is_skipped_on_all_devices_and_counted():
    optimizer = optax.adam(1e-3)
    mesh = make_mesh(devices=jax.devices()[:8])
    state = init_state(make_init(CONFIG.model), optimizer, mesh, seed=0)
    # NaN in the embedding of one token makes the gradients of its row NaN.
    batch = ragged_batch()
    poisoned = state.params["embedding"].at[int(batch.src[4, 0])].set(jnp.nan)
    params = jax.device_put(
        dict(state.params, embedding=poisoned), state.params["embedding"].sharding
    )
    before = jax.device_get(params)
    state = state._replace(params=params)
    train_step = make_train_step(make_loss(CONFIG), optimizer, mesh)
    for expected in (1, 2):
        state, metrics = train_step(state, batch)
        assert int(metrics["skipped"]) == 1
        assert int(state.skipped) == int(state.skipped_in_row) == expected
    assert int(state.step) == 2
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(state.params))
    assert int(optax.tree.get(state.opt_state, "count")) == 0


@pytest.mark.parametrize(
    ("devices", "adam_dtype"),
    [(1, "float32"), pytest.param(8, "bfloat16", marks=pytest.mark.ci)],
)
def test_step_with_huge_but_finite_gradients_is_skipped(devices, adam_dtype):
    """Their squares overflow Adam's second moment, which would freeze the weights forever."""
    training = dataclasses.replace(CONFIG.training, adam_dtype=adam_dtype)
    config = dataclasses.replace(CONFIG, training=training)
    optimizer = optax.chain(optax.scale(1e21), make_optimizer(config))
    mesh = make_mesh(devices=jax.devices()[:devices])
    train_step = make_train_step(make_loss(config), optimizer, mesh)
    state = init_state(make_init(config.model), optimizer, mesh, seed=0)
    before = jax.device_get((state.params, state.opt_state))
    for expected in (1, 2):
        state, metrics = train_step(state, ragged_batch())
        assert 0 < float(metrics["loss"]) < math.inf
        assert (int(metrics["skipped"]), int(state.skipped)) == (1, expected)
        assert int(state.skipped_in_row) == expected
    after = jax.device_get((state.params, state.opt_state))
    jax.tree.map(np.testing.assert_array_equal, after, before)


@pytest.mark.parametrize("devices", [1, pytest.param(8, marks=pytest.mark.ci)])
def test_step_whose_gradient_norm_overflows_is_skipped(devices):
    """Clipping would divide the finite gradients by infinity, and Adam would update with zeros."""
    training = dataclasses.replace(CONFIG.training, clip_norm=1.0)
    config = dataclasses.replace(CONFIG, training=training)
    mesh = make_mesh(devices=jax.devices()[:devices])
    inner = make_loss(config)

    def huge_loss(params, batch, randomness):
        sums = inner(params, batch, randomness)
        return sums | {"loss": 1e21 * sums["loss"]}

    train_step = make_train_step(huge_loss, make_optimizer(config), mesh)
    state = init_state(make_init(config.model), make_optimizer(config), mesh, seed=0)
    before = jax.device_get((state.params, state.opt_state))
    state, metrics = train_step(state, ragged_batch())
    assert math.isfinite(metrics["loss"])
    assert math.isinf(metrics["grad_norm"])
    assert int(metrics["skipped"]) == int(state.skipped) == 1
    after = jax.device_get((state.params, state.opt_state))
    jax.tree.map(np.testing.assert_array_equal, after, before)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("devices", [1, pytest.param(8, marks=pytest.mark.ci)])
def test_step_whose_loss_is_not_finite_is_skipped(devices, value):
    """Even if its gradients are."""
    mesh = make_mesh(devices=jax.devices()[:devices])

    def loss(params, batch, randomness):
        return {"loss": params["w"].sum() + batch.sum(), "count": batch.size}

    optimizer = optax.sgd(1.0)
    train_step = make_train_step(loss, optimizer, mesh)
    state = init_state(lambda key: {"w": jnp.ones(3)}, optimizer, mesh)
    batch = np.zeros((8, 1), np.float32)
    state, metrics = train_step(state, batch)
    assert (int(metrics["skipped"]), float(state.params["w"][0])) == (0, 1 - devices / 8)
    batch[-1] = value
    state, metrics = train_step(state, batch)
    assert math.isfinite(metrics["grad_norm"])
    assert (int(metrics["skipped"]), float(state.params["w"][0])) == (1, 1 - devices / 8)


def test_validation_sums_do_not_depend_on_devices():
    batch = ragged_batch()
    results = []
    for devices in (1, 8):
        mesh = make_mesh(devices=jax.devices()[:devices])
        state = init_state(make_init(CONFIG.model), OPTIMIZER, mesh, seed=0)
        results.append(jax.device_get(make_eval_step(make_loss(CONFIG), mesh)(state.params, batch)))
    assert_same_sums(*results)


@pytest.mark.parametrize("changes", [{}, {"biases": True, "embeddings": "separate"}])
def test_the_loss_is_that_of_the_models_own_logits(changes):
    config = dataclasses.replace(CONFIG.model, dropout_rate=0.0, **changes)
    model, batch = Transformer(config), jax.tree.map(jnp.asarray, ragged_batch())
    params = jax.jit(model.init)(jax.random.key(0), batch.src, batch.tgt_in)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda a: jnp.asarray(rng.normal(0, 0.3, a.shape), a.dtype), params)
    sums = jax.jit(lambda p: loss_sums(model, p, batch, 0.1))(params)
    logits = jax.jit(model.apply)({"params": params}, batch.src, batch.tgt_in)
    log_probs = np.asarray(jax.nn.log_softmax(logits), np.float64)
    picked = np.take_along_axis(log_probs, np.asarray(batch.tgt_out)[..., None], axis=-1)[..., 0]
    real = np.asarray(batch.tgt_segments) != 0
    smooth = 0.9 * picked + 0.1 * log_probs.mean(axis=-1)
    assert float(sums["nll"]) == pytest.approx(-picked[real].sum(), rel=1e-5)
    assert float(sums["loss"]) == pytest.approx(-smooth[real].sum(), rel=1e-5)
