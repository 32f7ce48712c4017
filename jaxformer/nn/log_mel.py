"""Log-mel spectrograms of sound, the inputs of Whisper (Radford et al. 2022)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Float32

from jaxformer.errors import UserError

SAMPLE_RATE = 16_000  # samples per second
HOP = 160  # samples from a frame to the next: 100 frames per second
WINDOW = 400  # samples of a frame, 25 milliseconds
_LEAST_POWER = 1e-10
_RANGE = 8.0  # of the logarithms to base 10, 80 decibels

# Slaney's scale is linear up to this frequency, and logarithmic above.
_LINEAR_BELOW = 1000.0
_HERTZ_PER_MEL = 200 / 3
_MELS_PER_LOG = 27 / np.log(6.4)


def log_mel(waves: Float[Array, "B S"], num_bins: int) -> Float[Array, "B T M"]:
    """Returns the log-mel spectrograms of waves, as Whisper's feature extractor does.

    Powers of frequencies in windows of 25 milliseconds, every 10 milliseconds, are summed by mel
    filters. Their logarithms are limited to the 80 decibels below the loudest of the whole row, and
    scaled to about -1 to 1. So features depend on all samples of a row: a recording that is shorter
    than the model's input is padded with zeros before it comes here.

    Args:
      waves: Samples from -1 to 1, 16,000 a second.
      num_bins: Number of mel filters, M; 80 or 128 in Whisper.

    Returns:
      Features of one frame per 160 samples, float32.

    Raises:
      UserError: The waves are shorter than half a window.
    """
    half = WINDOW // 2
    num_samples = waves.shape[1]
    if num_samples <= half:
        raise UserError(f"log_mel: expected more than {half} samples, got {num_samples}")

    # The frame of a time is centered at it; beyond the ends, the wave is reflected.
    waves = waves.astype(jnp.float32)
    padded = jnp.pad(waves, ((0, 0), (half, half)), mode="reflect")
    logs = _mel_logs(padded, num_samples // HOP, num_bins)
    return _limit(logs, logs.max(axis=(1, 2), keepdims=True))


def long_log_mel(
    wave: Float32[np.ndarray, " S"],
    num_bins: int,
    block: int,
) -> Float32[np.ndarray, "T M"]:
    """Returns the log-mel spectrogram of a recording of any length.

    It is :func:`log_mel`'s, computed in blocks of so many frames, each with the samples around it.
    A recording that is shorter than a frame of 25 milliseconds is padded with zeros to one.
    """
    missing = max(0, WINDOW - len(wave))
    wave = np.pad(wave, (0, missing))
    num_frames = len(wave) // HOP

    # The last block is padded with silence.
    half = WINDOW // 2
    padded = np.pad(wave, half, mode="reflect")
    num_blocks = -(-num_frames // block)
    needed = num_blocks * block * HOP + WINDOW - HOP
    padded = np.pad(padded, (0, max(0, needed - len(padded))))

    blocks = []
    for first in range(0, num_frames, block):
        begin = first * HOP
        end = begin + (block - 1) * HOP + WINDOW
        blocks.append(_block_logs(padded[None, begin:end], block, num_bins))

    # Frames of padding may not be the loudest.
    logs = np.concatenate(jax.device_get(blocks), axis=1)[:, :num_frames]
    loudest = logs.max()
    features = [jax.device_get(_block_features(each, loudest)) for each in blocks]
    return np.concatenate(features, axis=1)[0, :num_frames]


def _mel_logs(padded: Float[Array, "B P"], num_frames: int, num_bins: int) -> Float[Array, "B T M"]:
    """Returns logarithms to base 10 of the powers of the first frames."""
    starts = np.arange(num_frames) * HOP
    index = starts[:, None] + np.arange(WINDOW)  # [T, W]
    frames = padded[:, index]  # [B, T, W]

    hann = jnp.asarray(_hann_window())
    spectra = jnp.fft.rfft(frames * hann)
    powers = jnp.square(spectra.real) + jnp.square(spectra.imag)  # [B, T, W/2 + 1]

    filters = jnp.asarray(mel_filters(num_bins))  # [W/2 + 1, M]
    mels = jnp.matmul(powers, filters, precision=lax.Precision.HIGHEST)  # [B, T, M]

    # Digital silence has no logarithm.
    audible = jnp.maximum(mels, _LEAST_POWER)
    return jnp.log10(audible)


_block_logs = jax.jit(_mel_logs, static_argnums=(1, 2))


def _limit(logs: Float[Array, "B T M"], loudest: Float[ArrayLike, "..."]) -> Float[Array, "B T M"]:
    """Returns features, given logarithms of powers and the largest of a recording."""
    limited = jnp.maximum(logs, loudest - _RANGE)
    return (limited + 4) / 4  # as in Whisper: about -1 to 1


_block_features = jax.jit(_limit)


@functools.cache
def mel_filters(num_bins: int) -> Float[np.ndarray, "F M"]:
    """Returns triangular filters of equal area, at equal distances in mel from 0 to 8,000 hertz.

    Slaney's scale and areas (1998), as in the library librosa.
    """
    highest = SAMPLE_RATE / 2

    # Each filter rises from the center of the one before, and falls to the center of the next.
    edges_in_mel = np.linspace(0, _mel_of(highest), num_bins + 2)
    edges = _hertz_of(edges_in_mel)
    lower = edges[:-2]
    center = edges[1:-1]
    upper = edges[2:]

    num_frequencies = 1 + WINDOW // 2
    frequencies = np.linspace(0, highest, num_frequencies)[:, None]
    rising = (frequencies - lower) / (center - lower)
    falling = (upper - frequencies) / (upper - center)
    lesser = np.minimum(rising, falling)
    triangles = np.maximum(0, lesser)  # [F, M]

    areas = (upper - lower) / 2
    filters = triangles / areas
    return filters.astype(np.float32)


def _mel_of(hertz: float) -> float:
    """Returns the mel of a frequency in the logarithmic part of the scale."""
    linear_mels = _LINEAR_BELOW / _HERTZ_PER_MEL
    return linear_mels + _MELS_PER_LOG * np.log(hertz / _LINEAR_BELOW)


def _hertz_of(mels: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Returns frequencies by their mels, in both parts of the scale."""
    linear = mels * _HERTZ_PER_MEL

    linear_mels = _LINEAR_BELOW / _HERTZ_PER_MEL
    above = mels - linear_mels
    logarithmic = _LINEAR_BELOW * np.exp(above / _MELS_PER_LOG)
    return np.where(linear < _LINEAR_BELOW, linear, logarithmic)


def _hann_window() -> Float[np.ndarray, " W"]:
    phase = 2 * np.pi * np.arange(WINDOW) / WINDOW
    window = 0.5 - 0.5 * np.cos(phase)
    return window.astype(np.float32)
