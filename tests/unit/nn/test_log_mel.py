"""Log-mel spectrograms against the feature extractor of transformers."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn.log_mel import SAMPLE_RATE, log_mel, long_log_mel, mel_filters

from ...fixtures.waves import random_wave

FIXTURE = pathlib.Path(__file__).parents[2] / "fixtures" / "whisper" / "log_mels.npz"
WINDOW = 30 * SAMPLE_RATE


@functools.cache
def waves():
    """Returns the waves of the fixture, padded with zeros or cut to 30 seconds."""
    rows = np.zeros((2, WINDOW), np.float32)
    for row, wave in zip(rows, [random_wave(1.03, seed=1), random_wave(31, seed=2)], strict=True):
        length = min(len(wave), WINDOW)
        row[:length] = wave[:length]
    return rows


@pytest.mark.parametrize("num_bins", [80, 128])
def test_equals_transformers(num_bins):
    stored = np.load(FIXTURE)
    features = np.asarray(jax.jit(log_mel, static_argnums=1)(waves(), num_bins))
    assert features.shape == (2, 3000, num_bins)

    found = features[:, stored["frames"]]
    np.testing.assert_allclose(found, stored[f"mels_{num_bins}"], atol=1e-4)


def test_a_long_recording_is_computed_in_blocks():
    """The loudest of its first frames limits the last ones; a short one is padded."""
    wave = random_wave(1.03, seed=1)
    wave[4000:] *= 1e-5
    [expected] = np.asarray(jax.jit(log_mel, static_argnums=1)(wave[None], 80))
    found = long_log_mel(wave, 80, block=40)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-5)

    assert long_log_mel(wave[:7], 80, block=40).shape == (2, 80)


def test_filters_have_equal_areas():
    """Each is a triangle, whose area in hertz is 1 up to the resolution of the spectrum."""
    filters = mel_filters(80)
    resolution = SAMPLE_RATE / 2 / (len(filters) - 1)
    wide = filters[:, 60:]  # of many frequencies each
    np.testing.assert_allclose(wide.sum(axis=0) * resolution, 1, atol=0.03)


def test_refuses_waves_shorter_than_half_a_window():
    with pytest.raises(UserError, match=r"^log_mel: .* more than 200 samples, got 200$"):
        log_mel(jnp.zeros((1, 200)), 80)
