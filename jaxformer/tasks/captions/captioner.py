"""Writes texts about pictures with a trained model, and shows where it looks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt8

from jaxformer.data.tokenizer import BOS, PAD
from jaxformer.errors import UserError
from jaxformer.inference.array_inputs import ArrayInput
from jaxformer.inference.array_predictor import ArrayPredictor
from jaxformer.inference.hypotheses import Hypothesis
from jaxformer.inference.members import recorded_weights
from jaxformer.kinds.captioning import CAPTIONING
from jaxformer.layout import global_mesh
from jaxformer.models.captioning import (
    VisionEncoderDecoder,
    VisionEncoderDecoderConfig,
)
from jaxformer.nn.precision import dequantize


class Captioner(ArrayPredictor):
    """Writes a text about each picture with a trained model.

    >>> captioner = Captioner.load("runs/read_numbers")  # doctest: +SKIP
    >>> captioner.caption(images)  # doctest: +SKIP
    ['four hundred and seven', ...]

    Attributes:
      config: The config of the first model; ``config.search`` is the search of the ensemble.
      models: The model, or each member of an ensemble, with its parameters.
      tokenizer: The tokenizer that the models were trained with.
      weights: Description of the checkpoints, such as "step 2000".
    """

    kinds = (CAPTIONING,)

    def caption(
        self,
        images: UInt8[np.ndarray, "N Y X C"],
        *,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[str]:
        """Returns the best text for each picture; arguments as for :meth:`hypotheses`."""
        found = self.hypotheses(images, n_best=1, report=report)

        texts = []
        for n_best in found:
            # Constraints may leave no hypothesis.
            text = n_best[0].text if n_best else ""
            texts.append(text)
        return texts

    def hypotheses(
        self,
        images: UInt8[np.ndarray, "N Y X C"],
        *,
        n_best: int = 0,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of every picture, best first, in the order given.

        Args:
          images: Pictures of the size in training.
          n_best: Number of hypotheses; 0 for all of the search.
          report: Called with the number of pictures in each finished batch.

        Raises:
          UserError: Pictures are not uint8, or of another size than in training.
        """
        images = self._check_pictures(images)

        # A tokenizer may force the beginning of every text.
        prompt = (BOS, *self.tokenizer.target_start)
        inputs = []
        for number, picture in enumerate(images):
            inputs.append(ArrayInput((picture,), prompt, number))
        return self.decode_arrays(inputs, n_best=n_best, report=report)

    @global_mesh(None)
    def attention(
        self,
        images: UInt8[np.ndarray, "N Y X C"],
        texts: Sequence[Sequence[int]],
    ) -> list[Float[np.ndarray, "L H T Y X"]]:
        """Returns where the first model looks as it writes the tokens of each text.

        Args:
          images: Pictures.
          texts: The tokens of a text for each picture, such as the tokens of a hypothesis.

        Returns:
          The weights of cross-attention of each layer, head and token, to each patch. What is
          missing to a sum of 1 is the weight of the class token.
        """
        images = self._check_pictures(images)
        longest = max(map(len, texts))
        tokens = np.full((len(texts), longest), PAD, np.int32)
        for row, text in zip(tokens, texts, strict=True):
            row[0] = BOS
            row[1 : len(text)] = text[:-1]

        member = self.models.experts[0]
        config = _section(member.config)
        rows, columns = config.encoder_section().grid
        weights = np.asarray(_attention(config, dequantize(member.params), images, tokens))

        found = []
        for number, text in enumerate(texts):
            to_patches = weights[:, number, :, : len(text), 1:]  # [L, H, T, patches]
            found.append(to_patches.reshape(*to_patches.shape[:3], rows, columns))
        return found

    def _check_pictures(self, images: np.ndarray) -> UInt8[np.ndarray, "N Y X C"]:
        """Returns pictures as an array; refuses another dtype or size."""
        images = np.asarray(images)
        shape = _section(self.config.model).image_shape
        has_dtype = images.dtype == np.uint8
        has_shape = images.shape[1:] == shape
        if not has_dtype or not has_shape or not len(images):
            sizes = ", ".join(map(str, shape))
            raise UserError(
                f"expected pictures, uint8 [N, {sizes}], got {images.dtype} {list(images.shape)}"
            )
        return images


def _section(config: Any) -> VisionEncoderDecoderConfig:
    assert isinstance(config, VisionEncoderDecoderConfig), "the kind has no other model"
    return config


@functools.partial(jax.jit, static_argnums=0)
def _attention(
    config: VisionEncoderDecoderConfig,
    params: PyTree,
    images: UInt8[Array, "B Y X C"],
    tokens: Int[Array, "B T"],
) -> Float[Array, "L B H T S"]:
    model = VisionEncoderDecoder(config)
    pixels = config.scale_pixels(images)
    _, recorded = model.apply({"params": params}, pixels, tokens, mutable="intermediates")
    return recorded_weights(model, recorded, "decoder", "cross_attention")
