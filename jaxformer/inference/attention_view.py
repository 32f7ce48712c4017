"""Attention weights of every layer and head of a trained model on one sentence."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxformer.data.tokenizer import BOS
from jaxformer.errors import UserError
from jaxformer.inference.translator import Translator
from jaxformer.models.transformer import Transformer
from jaxformer.plots.attention_page import attention_page, in_frame
from jaxformer.plots.paper_figures import PaperFigure


@dataclasses.dataclass(frozen=True)
class AttentionView:
    """A translation and its attention weights; a notebook displays it as an interactive page.

    Attributes:
      sentence: The source text.
      translation: The translation, as text.
      source: S source pieces, end-of-sentence included.
      target: T decoder input pieces, beginning-of-sentence included.
      encoder: Encoder self-attention weights, float32.
      decoder: Decoder self-attention weights, float32.
      cross: Encoder-decoder attention weights, float32.
    """

    sentence: str
    translation: str
    source: list[str]
    target: list[str]
    encoder: Float[np.ndarray, "L H S S"]
    decoder: Float[np.ndarray, "L H T T"]
    cross: Float[np.ndarray, "L H T S"]

    def part(self, kind: str) -> tuple[list[str], list[str], Float[np.ndarray, "L H Q K"]]:
        """Returns query pieces, key pieces and weights of "encoder", "decoder" or "cross"."""
        queries = self.source if kind == "encoder" else self.target
        keys = self.target if kind == "decoder" else self.source
        return (
            queries,
            keys,
            {"encoder": self.encoder, "decoder": self.decoder}.get(kind, self.cross),
        )

    def page(
        self,
        *,
        kind: str = "cross",
        layer: int | None = None,
        heads: Sequence[int] | None = None,
        figures: Mapping[int, PaperFigure] | None = None,
        figure: int | None = None,
    ) -> str:
        """Returns an interactive HTML page.

        See :func:`~jaxformer.plots.attention_page.attention_page` for arguments and errors.
        """
        return attention_page(
            self.source,
            self.target,
            self.encoder,
            self.decoder,
            self.cross,
            sentence=self.sentence,
            translation=self.translation,
            kind=kind,
            layer=layer,
            heads=heads,
            figures=figures,
            figure=figure,
        )

    def _repr_html_(self) -> str:
        return in_frame(self.page())


def record_attention(translator: Translator, sentence: str) -> AttentionView:
    """Translates a sentence and records the attention weights of every layer and head.

    Raises:
      UserError: The sentence is empty or longer than the model allows.
    """
    source = translator.encode(sentence)
    if not source:
        raise UserError("expected a sentence, got an empty one")
    tokenizer = translator.tokenizer
    found = translator.search([source])[0].tokens
    translation = found[0] if found else []
    target = [BOS, *translation[:-1]]  # decoder inputs: the token at t predicts token t + 1
    config, params = translator.models[0]
    apply = jax.jit(Transformer(config).apply, static_argnames="mutable")
    _, recorded = apply(
        {"params": params},
        jnp.asarray([source], jnp.int32),
        jnp.asarray([target], jnp.int32),
        mutable="intermediates",
    )
    stacks = jax.device_get(recorded["intermediates"])
    decoder = stacks["decoder"]["layers"]
    return AttentionView(
        sentence=sentence,
        translation=translator.decode(translation),
        source=[tokenizer.piece(i) for i in source],
        target=[tokenizer.piece(i) for i in target],
        encoder=stacks["encoder"]["layers"]["self_attention"]["weights"][0][:, 0],
        decoder=decoder["self_attention"]["weights"][0][:, 0],
        cross=decoder["cross_attention"]["weights"][0][:, 0],
    )
