"""The schedule of equation 3 and the paper's Adam, against hand-written ones."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxformer.config import Config, ModelConfig, TrainingConfig
from jaxformer.training.optimizer import inverse_sqrt_schedule, make_optimizer


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
        training=TrainingConfig(warmup_steps=2, learning_rate_scale=0.5, moments=moments),
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
        for state in [make_optimizer(Config(training=TrainingConfig(moments=moments))).init(params)]
    }
    assert sizes == {"float32": 808, "bfloat16": 408}  # and two int32 counts


def test_clipping_scales_large_gradients_only():
    model = ModelConfig(d_model=4, num_heads=1)
    clipped = Config(model=model, training=TrainingConfig(warmup_steps=2, clip_norm=1.0))
    plain = Config(model=model, training=TrainingConfig(warmup_steps=2))
    assert run(clipped, [4.0, 0.5]) == pytest.approx(run(plain, [1.0, 0.5]), rel=1e-5)
