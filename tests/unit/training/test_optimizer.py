"""The schedule of equation 3 and the paper's Adam, against plain implementations."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from jaxformer.config import Config, ModelConfig, TrainingConfig
from jaxformer.errors import UserError
from jaxformer.experiment import make_optimizer
from jaxformer.tasks.translation import make_init
from jaxformer.training.optimizer import (
    configured_schedule,
    constant_schedule,
    cosine_schedule,
    inverse_sqrt_schedule,
    linear_schedule,
    path_of,
)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (1, 512**-0.5 * 4000**-1.5),
        (2000, 512**-0.5 * 2000 * 4000**-1.5),
        (4000, (512 * 4000) ** -0.5),
        (16_000, (512 * 16_000) ** -0.5),
        (100_000, 1.3975e-4),
    ],
)
def test_equation_3(step, rate):
    # optax counts from 0, the paper from 1.
    assert float(inverse_sqrt_schedule(512, 4000)(step - 1)) == pytest.approx(rate, rel=1e-4)


def adam_by_formula(gradients, rates, keep=float):
    """Kingma and Ba 2015, Algorithm 1, with the paper's beta1 0.9, beta2 0.98, eps 1e-9."""
    x, m, v = 1.0, 0.0, 0.0
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        x -= rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-9)
        m, v = keep(m), keep(v)
    return x


def run(config, gradients):
    optimizer = make_optimizer(config)
    params = jnp.asarray(1.0)
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(jnp.asarray(gradient), state, params)
        params += updates
    return float(params)


def bfloat16(x):
    return float(ml_dtypes.bfloat16(x))


@pytest.mark.parametrize(("moments", "keep"), [("float32", float), ("bfloat16", bfloat16)])
def test_adam_and_schedule_together(moments, keep):
    config = Config(
        model=ModelConfig(d_model=4, num_heads=1),
        training=TrainingConfig(warmup_steps=2, learning_rate_scale=0.5, adam_dtype=moments),
    )
    gradients = [0.3, -2.0, 5.0, 0.01]
    rates = [0.5 * 4**-0.5 * min(s**-0.5, s * 2**-1.5) for s in (1, 2, 3, 4)]
    expected = adam_by_formula(gradients, rates, keep)
    assert run(config, gradients) == pytest.approx(expected, rel=1e-5)


def test_moments_in_bfloat16_take_half_the_memory():
    params = {"a": jnp.ones((10, 10))}
    sizes = {
        moments: sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        for moments in ("float32", "bfloat16")
        for state in [
            make_optimizer(Config(training=TrainingConfig(adam_dtype=moments))).init(params)
        ]
    }
    assert sizes == {"float32": 808, "bfloat16": 408}  # both include two int32 counts


def test_clipping_scales_large_gradients_only():
    model = ModelConfig(d_model=4, num_heads=1)
    clipped = Config(model=model, training=TrainingConfig(warmup_steps=2, clip_norm=1.0))
    plain = Config(model=model, training=TrainingConfig(warmup_steps=2))
    assert run(clipped, [4.0, 0.5]) == pytest.approx(run(plain, [1.0, 0.5]), rel=1e-5)


def test_the_linear_schedule_has_the_peak_of_equation_3():
    training = TrainingConfig(
        steps=50, warmup_steps=10, learning_rate_scale=0.5, schedule="linear", eval_every=1500
    )
    peak = 0.5 * (512 * 10) ** -0.5
    rates = [peak * min(step / 10, (51 - step) / 41) for step in range(1, 51)]
    schedule = configured_schedule(training, 512)
    np.testing.assert_allclose([schedule(count) for count in range(50)], rates, rtol=1e-5)
    assert float(linear_schedule(1.0, 10, 50)(50)) == 0


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("rate", [None, 0.02])
@pytest.mark.parametrize("name", ["inverse_sqrt", "constant", "linear", "cosine"])
def test_schedules_after_a_linear_warm_up(name, rate, scale):
    training = TrainingConfig(
        steps=50, warmup_steps=10, learning_rate=rate, learning_rate_scale=scale, schedule=name
    )
    peak = scale * (rate or (512 * 10) ** -0.5)
    after = {
        "inverse_sqrt": lambda step: (10 / step) ** 0.5,
        "constant": lambda step: 1.0,
        "linear": lambda step: (51 - step) / 41,
        "cosine": lambda step: 0.5 + 0.5 * math.cos(math.pi * (step - 10) / 41),
    }[name]
    rates = [peak * (step / 10 if step < 10 else after(step)) for step in range(1, 51)]
    schedule = configured_schedule(training, 512)
    np.testing.assert_allclose([schedule(count) for count in range(50)], rates, rtol=1e-5)


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        (constant_schedule(0.3, 0), lambda step: 1.0),
        (linear_schedule(0.3, 0, 5), lambda step: (6 - step) / 6),
        (cosine_schedule(0.3, 0, 5), lambda step: 0.5 + 0.5 * math.cos(math.pi * step / 6)),
    ],
    ids=["constant", "linear", "cosine"],
)
def test_schedules_without_a_warm_up(schedule, rate):
    rates = [0.3 * rate(step) for step in range(1, 6)]
    np.testing.assert_allclose([schedule(count) for count in range(5)], rates, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adamw"}, "adamw needs training.weight_decay above 0, such as 0.01"),
        ({"schedule": "cosine", "steps": 9, "warmup_steps": 9}, "training.schedule=cosine: got 9"),
        ({"learning_rate": 0.0}, "training.learning_rate must be greater than 0"),
        ({"init_from": "gs://bucket/run"}, "expected a path on a local disk"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(UserError, match=message):
        TrainingConfig(**settings)


MODEL = ModelConfig(vocab_size=5, d_model=4, d_ff=8, num_heads=2, num_layers=2)
PARAMS = jax.tree.map(
    lambda shape: jnp.ones(shape.shape, shape.dtype),
    jax.eval_shape(make_init(MODEL), jax.random.key(0)),
)
MATRICES = ("query", "key", "value", "output", "inner", "outer")


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_weight_decay_shrinks_the_matrices_of_the_layers_only(optimizer):
    training = TrainingConfig(optimizer=optimizer, weight_decay=0.5, warmup_steps=1)
    config = Config(model=MODEL, training=training)
    transformation = make_optimizer(config)
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    updates, _ = transformation.update(zeros, transformation.init(PARAMS), PARAMS)
    rate = 4**-0.5
    for path, leaf in jax.tree.leaves_with_path(updates):
        expected = -rate * 0.5 if path[-1].key in MATRICES else 0.0
        np.testing.assert_allclose(leaf, expected, rtol=1e-6, err_msg=str(path))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_frozen_parameters_keep_their_bits_for_100_steps_and_have_no_state(optimizer):
    names = "embedding, decoder/layers/self_attention"
    training = TrainingConfig(optimizer=optimizer, weight_decay=0.5, warmup_steps=1, freeze=names)
    transformation = make_optimizer(Config(model=MODEL, training=training))

    def step(_, carry):
        params, state = carry
        updates, state = transformation.update(PARAMS, state, params)
        return optax.apply_updates(params, updates), state

    start = (PARAMS, transformation.init(PARAMS))
    params, state = jax.jit(lambda start: jax.lax.fori_loop(0, 100, step, start))(start)
    frozen = {
        path_of(path)
        for (path, leaf), before in zip(
            jax.tree.leaves_with_path(params), jax.tree.leaves(PARAMS), strict=True
        )
        if np.asarray(leaf).tobytes() == np.asarray(before).tobytes()
    }
    expected = {f"decoder/layers/self_attention/{name}" for name in MATRICES[:4]}
    assert frozen == {"embedding"} | expected
    paths = [path_of(path) for path, _ in jax.tree.leaves_with_path(state)]
    assert sum("encoder/layers/self_attention/" in path for path in paths) >= 4
    assert not [path for path in paths if any(path.endswith(name) for name in frozen)]


def test_muons_updates_are_as_large_as_adams():
    """The root mean square of an orthogonal matrix times 0.2 sqrt(its longer side) is 0.2."""
    training = TrainingConfig(optimizer="muon", warmup_steps=1)
    optimizer = make_optimizer(Config(model=MODEL, training=training))
    rng = np.random.default_rng(0)
    gradients = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape), jnp.float32), PARAMS)
    updates, _ = optimizer.update(gradients, optimizer.init(PARAMS), PARAMS)
    rate = 4**-0.5
    inner = updates["decoder"]["layers"]["feed_forward"]["inner"]
    for matrix in np.asarray(inner, np.float64) / rate:
        # After Newton-Schulz, singular values are between 0.7 and 1.2 times their ideal value.
        singular = np.linalg.svd(matrix, compute_uv=False) / (0.2 * np.sqrt(8))
        assert 0.6 < singular.min() < singular.max() < 1.3
    # The first update of Adam with Nesterov's momentum.
    ahead = 0.9 * 0.1 / (1 - 0.9**2) + 0.1 / (1 - 0.9)
    np.testing.assert_allclose(np.abs(updates["embedding"]), ahead * rate, rtol=1e-3)
