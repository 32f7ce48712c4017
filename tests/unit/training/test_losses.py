"""Label-smoothed cross-entropy against its one-hot definition: values and gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn import backend, use_backend
from jaxformer.training.losses import cross_entropy


def by_definition(features, embedding, targets, weights, smoothing):
    """-sum q' log p with q' = (1 - eps) one_hot + eps / V, not in chunks."""
    log_p = jax.nn.log_softmax(features @ embedding.T)
    one_hot = jax.nn.one_hot(targets, embedding.shape[0])
    smoothed = (1 - smoothing) * one_hot + smoothing / embedding.shape[0]
    loss = -(weights * (smoothed * log_p).sum(-1)).sum()
    return loss, -(weights * (one_hot * log_p).sum(-1)).sum()


@pytest.fixture
def example():
    rng = np.random.default_rng(0)
    features, embedding = rng.normal(size=(300, 8)), rng.normal(size=(23, 8))
    return (
        jnp.asarray(features, jnp.float32),
        jnp.asarray(embedding, jnp.float32),
        jnp.asarray(rng.integers(0, 23, 300), jnp.int32),
        jnp.asarray(rng.random(300) < 0.8, jnp.float32),
    )


@pytest.fixture
def three_chunks():
    """Splits 300 rows into chunks of 130; the last chunk is padded."""
    with use_backend(dataclasses.replace(backend(), logits_per_chunk=23 * 130)):
        yield


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_sums_and_gradients(example, smoothing, three_chunks):
    actual = cross_entropy(*example, smoothing)
    expected = by_definition(*example, smoothing)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)

    def gradients(function):
        return jax.grad(lambda f, e: 2 * function(f, e, *example[2:], smoothing)[0], (0, 1))(
            *example[:2]
        )

    for ours, plain in zip(gradients(cross_entropy), gradients(by_definition), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5)


def test_hand_computed_value():
    # Two classes with logits (log 3, 0), so p = (3/4, 1/4); smoothing 0.2, q' = (0.9, 0.1).
    features, embedding = jnp.array([[1.0]]), jnp.array([[np.log(3.0)], [0.0]], jnp.float32)
    loss, nll = cross_entropy(features, embedding, jnp.array([0]), jnp.array([1.0]), 0.2)
    assert float(nll) == pytest.approx(-np.log(0.75), rel=1e-5)
    assert float(loss) == pytest.approx(-0.9 * np.log(0.75) - 0.1 * np.log(0.25), rel=1e-5)


@pytest.mark.parametrize("target", [23, -1])
def test_a_target_outside_the_vocabulary_gives_nan_unless_its_weight_is_0(example, target):
    features, embedding, targets, weights = example
    wrong = targets.at[5].set(target)

    @jax.jit
    def loss(features, weights):
        return cross_entropy(features, embedding, wrong, weights, 0.1)[0]

    value, gradient = jax.value_and_grad(loss)(features, weights.at[5].set(1.0))
    assert np.isnan(value)
    assert np.isnan(gradient[5]).all()
    value, gradient = jax.value_and_grad(loss)(features, weights.at[5].set(0.0))
    assert np.isfinite(value)
    assert (gradient[5] == 0).all()


def test_the_gradient_of_the_weights_is_the_loss_of_each_row(example):
    features, embedding, targets, weights = example
    found = jax.grad(lambda w: cross_entropy(features, embedding, targets, w, 0.1)[0])(weights)
    expected = jax.grad(lambda w: by_definition(features, embedding, targets, w, 0.1)[0])(weights)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_rows_without_weight_count_for_nothing(example):
    features, embedding, targets, weights = example
    other = features.at[weights == 0].set(7.0)
    before = cross_entropy(features, embedding, targets, weights, 0.1)
    np.testing.assert_array_equal(before, cross_entropy(other, embedding, targets, weights, 0.1))


def test_loss_is_float32_and_close_for_bfloat16_features(example):
    features, embedding, targets, weights = example
    exact, _ = cross_entropy(features, embedding, targets, weights, 0.1)
    rough, _ = cross_entropy(features.astype(jnp.bfloat16), embedding, targets, weights, 0.1)
    assert rough.dtype == jnp.float32
    assert float(rough) == pytest.approx(float(exact), rel=0.01)


def test_no_array_of_all_logits_exists():
    def loss(features, embedding):
        rows = jnp.zeros(64_000, jnp.int32), jnp.ones(64_000)
        return cross_entropy(features, embedding, *rows, 0.1)[0]

    shapes = (
        jax.ShapeDtypeStruct((64_000, 4), jnp.float32),
        jax.ShapeDtypeStruct((8000, 4), jnp.float32),
    )
    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*shapes).compile()
    whole = 64_000 * 8000 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < whole / 8
