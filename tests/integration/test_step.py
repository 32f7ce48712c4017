"""A step does not depend on the number of devices or micro-batches, even on ragged batches."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import muon, per_layer
from jaxformer.config import Config, MeshConfig, ModelConfig, TrainingConfig
from jaxformer.data.batch import Batch, make_batch
from jaxformer.errors import UserError
from jaxformer.experiment import make_optimizer
from jaxformer.kinds.model_parameters import describe_model, make_init
from jaxformer.models.transformer import Transformer
from jaxformer.nn import ParameterInfo
from jaxformer.tasks.translation import TranslationLoss
from jaxformer.training.mesh import make_mesh
from jaxformer.training.placement import batch_sharding
from jaxformer.training.step import make_train_step
from jaxformer.training.train_state import abstract_state, init_state
from jaxformer.training.validation import evaluate_loss

from ..profiles import by_profile

CONFIG = Config(
    model=ModelConfig(
        vocab_size=37,
        d_model=16,
        d_ff=24,
        num_heads=4,
        num_layers=1,
        dropout_rate=0.3,
    ),
    training=TrainingConfig(warmup_steps=2),
)
ROWS = 8
# Plain SGD; with a momentum of zero, the state holds the gradients themselves.
OPTIMIZER = optax.sgd(1.0, momentum=0.0)
ONE = (1, 1, 1)


def changed(training=None, **model):
    return Config(
        model=dataclasses.replace(CONFIG.model, **model),
        training=dataclasses.replace(CONFIG.training, **training or {}),
    )


def ragged_batch(seed=0):
    """Rows of 0 to 6 tokens. The last row is empty, so that one of eight devices has no token."""
    rng = np.random.default_rng(seed)

    def random_tokens(real):
        tokens = rng.integers(3, 37, (ROWS, 6))
        return np.where(real, tokens, 0).astype(np.int32)  # [ROWS, 6]

    def is_real(lengths):
        return np.arange(6) < np.asarray(lengths)[:, None]

    src_real = is_real([6, 1, 3, 2, 5, 6, 4, 0])
    tgt_real = is_real([1, 6, 2, 2, 3, 1, 5, 0])
    positions = np.tile(np.arange(6, dtype=np.int32), (ROWS, 1))
    return Batch(
        src=random_tokens(src_real),
        src_segments=src_real.astype(np.int32),
        src_positions=positions,
        tgt_in=random_tokens(tgt_real),
        tgt_out=random_tokens(tgt_real),
        tgt_segments=tgt_real.astype(np.int32),
        tgt_positions=positions,
    )


def mesh_of(sizes):
    data, fsdp, tensor = sizes
    config = MeshConfig(data=data, fsdp=fsdp, tensor=tensor)
    return make_mesh(config, jax.devices()[: math.prod(sizes)])


@functools.cache
def init_of(model):
    """Returns a function that returns random parameters, faster than the model's own."""
    rng = np.random.default_rng(0)

    def random_array(path, shape):
        mean = 1 if path[-1].key == "scale" else 0
        return rng.normal(mean, 0.25, shape.shape).astype(shape.dtype)

    shapes = jax.eval_shape(make_init(model), jax.random.key(0))
    params = jax.tree.map_with_path(random_array, shapes)
    return lambda key: params


def params_of(model):
    return init_of(model)(None)


def state_of(config, mesh):
    describe = functools.partial(describe_model, config.model)
    return init_state(init_of(config.model), OPTIMIZER, mesh, describe=describe)


@functools.cache
def compiled(config, sizes, gradient_accumulation):
    mesh = mesh_of(sizes)
    train_step = make_train_step(
        TranslationLoss.of(config),
        OPTIMIZER,
        mesh,
        gradient_accumulation=gradient_accumulation,
    )
    return mesh, train_step


class OneStep(NamedTuple):
    """The state, gradients and metrics of a step of training."""

    state: Any
    gradients: Any
    metrics: dict[str, np.ndarray]


def one_step(config=CONFIG, sizes=ONE, gradient_accumulation=1, batch=None):
    """Returns the state after one step on a mesh, its gradients and metrics."""
    mesh, train_step = compiled(config, sizes, gradient_accumulation)
    if batch is None:
        batch = ragged_batch()

    batch = jax.device_put(batch, batch_sharding(mesh))
    state, metrics = train_step(state_of(config, mesh), batch)
    gradients = optax.tree.get(state.opt_state, "trace")
    return OneStep(
        state=state,
        gradients=jax.device_get(gradients),
        metrics=jax.device_get(metrics),
    )


@pytest.fixture(scope="module")
def reference():
    return one_step()


def norm(tree):
    total = 0.0
    for array in jax.tree.leaves(tree):
        total += np.square(np.float64(array)).sum()
    return math.sqrt(total)


def relative_distance(actual, expected):
    """Returns the norm of the difference of two trees, relative to the norm of one."""
    difference = jax.tree.map(np.subtract, actual, expected)
    return norm(difference) / norm(expected)


def assert_same(actual, expected):
    """Checks that each array differs by less than a millionth of its norm."""
    distances = jax.tree.map(relative_distance, actual, expected)
    leaves = jax.tree.leaves(distances)
    assert all(distance < 1e-6 for distance in leaves), distances


# 37 words and 4 heads cannot be split evenly over 4 or 8 devices.
CASES = [
    ((1, 2, 4), 2, "layer"),
    ((1, 1, 1), 4, "none"),
    ((4, 1, 1), 2, "dots"),
    ((1, 1, 8), 1, "none"),
]


@pytest.mark.smoke
@pytest.mark.ci
@pytest.mark.parametrize(
    ("sizes", "gradient_accumulation", "remat"),
    by_profile(CASES[:1], nightly=CASES),
    ids=str,
)
def test_accumulation_uneven_splits_and_remat_change_neither_loss_nor_gradients(
    reference, sizes, gradient_accumulation, remat
):
    """Rematerialization also turns the layers into a loop, which are unrolled on CPUs otherwise."""
    config = changed({"remat": remat})
    found = one_step(config, sizes, gradient_accumulation)

    np.testing.assert_allclose(found.metrics["loss"], reference.metrics["loss"], rtol=1e-6)
    assert found.metrics["count"] == 20
    assert_same(found.gradients, reference.gradients)

    _, fsdp, _ = sizes
    shard = found.state.params["embedding"].addressable_shards[0]
    assert shard.data.shape == (37, 16 // fsdp)


@pytest.mark.nightly
def test_rematerialization_saves_memory():
    """Activations take most of the memory of a deep model."""
    everything = temporary_memory("none")
    without_dots = temporary_memory("dots")
    one_layer = temporary_memory("layer")

    needed = everything, without_dots, one_layer
    assert everything > 1.3 * without_dots, needed
    assert 1.3 * without_dots > 1.5 * one_layer, needed


def temporary_memory(remat):
    config = changed({"remat": remat}, num_layers=4, d_model=64, d_ff=256)
    mesh, train_step = compiled(config, ONE, 1)
    state = abstract_state(make_init(config.model), OPTIMIZER, mesh)

    ids = jax.ShapeDtypeStruct((16, 32), np.int32)
    batch = Batch(**dict.fromkeys(Batch._fields, ids))
    step = train_step.lower(state, batch).compile()
    return step.memory_analysis().temp_size_in_bytes


# A model that eight devices can split in every way.
SPLIT = changed(vocab_size=40, num_heads=8)
SPLITS_OF_EIGHT = [
    (data, fsdp, 8 // data // fsdp)
    for data in (1, 2, 4, 8)
    for fsdp in (1, 2, 4, 8)
    if data * fsdp <= 8
]
MESHES = [
    (2, 1, 1),
    (4, 1, 1),
    *SPLITS_OF_EIGHT,
]


@pytest.mark.ci
@pytest.mark.smoke
@pytest.mark.parametrize("mesh", by_profile([(2, 2, 2)], nightly=MESHES), ids=str)
def test_the_mesh_changes_neither_gradients_nor_weights_after_twenty_steps(mesh):
    expected = twenty_steps(ONE)
    found = twenty_steps(mesh)

    for name, tolerance in {"loss": 1e-6, "nll": 1e-6, "grad_norm": 1e-5}.items():
        np.testing.assert_allclose(found.sums[name], expected.sums[name], rtol=tolerance)
    assert found.sums["count"] == 20
    assert found.sums["tokens"] == 47

    assert_same(found.gradients, expected.gradients)
    assert relative_distance(found.params, expected.params) < 1e-4

    _, fsdp, tensor = mesh
    assert found.shard == (1, 16 // fsdp, 24 // tensor)


class TwentySteps(NamedTuple):
    """Metrics and gradients of the first step, the last parameters, and the shape of a shard."""

    sums: dict[str, np.ndarray]
    gradients: Any
    params: Any
    shard: tuple[int, ...]


@functools.cache
def twenty_steps(sizes):
    """Takes twenty steps of Adam with dropout on ragged batches."""
    optimizer = make_optimizer(SPLIT)
    mesh = mesh_of(sizes)
    state = init_state(make_init(SPLIT.model), optimizer, mesh, seed=0)
    train_step = make_train_step(TranslationLoss.of(SPLIT), optimizer, mesh)

    for seed in range(20):
        batch = jax.device_put(ragged_batch(seed), batch_sharding(mesh))
        state, metrics = jax.block_until_ready(train_step(state, batch))
        if seed == 0:
            sums = jax.device_get(metrics)
            # Adam's first moment after one step is a tenth of the gradient.
            gradients = jax.device_get(optax.tree.get(state.opt_state, "mu"))

    inner = state.params["decoder"]["layers"]["feed_forward"]["inner"]
    return TwentySteps(
        sums=sums,
        gradients=gradients,
        params=jax.device_get(state.params),
        shard=inner.addressable_shards[0].data.shape,
    )


@pytest.mark.ci
def test_the_mesh_does_not_change_gradients_of_norms_that_all_heads_share():
    """Heads are split over the devices, and each has the scales of QK-norm."""
    config = changed(qk_norm=True)
    expected = one_step(config).gradients
    found = one_step(config, (2, 2, 2)).gradients

    assert "query_norm" in found["decoder"]["layers"]["cross_attention"]
    assert_same(found, expected)


OPTIMIZERS = {
    # Factors parameters with two axes of at least 8, which this small model has.
    "adafactor": optax.adafactor(0.01, min_dim_size_to_factor=8, momentum=0.9),
    "muon": muon(
        0.02,
        describe_model(SPLIT.model),
        adam_learning_rate=0.01,
        weight_decay=0.01,
    ),
    "lamb": per_layer(optax.lamb(0.01)),
    "ema": optax.chain(
        optax.scale_by_lion(),
        optax.ema(0.9),
        optax.scale(-1e-3),
    ),
}


class TenSteps(NamedTuple):
    """Parameters before and after ten steps, and the losses."""

    start: Any
    params: Any
    losses: list[float]


@functools.cache
def ten_steps(name, sizes):
    """Takes ten steps of an optimizer."""
    optimizer = OPTIMIZERS[name]
    mesh = mesh_of(sizes)
    state = init_state(make_init(SPLIT.model), optimizer, mesh)
    step = make_train_step(TranslationLoss.of(SPLIT), optimizer, mesh)

    start = jax.device_get(state.params)
    losses = []
    for seed in range(10):
        batch = jax.device_put(ragged_batch(seed), batch_sharding(mesh))
        state, sums = step(state, batch)
        loss = float(sums["loss"])
        count = float(sums["count"])
        losses.append(loss / count)

    assert int(state.skipped) == 0
    return TenSteps(start, jax.device_get(state.params), losses)


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(["muon"], nightly=list(OPTIMIZERS)))
@pytest.mark.parametrize(
    "sizes",
    by_profile(
        [(2, 2, 2)],
        nightly=[(2, 2, 2), (8, 1, 1), (1, 8, 1), (1, 1, 8)],
    ),
    ids=str,
)
def test_the_mesh_does_not_change_the_results_of_any_optimizer(name, sizes):
    expected = ten_steps(name, ONE)
    found = ten_steps(name, sizes)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)

    error = jax.tree.map(np.subtract, expected.params, found.params)
    moved = jax.tree.map(np.subtract, expected.params, expected.start)
    assert norm(error) < 2e-3 * norm(moved)


def test_a_mesh_that_does_not_fit_the_devices_is_refused():
    with pytest.raises(UserError, match=r"mesh.tensor=3 do not fit 8 device"):
        make_mesh(MeshConfig(data=-1, tensor=3))


def smoothed_loss(model, params, batch):
    """Returns the mean over all tokens by the definition, and their negative log likelihood."""
    logits = model.apply({"params": params}, batch.src, batch.tgt_in)
    log_p = jax.nn.log_softmax(logits)  # [B, T, V]
    one_hot = jax.nn.one_hot(batch.tgt_out, 37)
    real = batch.tgt_segments != 0

    def mean(distribution):
        cross_entropy = -(distribution * log_p).sum(-1)  # [B, T]
        return (cross_entropy * real).sum() / real.sum()

    smoothed = 0.9 * one_hot + 0.1 / 37
    return mean(smoothed), mean(one_hot)


@pytest.mark.smoke
def test_gradient_equals_autodiff_of_the_mean_over_all_tokens():
    """The reference is the loss in one line, without dropout."""
    config = changed(dropout_rate=0.0)
    batch = jax.tree.map(jnp.asarray, ragged_batch())
    mean = functools.partial(smoothed_loss, Transformer(config.model), batch=batch)
    gradient = jax.jit(jax.value_and_grad(mean, has_aux=True))
    (loss, nll), expected = jax.device_get(gradient(params_of(config.model)))

    _, gradients, metrics = one_step(config, (4, 1, 1), gradient_accumulation=2)

    count = metrics["count"]
    np.testing.assert_allclose(metrics["loss"] / count, loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["nll"] / count, nll, rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], norm(expected), rtol=1e-5)
    assert_same(gradients, expected)


@pytest.mark.parametrize("changes", [{}, {"biases": True, "embeddings": "separate"}], ids=str)
def test_validation_on_eight_devices_has_the_loss_of_the_models_own_logits(changes):
    config = changed(dropout_rate=0.3, **changes)
    batch = ragged_batch()
    params = params_of(config.model)
    mesh = mesh_of((8, 1, 1))
    found = evaluate_loss(TranslationLoss.of(config), params, [batch], mesh)

    model = Transformer(config.model)
    reference = jax.jit(functools.partial(smoothed_loss, model))
    loss, nll = jax.device_get(reference(params, batch))
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(math.log(found["perplexity"]), nll, rtol=1e-5)


@pytest.mark.ci
def test_packing_does_not_change_loss_or_gradients():
    """Both batches have the same shape."""
    rng = np.random.default_rng(0)
    pairs = []
    for source_length, target_length in [(2, 1), (4, 5), (1, 2)]:
        source = rng.integers(3, 37, source_length)
        target = rng.integers(3, 37, target_length)
        pairs.append((source, target))

    config = changed(dropout_rate=0.0)
    first, second, third = pairs
    shape = (ROWS, 6, 6)
    unpacked = make_batch([[first], [second], [third]], shape)
    packed = make_batch([[third, first], [second]], shape)
    expected = one_step(config, batch=unpacked)
    found = one_step(config, batch=packed)

    for name, value in found.metrics.items():
        np.testing.assert_allclose(value, expected.metrics[name], rtol=1e-6, err_msg=name)
    assert_same(found.gradients, expected.gradients)


@pytest.mark.ci
def test_dropout_changes_with_the_step(reference):
    mesh, train_step = compiled(CONFIG, ONE, 1)
    fresh = state_of(CONFIG, mesh)
    later = fresh._replace(step=fresh.step + 1)
    state, second = train_step(later, ragged_batch())

    assert int(state.step) == 2
    assert float(reference.metrics["loss"]) != float(second["loss"])


def linear_loss(scale=1.0):
    """Returns a loss whose gradient with respect to the weights is the sum of the rows."""

    def loss(params, batch, randomness):
        products = params["w"] * batch["features"] * scale
        offset = batch["offset"]
        return {"loss": products.sum() + offset.sum(), "count": offset.size}

    return loss


OWN_ADAM = make_optimizer(CONFIG)
HALF_ADAM = make_optimizer(changed({"adam_dtype": "bfloat16"}))
CLIPPED = make_optimizer(changed({"clip_norm": 1.0}))
HUGE = optax.scale(1e21)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("optimizer", "scale", "features", "offset"),
    [
        (OWN_ADAM, 1, math.nan, 0),
        # The squares overflow Adam's second moment, which would freeze the weights forever.
        (optax.chain(HUGE, OWN_ADAM), 1, 1, 0),
        (optax.chain(HUGE, HALF_ADAM), 1, 1, 0),
        # Clipping would divide the finite gradients by infinity, and Adam update with zeros.
        (CLIPPED, 1e21, 1, 0),
        # The loss is not finite, but its gradients are.
        (optax.sgd(1.0), 1, 1, math.nan),
        (optax.sgd(1.0), 1, 1, math.inf),
    ],
    ids=["NaN", "huge", "huge, bfloat16", "huge norm", "loss is NaN", "loss is infinite"],
)
def test_a_step_that_is_not_finite_is_skipped_on_all_devices_and_counted(
    optimizer,
    scale,
    features,
    offset,
):
    """Only one row of one device, and only one weight, are not finite or huge."""
    mesh = mesh_of((2, 2, 2))
    info = {"w": ParameterInfo(("d_model", "d_ff"), "matrix")}
    state = init_state(
        lambda key: {"w": jnp.ones((4, 4))},
        optimizer,
        mesh,
        describe=lambda: info,
    )
    shard = state.params["w"].addressable_shards[0]
    assert shard.data.shape == (2, 2)

    train_step = make_train_step(linear_loss(scale), optimizer, mesh)
    batch = {
        "features": np.zeros((8, 4, 4), np.float32),
        "offset": np.zeros(8, np.float32),
    }
    state, metrics = train_step(state, batch)
    assert int(metrics["skipped"]) == 0
    assert int(state.skipped) == 0

    before = jax.device_get((state.params, state.opt_state))
    batch["features"][4, 3, 3] = features
    batch["offset"][-1] = offset
    loss_is_finite = features == 1 and offset == 0
    norm_is_finite = features == 1 and scale == 1
    for expected in (1, 2):
        state, metrics = train_step(state, batch)
        assert math.isfinite(metrics["loss"]) == loss_is_finite
        assert math.isfinite(metrics["grad_norm"]) == norm_is_finite
        assert int(metrics["skipped"]) == 1
        assert int(state.skipped) == expected
        assert int(state.skipped_in_row) == expected

    assert int(state.step) == 3
    after = jax.device_get((state.params, state.opt_state))
    jax.tree.map(np.testing.assert_array_equal, after, before)
