"""Texts about pictures, written by a language model that reads them."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jaxformer.config import data_section, model_section
from jaxformer.data.image_texts import ImageTexts
from jaxformer.data.interleaved import InterleavedConfig
from jaxformer.data.tokenizer import EOS, UNK, Vocabulary
from jaxformer.errors import UserError
from jaxformer.inference.array_inputs import ArrayInput
from jaxformer.inference.hypotheses import Hypothesis
from jaxformer.kinds.interleaved import INTERLEAVED
from jaxformer.models.flamingo import FlamingoConfig
from jaxformer.search import SearchContext
from jaxformer.tasks.captions.picture_writer import PictureWriter

_MOST_TOKENS = 64  # of a text, unless the search says how many


def pair_tokens(text: str, tokenizer: Vocabulary, picture_token: int, end: str) -> list[int]:
    """Returns the tokens of a picture and its text, up to the end of the text."""
    return [picture_token, *tokenizer.encode(text + end), EOS]


class Gates(NamedTuple):
    """Parameters of the gates before layers of the language model.

    Attributes:
      layers: Number of the layer after each gated block, from 1.
      attention: Gates of cross-attention.
      feed_forward: Gates of feed-forward networks.
    """

    layers: list[int]
    attention: Float[np.ndarray, "L ..."]
    feed_forward: Float[np.ndarray, "L ..."]


class PictureReader(PictureWriter):
    """Writes texts about pictures, maybe after examples of other pictures and their texts.

    >>> reader = PictureReader.load("runs/flamingo")  # doctest: +SKIP
    >>> [text] = reader.caption(images)  # doctest: +SKIP

    Attributes:
      config: The config of the run.
      params: Parameters, cast or quantized for decoding.
      models: The model, or each member of an ensemble, with its parameters.
      tokenizer: The tokenizer that the model was trained with.
      weights: Description of the checkpoint, such as "step 2000".
    """

    kinds = (INTERLEAVED,)
    abilities = frozenset({"examples", "gates"})

    @property
    def model(self) -> FlamingoConfig:
        return model_section(self.config, FlamingoConfig)

    def hypotheses(
        self,
        images: UInt8[np.ndarray, "N Y X C"],
        *,
        examples: ImageTexts | None = None,
        n_best: int = 0,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[list[Hypothesis]]:
        """Returns hypotheses; arguments and errors as for :meth:`PictureWriter.hypotheses`.

        They have at most ``config.search.max_length`` tokens, by default 64.
        """
        prompt: list[int] = []
        shown = []
        if examples is not None:
            shown = [*self._pixels(examples.images)]
            for text in examples.texts:
                prompt += self._pair_tokens(text)
        prompt.append(self.model.picture_token)

        num_seen = np.int32(len(shown) + 1)
        inputs = []
        for number, pixels in enumerate(self._pixels(images)):
            arrays = (np.stack([*shown, pixels]), np.asarray(num_seen))
            inputs.append(ArrayInput(arrays, prompt, number))

        found = self.decode_arrays(
            inputs,
            n_best=n_best,
            max_tokens=self._most_tokens(len(prompt)),
            constraints=(_OnlyText(self.model.picture_token),),
            report=report,
        )
        return [list(map(_strip, of_picture)) for of_picture in found]

    def gates(self) -> Gates:
        """Returns the gates of each gated block."""
        gated = self.params["decoder"]["gated"]
        attention = np.asarray(gated["attention_gate"], np.float32)
        every = self.model.gated_every
        return Gates(
            layers=[1 + every * number for number in range(len(attention))],
            attention=attention,
            feed_forward=np.asarray(gated["feed_forward_gate"], np.float32),
        )

    def _pair_tokens(self, text: str) -> list[int]:
        data = data_section(self.config, InterleavedConfig)
        return pair_tokens(text, self.tokenizer, self.model.picture_token, data.end)

    def _most_tokens(self, prompt_length: int) -> int:
        """Returns the most tokens of a text after a prompt."""
        most = self.config.search.max_length or _MOST_TOKENS
        longest = self.model.max_length
        if prompt_length + most > longest + 1:
            raise UserError(
                f"examples of {prompt_length} tokens: the model reads {longest} "
                f"(model.max_length), with {most} of the text; give fewer examples, or a smaller "
                "search.max_length"
            )
        return most

    def _pixels(self, images: Any) -> Float[np.ndarray, "N Y X C"]:
        """Returns pictures as the model takes them."""
        return np.asarray(self.model.scale_pixels(self.model.as_pictures(images)))


@dataclasses.dataclass(frozen=True)
class _OnlyText:
    """Forbids the token that stands for a picture, and special tokens but the end."""

    picture_token: int

    def __call__(self, logits: Float[Array, "B N V"], context: SearchContext) -> Array:
        ids = jnp.arange(logits.shape[-1])
        is_end = ids == context.eos_id
        is_special = (ids <= UNK) & ~is_end
        return jnp.where(is_special | (ids == self.picture_token), -jnp.inf, logits)


def _strip(hypothesis: Hypothesis) -> Hypothesis:
    return hypothesis._replace(text=hypothesis.text.strip())
