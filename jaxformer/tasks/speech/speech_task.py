"""Base of the tasks of models of waves: batches of similar durations."""

import abc
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from jaxformer.config import Config, data_section, model_section
from jaxformer.data.batch import Shape
from jaxformer.data.loader import round_up
from jaxformer.data.speech import UNITS_PER_SECOND, Recordings, SpeechConfig, duration_plan
from jaxformer.errors import UserError
from jaxformer.models.wav2vec2 import Wav2Vec2Config
from jaxformer.tasks.recordings_task import ExamplesT, RecordingsTask
from jaxformer.tasks.speech.masked_spans import masked_spans
from jaxformer.training.flops import layers_flops
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import Randomness


def wave_shape(shape: Shape, model: Wav2Vec2Config) -> tuple[int, int]:
    """Returns rows and samples of a batch, given rows and units of time."""
    num_rows, units, _ = shape
    return num_rows, units * model.sample_rate // UNITS_PER_SECOND


def spans_of(
    model: Wav2Vec2Config,
    randomness: Randomness,
    num_samples: int,
) -> Bool[Array, "B T"]:
    """Returns the frames that a step masks, from another stream of random numbers than dropout."""
    return masked_spans(
        jax.random.fold_in(randomness.key, 1),
        randomness.row_ids,
        model.num_frames(num_samples),
        rate=model.mask_rate,
        length=model.mask_length,
    )


class SpeechTask(RecordingsTask[ExamplesT]):
    """Trains a model of waves, in batches of similar durations."""

    skipped_because = "too long, or too short for their text"

    def __init__(
        self,
        config: Config,
        train: ExamplesT,
        valid: ExamplesT,
        skipped: int,
    ) -> None:
        """Takes the examples, and the number of recordings of the training split without them."""
        self._model = model_section(config, Wav2Vec2Config)
        units_per_batch = data_section(config, SpeechConfig).units_per_batch
        super().__init__(
            config,
            train,
            valid,
            plan=duration_plan(
                train.recordings.units,
                units_per_batch=units_per_batch,
                seed=config.training.seed,
            ),
            valid_plan=duration_plan(
                valid.recordings.units,
                units_per_batch=units_per_batch,
                seed=None,
            ),
            skipped=skipped,
        )

    @staticmethod
    @abc.abstractmethod
    def empty_batch(model: Wav2Vec2Config, shape: Shape, examples: ExamplesT | None) -> PyTree:
        """Returns the shapes and dtypes of a batch of examples; of the longest ones if None."""

    @classmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> PyTree:
        data = data_section(config, SpeechConfig)
        model = model_section(config, Wav2Vec2Config)
        rows = round_up(data.units_per_batch // data.max_units, shards.row_multiple)
        return cls.empty_batch(model, (rows, data.max_units, data.max_units), None)

    def shapes(self, shards: BatchShards) -> Sequence[PyTree]:
        batches = []
        for rows, units, _ in self._plan.shapes:
            padded_rows = round_up(rows, shards.row_multiple)
            shape = (padded_rows, units, units)
            batches.append(self.empty_batch(self._model, shape, self._train))
        return batches

    def describe_plan(self) -> list[str]:
        plan = self._plan
        return [
            f"{plan.batches_per_epoch:,} batches an epoch in {len(plan.shapes)} shapes: "
            f"{plan.efficiency:.1%} sound, {1 - plan.efficiency:.1%} padding"
        ]

    def flops(self, batch: Any) -> int:
        rows, length = batch.samples.shape
        return recognition_flops(self._model, rows, length)


def keep_recordings(
    recordings: Recordings,
    model: Wav2Vec2Config,
    max_seconds: float | None,
    fewest_frames: Sequence[int],
) -> list[int]:
    """Returns the numbers of the recordings that are not too long, nor have too few frames.

    Raises:
      UserError: No recording is left.
    """
    keep = []
    for number, least in enumerate(fewest_frames):
        length = int(recordings.lengths[number])
        is_long = max_seconds is not None and length > max_seconds * recordings.rate
        if not is_long and model.num_frames(length) >= max(1, least):
            keep.append(number)

    if not keep:
        raise UserError(
            f"{recordings.names[0]}: no recording is left: {len(recordings):,} are longer than "
            "data.max_seconds, or have fewer frames than letters"
        )
    return keep


def abstract_waves(rows: int, samples: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Returns the shapes of the waves of a batch and of their lengths."""
    waves = jax.ShapeDtypeStruct((rows, samples), jnp.float32)
    return waves, jax.ShapeDtypeStruct((rows,), jnp.int32)


def recognition_flops(model: Wav2Vec2Config, rows: int, num_samples: int) -> int:
    """Returns the operations of a training step: of the convolutions over waves, and the layers."""
    multiplications = 0
    frames = num_samples
    channels = 1
    layers = zip(model.conv_widths, model.conv_kernels, model.conv_strides, strict=True)
    for width, kernel, stride in layers:
        frames = (frames - kernel) // stride + 1
        multiplications += frames * kernel * channels * width
        channels = width

    positions = model.position_kernel * model.d_model**2 // model.position_groups
    multiplications += frames * (channels * model.d_model + positions)
    # Forward and two gradients, each with a multiplication and an addition.
    return 6 * rows * multiplications + layers_flops(model, rows, frames)
