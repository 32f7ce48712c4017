"""Texts about pictures, written by a language model that reads them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jaxformer.config import data_section, model_section
from jaxformer.data.image_texts import ImageTexts
from jaxformer.data.interleaved import InterleavedConfig
from jaxformer.data.tokenizer import EOS, UNK, Vocabulary
from jaxformer.errors import UserError
from jaxformer.inference.array_inputs import ArrayInput
from jaxformer.inference.array_predictor import ArrayPredictor
from jaxformer.inference.hypotheses import Hypothesis
from jaxformer.kinds.interleaved import INTERLEAVED
from jaxformer.models.flamingo import FlamingoConfig
from jaxformer.search import SearchContext


def pair_tokens(text: str, tokenizer: Vocabulary, picture_token: int, end: str) -> list[int]:
    """Returns the tokens of a picture and its text, up to the end of the text."""
    return [picture_token, *tokenizer.encode(text + end), EOS]


class PictureReader(ArrayPredictor):
    """Writes texts about pictures, maybe after examples of other pictures and their texts.

    >>> reader = PictureReader.load("runs/flamingo")  # doctest: +SKIP
    >>> [best] = reader.describe(images)  # doctest: +SKIP

    Attributes:
      config: The config of the run.
      params: Parameters, cast or quantized for decoding.
      models: The model, or each member of an ensemble, with its parameters.
      tokenizer: The tokenizer that the model was trained with.
      weights: Description of the checkpoint, such as "step 2000".
    """

    kinds = (INTERLEAVED,)

    @property
    def model(self) -> FlamingoConfig:
        return model_section(self.config, FlamingoConfig)

    def describe(
        self,
        images: UInt8[np.ndarray, "N Y X C"],
        examples: ImageTexts | None = None,
        *,
        max_tokens: int = 64,
    ) -> list[Hypothesis]:
        """Returns the best text for each picture.

        Args:
          images: Pictures of the size of the model's.
          examples: Pictures and their texts that every picture follows: a few-shot prompt.
          max_tokens: Most tokens of a text.

        Raises:
          UserError: Pictures are not uint8, or of another size; or the examples and a text have
            more tokens than the model reads.
        """
        data = data_section(self.config, InterleavedConfig)
        model = self.model
        prompt: list[int] = []
        shown = []
        if examples is not None:
            shown = [*self._pixels(examples.images)]
            for text in examples.texts:
                prompt += pair_tokens(text, self.tokenizer, model.picture_token, data.end)
        prompt.append(model.picture_token)
        if len(prompt) + max_tokens > model.max_length + 1:
            raise UserError(
                f"examples of {len(prompt)} tokens: the model reads {model.max_length} "
                f"(model.max_length), with {max_tokens} of the text; give fewer examples"
            )

        num_seen = np.int32(len(shown) + 1)
        inputs = []
        for number, pixels in enumerate(self._pixels(images)):
            arrays = (np.stack([*shown, pixels]), np.asarray(num_seen))
            inputs.append(ArrayInput(arrays, prompt, number))

        only_text = _OnlyText(model.picture_token)
        found = self.decode_arrays(
            inputs,
            n_best=1,
            max_tokens=max_tokens,
            constraints=(only_text,),
        )
        best = []
        for [hypothesis] in found:
            best.append(hypothesis._replace(text=hypothesis.text.strip()))
        return best

    def _pixels(self, images: Any) -> Float[np.ndarray, "N Y X C"]:
        """Returns pictures as the model takes them."""
        images = np.asarray(images)
        shape = self.model.image_shape
        has_dtype = images.dtype == np.uint8
        has_shape = images.shape[1:] == shape
        if not has_dtype or not has_shape or not len(images):
            sizes = ", ".join(map(str, shape))
            raise UserError(
                f"expected pictures, uint8 [N, {sizes}], got {images.dtype} {list(images.shape)}"
            )

        pixels = self.model.scale_pixels(images)
        return np.asarray(pixels)


@dataclasses.dataclass(frozen=True)
class _OnlyText:
    """Forbids the token that stands for a picture, and special tokens but the end."""

    picture_token: int

    def __call__(self, logits: Float[Array, "B N V"], context: SearchContext) -> Array:
        ids = jnp.arange(logits.shape[-1])
        is_end = ids == context.eos_id
        is_special = (ids <= UNK) & ~is_end
        return jnp.where(is_special | (ids == self.picture_token), -jnp.inf, logits)


def exact_matches(hypotheses: Sequence[Hypothesis], texts: Sequence[str]) -> float:
    """Returns the fraction of hypotheses that are the texts."""
    pairs = zip(hypotheses, texts, strict=True)
    return float(np.mean([hypothesis.text == text for hypothesis, text in pairs]))
