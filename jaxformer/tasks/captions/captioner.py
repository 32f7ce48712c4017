"""Writes texts about pictures with a trained model, and shows where it looks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt8

from jaxformer.data.image_texts import ImageTexts
from jaxformer.data.tokenizer import BOS, PAD
from jaxformer.errors import UserError
from jaxformer.inference.array_inputs import ArrayInput
from jaxformer.inference.hypotheses import Hypothesis
from jaxformer.inference.members import recorded_weights
from jaxformer.kinds.captioning import CAPTIONING
from jaxformer.layout import global_mesh
from jaxformer.models.captioning import (
    VisionEncoderDecoder,
    VisionEncoderDecoderConfig,
)
from jaxformer.nn.precision import dequantize
from jaxformer.tasks.captions.picture_writer import PictureWriter


class Captioner(PictureWriter):
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
    abilities = frozenset({"attention"})

    def hypotheses(
        self,
        images: UInt8[np.ndarray, "N Y X C"],
        *,
        examples: ImageTexts | None = None,
        n_best: int = 0,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[list[Hypothesis]]:
        """Returns hypotheses; see :meth:`PictureWriter.hypotheses`. There can be no examples."""
        if examples is not None:
            raise UserError("Captioner: expected no examples, which only a language model reads")
        pictures = _section(self.config.model).as_pictures(images)

        # A tokenizer may force the beginning of every text.
        prompt = (BOS, *self.tokenizer.target_start)
        inputs = []
        for number, picture in enumerate(pictures):
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
        pictures = _section(self.config.model).as_pictures(images)
        longest = max(map(len, texts))
        tokens = np.full((len(texts), longest), PAD, np.int32)
        for row, text in zip(tokens, texts, strict=True):
            row[0] = BOS
            row[1 : len(text)] = text[:-1]

        member = self.models.experts[0]
        config = _section(member.config)
        rows, columns = config.encoder_section().grid
        weights = np.asarray(_attention(config, dequantize(member.params), pictures, tokens))

        first_patch = weights.shape[-1] - rows * columns
        found = []
        for number, text in enumerate(texts):
            # [L, H, T, patches]
            to_patches = weights[:, number, :, : len(text), first_patch:]
            found.append(to_patches.reshape(*to_patches.shape[:3], rows, columns))
        return found


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
