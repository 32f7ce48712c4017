"""Pretrains a model of speech without transcripts, by contrast (Baevski et al. 2020, section 3.2).

Masked frames are predicted: the quantized frame must be found among other masked frames of the same
recording.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Int32, PyTree

from jaxformer.config import Config, data_section, model_section
from jaxformer.data.batch import Shape
from jaxformer.data.corpus import Corpus
from jaxformer.data.sound import standardize
from jaxformer.data.speech import Recordings, SpeechConfig, list_recordings, pad_sounds
from jaxformer.errors import UserError
from jaxformer.kinds.speech_recognition import SPEECH_PRETRAINING
from jaxformer.models.wav2vec2 import Contrast, Wav2Vec2Config
from jaxformer.nn.dropout import random_bits
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.speech.speech_task import (
    SpeechTask,
    abstract_waves,
    keep_recordings,
    spans_of,
    wave_shape,
)
from jaxformer.tasks.token_task import NetworkLoss
from jaxformer.training.task import Randomness, Sums

_TEMPERATURE = 0.1  # of the cosines
_DIVERSITY = 0.1  # weight of the loss that keeps all entries of the codebooks in use


class WaveBatch(NamedTuple):
    """Recordings of a batch.

    Attributes:
      samples: Waves, padded with 0.
      lengths: Samples of each row; 0 for a row without a recording.
      numbers: Number of each recording, from which validation draws its masks.
    """

    samples: Float32[Any, "B N"]
    lengths: Int32[Any, " B"]
    numbers: Int32[Any, " B"]


class Wave(NamedTuple):
    """A recording as a model takes it, and its number."""

    samples: Float32[np.ndarray, " N"]
    number: int


@dataclasses.dataclass(frozen=True)
class Waves:
    """The recordings of a split, by their numbers."""

    recordings: Recordings
    is_standardized: bool

    def __getitem__(self, number: int) -> Wave:
        samples = self.recordings[number]
        if self.is_standardized:
            samples = standardize(samples)
        return Wave(samples, number)


class ContrastSums(NamedTuple):
    """Sums of the contrastive loss.

    Attributes:
      contrast: Cross-entropy of the right frames among the negative ones, in nats.
      diversity: Share of the entries of the codebooks that the batch leaves unused, times the
        number of masked frames.
      correct: Number of masked frames whose right frame is the most similar.
      codes: Number of entries in use, the exponential of the entropy, times the number of frames.
    """

    contrast: Float[Array, ""]
    diversity: Float[Array, ""]
    correct: Int[Array, ""]
    codes: Float[Array, ""]


def contrast_sums(
    found: Contrast,
    masked: Bool[Array, "B T"],
    negatives: Int[Array, "B T K"],
    axis: str | None = "data",
) -> ContrastSums:
    """Sums the loss over masked frames.

    Args:
      found: Predictions and quantized frames.
      masked: Frames to count.
      negatives: For each frame, other frames of its row.
      axis: Mesh axis over which ``fit`` splits the batch, whose entries in use are counted
        together; None outside of ``fit``.
    """
    predictions = _unit(found.predictions)
    targets = _unit(found.targets)
    # Cosines of all pairs of frames of a row; the right ones and the negatives are used.
    cosines = jnp.einsum("BTP,BSP->BTS", predictions, targets) / _TEMPERATURE
    right = jnp.diagonal(cosines, axis1=1, axis2=2)[..., None]  # [B, T, 1]
    others = jnp.take_along_axis(cosines, negatives, axis=2)  # [B, T, K]

    # A frame that is quantized to the same entries is no other.
    entries = found.distribution.shape[-1]
    weights = entries ** np.arange(found.codes.shape[-1])
    code = (found.codes * weights).sum(axis=-1)  # [B, T]
    all_codes = jnp.broadcast_to(code[:, None], cosines.shape)
    is_same = jnp.take_along_axis(all_codes, negatives, axis=2) == code[..., None]
    others = jnp.where(is_same, -jnp.inf, others)

    logits = jnp.concatenate([right, others], axis=-1)
    losses = jax.nn.logsumexp(logits, axis=-1) - right[..., 0]
    is_correct = (right > others).all(axis=-1)
    count = masked.sum().astype(losses.dtype)

    in_use = _entries_in_use(found.distribution, masked, axis)
    total = found.codes.shape[-1] * entries
    return ContrastSums(
        contrast=jnp.where(masked, losses, 0).sum(),
        diversity=count * (total - in_use) / total,
        correct=(is_correct & masked).sum(dtype=jnp.int32),
        codes=count * in_use,
    )


def _entries_in_use(
    distribution: Float[Array, "B T G E"],
    masked: Bool[Array, "B T"],
    axis: str | None,
) -> Float[Array, ""]:
    """Returns the exponential of the entropy of the mean distribution, of all codebooks."""
    weights = masked.astype(distribution.dtype)
    sums = (distribution * weights[..., None, None]).sum(axis=(0, 1))  # [G, E]
    count = weights.sum()
    if axis is not None:
        sums = jax.lax.psum(sums, axis)
        count = jax.lax.psum(count, axis)
    mean = sums / jnp.maximum(count, 1)
    entropies = -jax.scipy.special.xlogy(mean, mean).sum(axis=-1)
    return jnp.exp(entropies).sum()


def _unit(x: Float[Array, "B T P"]) -> Float[Array, "B T P"]:
    norm = jnp.sqrt(jnp.square(x).sum(axis=-1, keepdims=True))
    return x / jnp.maximum(norm, 1e-8)


def draw_negatives(
    key: Array,
    row_ids: Int[Array, " B"],
    masked: Bool[Array, "B T"],
    count: int,
) -> Int[Array, "B T K"]:
    """Returns other masked frames of the row, drawn uniformly, for each masked frame.

    What is returned for other frames has no meaning, nor for a row with fewer than two.
    """
    size = masked.shape[1]
    in_order = jnp.argsort(~masked, axis=1, stable=True)  # the masked ones first
    total = masked.sum(axis=1)[:, None, None]
    own = (jnp.cumsum(masked, axis=1) - 1)[..., None]  # number of a frame among the masked ones

    key_bits = jax.random.bits(key, (2,), jnp.uint32)
    bits = random_bits(key_bits, row_ids, (size, count))
    drawn = (bits % jnp.maximum(total - 1, 1).astype(jnp.uint32)).astype(jnp.int32)
    drawn = drawn + (drawn >= own)
    flat = drawn.reshape(len(masked), -1).clip(0, size - 1)
    return jnp.take_along_axis(in_order, flat, axis=1).reshape(drawn.shape)


def gumbel_noise(
    key: Array,
    row_ids: Int[Array, " B"],
    shape: tuple[int, ...],
) -> Float[Array, "B ..."]:
    """Returns noise of a Gumbel distribution, which depends on the key and the row ids alone."""
    bits = random_bits(jax.random.bits(key, (2,), jnp.uint32), row_ids, shape)
    uniform = (bits.astype(jnp.float32) + 0.5) * 2.0**-32
    uniform = uniform.clip(1e-7, 1 - 1e-7)
    return -jnp.log(-jnp.log(uniform))


class PretrainingLoss(NetworkLoss):
    """Sums the contrastive loss and the loss of diversity over masked frames."""

    def __call__(
        self,
        params: PyTree,
        batch: WaveBatch,
        randomness: Randomness | None,
    ) -> Sums:
        model: Wav2Vec2Config = self.model  # pyright: ignore[reportAssignmentType]
        # Validation always masks the same frames of a recording.
        drawn = Randomness(jax.random.key(0), batch.numbers) if randomness is None else randomness
        num_samples = batch.samples.shape[1]
        size = model.num_frames(num_samples)

        real = jnp.arange(size) < model.num_frames(batch.lengths)[:, None]
        masked = spans_of(model, drawn, num_samples) & real
        negatives = draw_negatives(
            jax.random.fold_in(drawn.key, 2), drawn.row_ids, masked, model.num_negatives
        )
        noise = None
        if randomness is not None:
            shape = (size, model.codebooks, model.codebook_entries)
            noise = gumbel_noise(jax.random.fold_in(drawn.key, 3), drawn.row_ids, shape)

        def forward(module: Any, dropout: dict[str, Any]) -> Contrast:
            return module.contrast(
                batch.samples, batch.lengths, masked=masked, noise=noise, **dropout
            )

        found = self.apply(params, randomness, forward)
        counted = masked & (masked.sum(axis=1, keepdims=True) > 1)
        sums = contrast_sums(found, counted, negatives)
        return {
            "loss": sums.contrast + _DIVERSITY * sums.diversity,
            "contrast": sums.contrast,
            "accuracy": sums.correct,
            "codes": sums.codes,
            "count": counted.sum(dtype=jnp.int32),
        }


class SpeechPretraining(SpeechTask[Waves]):
    """Trains a :class:`~jaxformer.models.wav2vec2.Wav2Vec2` on recordings without transcripts.

    Validates with the loss of a masked frame, and with the accuracy: how often the right frame is
    the most similar.
    """

    kind = SPEECH_PRETRAINING
    loss_class = PretrainingLoss
    log_formats = {  # noqa: RUF012
        "accuracy": "accuracy {:.4f}",
        "codes": "{:.1f} entries in use",
    }

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "SpeechPretraining":
        if corpus is not None:
            raise UserError("corpus: expected none with speech; name recordings in data.train")

        data = data_section(config, SpeechConfig)
        model = model_section(config, Wav2Vec2Config)
        if model.head != "contrast":
            raise UserError(
                f"model.head must be contrast with data.corpus=unlabeled_speech: got {model.head}"
            )
        if config.training.gradient_accumulation > 1:
            raise UserError(
                "training.gradient_accumulation must be 1, since the entries of the codebooks that "
                f"a batch uses are counted together: got {config.training.gradient_accumulation}"
            )

        train = Recordings(list_recordings(data.train), model.sample_rate)
        valid = Recordings(list_recordings(data.valid), model.sample_rate)
        kept = _prepare(model, train, data.max_seconds)
        return cls(
            config,
            train=kept,
            valid=_prepare(model, valid, None),
            skipped=len(train) - len(kept.recordings),
        )

    @staticmethod
    def empty_batch(model: Wav2Vec2Config, shape: Shape, examples: Waves | None) -> WaveBatch:
        rows, num_samples = wave_shape(shape, model)
        waves, lengths = abstract_waves(rows, num_samples)
        return WaveBatch(waves, lengths, numbers=lengths)

    def make_batch(
        self,
        examples: Waves,
    ) -> Callable[[Sequence[Sequence[Wave]], Shape], WaveBatch]:
        def make(rows: Sequence[Sequence[Wave]], shape: Shape) -> WaveBatch:
            num_rows, num_samples = wave_shape(shape, self._model)
            samples, lengths = pad_sounds([wave.samples for [wave] in rows], num_rows, num_samples)
            numbers = np.zeros(num_rows, np.int32)
            for row, [wave] in enumerate(rows):
                numbers[row] = wave.number
            return WaveBatch(samples, lengths, numbers)

        return make


def _prepare(model: Wav2Vec2Config, recordings: Recordings, max_seconds: float | None) -> Waves:
    keep = keep_recordings(recordings, model, max_seconds, [1] * len(recordings))
    return Waves(recordings.select(keep), model.standardized)
