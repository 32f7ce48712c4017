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
FEATURES = RNG.normal(size=(300, 8)).astype(np.float32)
EMBEDDING = RNG.normal(size=(23, 8)).astype(np.float32)
TARGETS = RNG.integers(0, 23, 300).astype(np.int32)
WEIGHTS = (RNG.random(300) < 0.8).astype(np.float32)


def by_definition(features, embedding, targets, weights, smoothing):
    """-sum q' log p with q' = (1 - eps) one_hot + eps / V, not in chunks."""
    vocab_size = embedding.shape[0]
    log_p = jax.nn.log_softmax(features @ embedding.T)  # [N, V]
    one_hot = jax.nn.one_hot(targets, vocab_size)
    smoothed = (1 - smoothing) * one_hot + smoothing / vocab_size

    losses = -(smoothed * log_p).sum(-1)
    nlls = -(one_hot * log_p).sum(-1)
    loss = (weights * losses).sum()
    nll = (weights * nlls).sum()
    return loss, nll


@functools.partial(jax.jit, static_argnums=(0, 5))
def _compute(function, features, embedding, targets, weights, smoothing):
    """Returns both sums, and the gradients of the doubled loss."""

    def doubled(features, embedding, weights):
        loss, _ = function(features, embedding, targets, weights, smoothing)
        return 2 * loss

    sums = function(features, embedding, targets, weights, smoothing)
    gradients = jax.grad(doubled, (0, 1, 2))(features, embedding, weights)
    return sums, gradients


def small_chunks():
    """Splits 300 rows into chunks of 130; the last chunk is padded."""
    small = dataclasses.replace(backend(), logits_per_chunk=23 * 130)
    return use_backend(small)


def compute(
    function=cross_entropy,
    features=FEATURES,
    targets=TARGETS,
    weights=WEIGHTS,
    eps=0.1,
):
    with small_chunks():
        results = _compute(
            function,
            features,
            EMBEDDING,
            targets,
            weights,
            eps,
        )
    return jax.device_get(results)


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
    # Rows 2n and 2n + 1 are the two passes of one target.
    targets = np.repeat(TARGETS[::2], 2)
    weights = np.repeat(WEIGHTS[::2], 2)

    def ours(features, embedding):
        loss, _ = cross_entropy(
            features,
            embedding,
            targets,
            weights=weights,
            label_smoothing=0.1,
            consistency=5.0,
        )
        return loss

    def expected(features, embedding):
        log_probs = jax.nn.log_softmax(features @ embedding.T)  # [2 N, V]
        pairs = log_probs.reshape(150, 2, 23)
        p, q = jnp.moveaxis(pairs, 1, 0)  # each [N, V]
        p_to_q = (jnp.exp(p) * (p - q)).sum(-1)
        q_to_p = (jnp.exp(q) * (q - p)).sum(-1)
        both = p_to_q + q_to_p
        divergence = (weights[::2] * both).sum()

        loss, _ = by_definition(features, embedding, targets, weights, smoothing=0.1)
        return loss + 5.0 / 2 * divergence

    def with_gradients(function):
        compiled = jax.jit(jax.value_and_grad(function, (0, 1)))
        return compiled(FEATURES, EMBEDDING)

    with small_chunks():
        loss, gradients = with_gradients(ours)
    plain, plain_gradients = with_gradients(expected)

    np.testing.assert_allclose(loss, plain, rtol=1e-5)
    for one, other in zip(gradients, plain_gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_hand_computed_value():
    # Two classes with logits (log 3, 0), so p = (3/4, 1/4); smoothing 0.2, q' = (0.9, 0.1).
    logit = np.log(3.0)
    features = np.array([[1.0]], np.float32)
    embedding = np.array([[logit], [0.0]], np.float32)
    targets = np.array([0])
    weights = np.array([1.0], np.float32)

    function = jax.jit(cross_entropy, static_argnums=4)
    loss, nll = function(
        features,
        embedding,
        targets,
        weights,
        0.2,
    )

    first = -np.log(0.75)
    second = -np.log(0.25)
    assert float(nll) == pytest.approx(first, rel=1e-5)
    assert float(loss) == pytest.approx(0.9 * first + 0.1 * second, rel=1e-5)


@pytest.mark.parametrize("target", [23, -1])
def test_a_target_outside_the_vocabulary_gives_nan_unless_its_weight_is_0(target):
    targets = TARGETS.copy()
    weights = WEIGHTS.copy()
    targets[5] = target

    weights[5] = 1
    (loss, _), gradients = compute(targets=targets, weights=weights)
    of_features = gradients[0]
    assert np.isnan(loss)
    assert np.isnan(of_features[5]).all()

    weights[5] = 0
    (loss, _), gradients = compute(targets=targets, weights=weights)
    of_features = gradients[0]
    assert np.isfinite(loss)
    assert (of_features[5] == 0).all()


def test_loss_is_float32_and_close_for_bfloat16_features():
    (exact, _), _ = compute()
    features = FEATURES.astype(jnp.bfloat16)
    (rough, _), _ = compute(features=features)

    assert rough.dtype == np.float32
    assert float(rough) == pytest.approx(float(exact), rel=0.01)


def test_no_array_of_all_logits_exists():
    rows = 64_000
    vocab_size = 8000

    def loss(features, embedding):
        loss, _ = cross_entropy(
            features,
            embedding,
            targets=jnp.zeros(rows, jnp.int32),
            weights=jnp.ones(rows),
            label_smoothing=0.1,
        )
        return loss

    features = jax.ShapeDtypeStruct((rows, 4), jnp.float32)
    embedding = jax.ShapeDtypeStruct((vocab_size, 4), jnp.float32)
    gradients = jax.jit(jax.grad(loss, (0, 1)))
    compiled = gradients.lower(features, embedding).compile()

    memory = compiled.memory_analysis()
    bytes_of_logits = rows * vocab_size * 4
    assert memory.temp_size_in_bytes < bytes_of_logits / 8


def test_contrastive_loss_over_devices_is_the_formula_of_the_whole_batch():
    """Loss, accuracy and gradients, summed over four devices (Radford et al. 2021, figure 3)."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.normal(size=shape).astype(np.float32)

    batch = (draw(8, 5), draw(8, 5))
    params = {"scale": np.float32(3), "weights": draw(5, 6)}

    def embedding(side):
        embedded = side @ params["weights"]
        return embedded / np.linalg.norm(embedded, axis=1, keepdims=True)

    # Each row is to find its partner among all of the other side.
    x, y = map(embedding, batch)
    scores = 3 * x @ y.T  # [8, 8]
    expected = 0.0
    hits = 0.0
    for logits in (scores, scores.T):
        exponentials = np.exp(logits)
        probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
        of_partners = np.log(probabilities.diagonal())
        expected -= of_partners.sum() / 2

        found = logits.argmax(axis=1)
        correct = found == np.arange(8)
        hits += correct.sum() / 2

    def loss(axis, params, batch, randomness):
        first, second = (side @ params["weights"] for side in batch)
        return contrastive_sums(
            first,
            second,
            params["scale"],
            axis=axis,
        )

    devices = jax.devices()[:4]
    mesh = make_mesh(MeshConfig(data=4), devices)
    loss_over_devices = functools.partial(loss, "data")
    step = global_sums(loss_over_devices, mesh, 1, gradients=True)
    gradients, sums = jax.jit(step)(params, batch, jax.random.key(0))
    assert float(sums["loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(sums["accuracy"]) == hits
    assert int(sums["count"]) == 8

    def loss_on_one_device(params):
        sums = loss(None, params, batch, randomness=None)
        return sums["loss"]

    expected_gradients = jax.jit(jax.grad(loss_on_one_device))(params)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected_gradients[name], atol=1e-5)


def test_class_sums():
    logits = jnp.array(
        [
            [1.0, 0.0, 2.0],
            [0.0, 3.0, 0.0],
            [5.0, 5.0, 5.0],
        ]
    )
    classes = jnp.array([2, 0, 7])
    real = jnp.array([True, True, False])

    log_p = np.asarray(jax.nn.log_softmax(logits))
    of_classes = log_p[0, 2] + log_p[1, 0]
    of_all = (log_p[0] + log_p[1]).mean()
    expected = -(0.9 * of_classes + 0.1 * of_all)

    sums = class_sums(logits, classes, real, smoothing=0.1)
    assert sums["accuracy"] == 1
    assert sums["count"] == 2
    assert sums["loss"] == pytest.approx(expected, rel=1e-6)

    # A class that does not exist, in an example that counts.
    sums = class_sums(logits, classes, ~real)
    assert jnp.isnan(sums["loss"])


def test_contrastive_loss_leaves_out_pairs_that_are_not_real():
    """Over four devices, it is the formula of the real pairs alone; the others have no gradient."""
    rng = np.random.default_rng(1)
    first = rng.normal(size=(8, 5)).astype(np.float32)
    second = rng.normal(size=(8, 5)).astype(np.float32)
    real = np.array([True, True, False, True, True, False, False, True])

    x, y = (
        side[real] / np.linalg.norm(side[real], axis=1, keepdims=True) for side in (first, second)
    )
    scores = 4 * x @ y.T  # [5, 5]
    expected = 0.0
    for logits in (scores, scores.T):
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected -= np.log(probabilities.diagonal()).sum() / 2

    def loss(params, batch, randomness):
        del randomness
        texts, is_real, number = batch
        own = params[number]
        return contrastive_sums(own, texts, jnp.float32(4), real=is_real)

    mesh = make_mesh(MeshConfig(data=4), jax.devices()[:4])
    step = global_sums(loss, mesh, 1, gradients=True)
    batch = (second, real, np.arange(8))
    gradients, sums = jax.jit(step)(first, batch, jax.random.key(0))

    assert float(sums["loss"]) == pytest.approx(expected, rel=1e-5)
    assert int(sums["count"]) == 5
    assert np.all(np.asarray(gradients)[~real] == 0)
    assert np.all(np.abs(np.asarray(gradients)[real]).max(axis=1) > 1e-3)
