"""Label-smoothed cross-entropy against its one-hot definition: values and gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn import backend, use_backend
from jaxformer.training.losses import class_sums, contrastive_sums, cross_entropy
from jaxformer.training.mesh import MeshConfig, make_mesh
from jaxformer.training.step import global_sums

RNG = np.random.default_rng(0)
FEATURES, EMBEDDING = (RNG.normal(size=(n, 8)).astype(np.float32) for n in (300, 23))
TARGETS = RNG.integers(0, 23, 300).astype(np.int32)
WEIGHTS = (RNG.random(300) < 0.8).astype(np.float32)


def by_definition(features, embedding, targets, weights, smoothing):
    """-sum q' log p with q' = (1 - eps) one_hot + eps / V, not in chunks."""
    log_p = jax.nn.log_softmax(features @ embedding.T)
    one_hot = jax.nn.one_hot(targets, embedding.shape[0])
    smoothed = (1 - smoothing) * one_hot + smoothing / embedding.shape[0]
    loss = -(weights * (smoothed * log_p).sum(-1)).sum()
    return loss, -(weights * (one_hot * log_p).sum(-1)).sum()


@functools.partial(jax.jit, static_argnums=(0, 5))
def _compute(function, features, embedding, targets, weights, smoothing):
    """Returns both sums, and the gradients of the doubled loss."""

    def doubled(features, embedding, weights):
        return 2 * function(features, embedding, targets, weights, smoothing)[0]

    gradients = jax.grad(doubled, (0, 1, 2))(features, embedding, weights)
    return function(features, embedding, targets, weights, smoothing), gradients


def compute(function=cross_entropy, features=FEATURES, targets=TARGETS, weights=WEIGHTS, eps=0.1):
    """Splits 300 rows into chunks of 130; the last chunk is padded."""
    with use_backend(dataclasses.replace(backend(), logits_per_chunk=23 * 130)):
        return jax.device_get(_compute(function, features, EMBEDDING, targets, weights, eps))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_sums_and_gradients(smoothing):
    """The gradient of the weights is the loss of each row."""
    sums, gradients = compute(eps=smoothing)
    expected_sums, expected_gradients = compute(by_definition, eps=smoothing)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)
    for ours, plain in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5)


def test_consistency_adds_the_symmetric_divergence_of_two_passes():
    """Liang et al. 2021, equation 3, with a weight for each target."""
    targets, weights = np.repeat(TARGETS[::2], 2), np.repeat(WEIGHTS[::2], 2)

    def ours(features, embedding):
        return cross_entropy(features, embedding, targets, weights, 0.1, 5.0)[0]

    def expected(features, embedding):
        p, q = jnp.moveaxis(jax.nn.log_softmax(features @ embedding.T).reshape(150, 2, 23), 1, 0)
        both = (jnp.exp(p) * (p - q) + jnp.exp(q) * (q - p)).sum(-1)
        divergence = 5.0 / 2 * (weights[::2] * both).sum()
        return by_definition(features, embedding, targets, weights, 0.1)[0] + divergence

    with use_backend(dataclasses.replace(backend(), logits_per_chunk=23 * 130)):
        loss, gradients = jax.jit(jax.value_and_grad(ours, (0, 1)))(FEATURES, EMBEDDING)
    plain, plain_gradients = jax.jit(jax.value_and_grad(expected, (0, 1)))(FEATURES, EMBEDDING)
    np.testing.assert_allclose(loss, plain, rtol=1e-5)
    for one, other in zip(gradients, plain_gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_hand_computed_value():
    # Two classes with logits (log 3, 0), so p = (3/4, 1/4); smoothing 0.2, q' = (0.9, 0.1).
    embedding = np.array([[np.log(3.0)], [0.0]], np.float32)
    given = np.array([[1.0]], np.float32), embedding, np.array([0]), np.array([1.0], np.float32)
    loss, nll = jax.jit(cross_entropy, static_argnums=4)(*given, 0.2)
    assert float(nll) == pytest.approx(-np.log(0.75), rel=1e-5)
    assert float(loss) == pytest.approx(-0.9 * np.log(0.75) - 0.1 * np.log(0.25), rel=1e-5)


@pytest.mark.parametrize("target", [23, -1])
def test_a_target_outside_the_vocabulary_gives_nan_unless_its_weight_is_0(target):
    targets, weights = TARGETS.copy(), WEIGHTS.copy()
    targets[5], weights[5] = target, 1
    (loss, _), gradients = compute(targets=targets, weights=weights)
    assert np.isnan(loss)
    assert np.isnan(gradients[0][5]).all()
    weights[5] = 0
    (loss, _), gradients = compute(targets=targets, weights=weights)
    assert np.isfinite(loss)
    assert (gradients[0][5] == 0).all()


def test_loss_is_float32_and_close_for_bfloat16_features():
    rough, _ = compute(features=FEATURES.astype(jnp.bfloat16))[0]
    assert rough.dtype == np.float32
    assert float(rough) == pytest.approx(float(compute()[0][0]), rel=0.01)


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


def test_contrastive_loss_over_devices_is_the_formula_of_the_whole_batch():
    """Loss, accuracy and gradients, summed over four devices (Radford et al. 2021, figure 3)."""
    rng = np.random.default_rng(0)
    batch = tuple(rng.normal(size=(8, 5)).astype(np.float32) for _ in range(2))
    params = {"scale": np.float32(3), "weights": rng.normal(size=(5, 6)).astype(np.float32)}
    x, y = (a @ params["weights"] for a in batch)
    x, y = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, y))
    expected, hits = 0.0, 0.0
    for scores in (3 * x @ y.T, 3 * y @ x.T):
        probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        expected -= np.log(probabilities.diagonal()).sum() / 2
        hits += (scores.argmax(axis=1) == np.arange(8)).sum() / 2

    def loss(axis, params, batch, randomness):
        sides = (a @ params["weights"] for a in batch)
        return contrastive_sums(*sides, params["scale"], axis)

    mesh = make_mesh(MeshConfig(data=4), jax.devices()[:4])
    step = global_sums(functools.partial(loss, "data"), mesh, 1, gradients=True)
    gradients, sums = jax.jit(step)(params, batch, jax.random.key(0))
    assert float(sums["loss"]) == pytest.approx(expected, rel=1e-5)
    assert (float(sums["accuracy"]), int(sums["count"])) == (hits, 8)
    whole = jax.jit(jax.grad(lambda params: loss(None, params, batch, None)["loss"]))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradients, whole)


def test_class_sums():
    logits = jnp.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [5.0, 5.0, 5.0]])
    classes, real = jnp.array([2, 0, 7]), jnp.array([True, True, False])
    log_p = np.asarray(jax.nn.log_softmax(logits))
    expected = -(0.9 * (log_p[0, 2] + log_p[1, 0]) + 0.1 * (log_p[0] + log_p[1]).mean())
    sums = class_sums(logits, classes, real, 0.1)
    assert (sums["accuracy"], sums["count"]) == (1, 2)
    assert sums["loss"] == pytest.approx(expected, rel=1e-6)
    assert jnp.isnan(class_sums(logits, classes, ~real)["loss"])
