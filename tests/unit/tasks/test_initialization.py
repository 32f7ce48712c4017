"""The bias of tokens that are never generated: no probability, and a loss that can be trained."""

import jax
import numpy as np

from jaxformer.models.architecture import NEVER_GENERATED
from jaxformer.tasks.initialization import merge

SMOOTHING = 0.1
LOGITS = np.array([-100, -103, -101, 40, 0], np.float32)  # before the bias; the last two are absent
ABSENT = np.array([False, False, False, True, True])


@jax.jit
def smoothed_loss(bias):
    """Returns the label-smoothed loss of token 0, its gradient, and all probabilities."""

    def loss(bias):
        log_probs = jax.nn.log_softmax(LOGITS + bias)
        return -(1 - SMOOTHING) * log_probs[0] - SMOOTHING * log_probs.mean()

    value, gradient = jax.value_and_grad(loss)(bias)
    return value, gradient, jax.nn.softmax(LOGITS + bias)


def test_an_imported_bias_of_minus_infinity_is_finite_when_training_begins():
    imported = {"logits_bias": np.where(ABSENT, -np.inf, 0.5).astype(np.float32)}
    fresh = {"logits_bias": np.zeros(5, np.float32)}
    same = np.tile(np.arange(5), (2, 1))

    merged, _ = merge(fresh, imported, same)
    np.testing.assert_array_equal(
        merged["logits_bias"], np.where(ABSENT, np.float32(NEVER_GENERATED), 0.5)
    )


def test_its_probability_is_zero_beside_the_logits_of_gpt2_and_its_gradient_is_finite():
    bias = np.where(ABSENT, NEVER_GENERATED, 0).astype(np.float32)
    loss, gradient, probabilities = jax.device_get(smoothed_loss(bias))
    real = np.exp(LOGITS[:3].astype(np.float64) - LOGITS[0])
    assert (probabilities[ABSENT] == 0.0).all()
    np.testing.assert_allclose(probabilities[:3], real / real.sum(), rtol=1e-6)

    # The gradient of cross-entropy is the probabilities less the smoothed target.
    target = np.full(5, SMOOTHING / 5)
    target[0] += 1 - SMOOTHING
    np.testing.assert_allclose(gradient, probabilities - target, atol=1e-6)
    assert np.isfinite(loss)

    infinite, _, _ = jax.device_get(smoothed_loss(np.where(ABSENT, -np.inf, 0).astype(np.float32)))
    assert np.isinf(infinite)


def test_a_single_number_is_taken():
    """Such as the temperature of CLIP."""
    fresh = {"log_scale": np.float32(2.7), "other": np.zeros(2, np.float32)}
    saved = {"log_scale": np.float32(4.6), "other": np.ones(3, np.float32)}

    merged, lines = merge(fresh, saved, np.zeros((2, 0), int))

    assert merged["log_scale"] == np.float32(4.6)
    np.testing.assert_array_equal(merged["other"], [0, 0])
    assert lines == [
        "  taken     log_scale []",
        "  new       other [2]",
        "  left out  other [3]",
    ]
