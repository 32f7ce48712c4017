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
from jaxformer.layout import global_mesh
from jaxformer.models.transformer import Transformer
from jaxformer.plots.attention_page import attention_page, in_frame
from jaxformer.plots.paper_figures import PaperFigure


@dataclasses.dataclass(frozen=True)
class AttentionView:
    """A translation and its attention weights; a notebook displays it as an interactive page.

    Attributes:
      sentence: The source text.
      translation: The translation, as text.
      source: S source tokens, end-of-sentence included.
      target: T decoder input tokens, beginning-of-sentence included.
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

    def weights_of(self, kind: str) -> tuple[list[str], list[str], Float[np.ndarray, "L H Q K"]]:
        """Returns query tokens, key tokens and weights of one kind of attention.

        Args:
          kind: "encoder" or "decoder" self-attention, or "cross", encoder-decoder attention.

        Raises:
          UserError: There is no such kind.
        """
        kinds = {
            "encoder": (self.source, self.source, self.encoder),
            "decoder": (self.target, self.target, self.decoder),
            "cross": (self.target, self.source, self.cross),
        }
        if kind not in kinds:
            raise UserError(f"kind must be one of {', '.join(kinds)}: got {kind!r}")
        return kinds[kind]

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


@global_mesh(None)
def record_attention(translator: Translator, sentence: str) -> AttentionView:
    """Translates a sentence and records the attention weights of every layer and head.

    Args:
      translator: Its search finds the translation. Of an ensemble, the first model's attention is
        recorded.
      sentence: Source text.

    Raises:
      UserError: The sentence is empty or longer than the model allows.
    """
    source = translator.source_ids(sentence)
    if not source:
        raise UserError("expected a sentence, got an empty one")
    tokenizer = translator.tokenizer
    found = translator.translate_ids([source])[0].tokens
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
        translation=translator.detokenize(translation),
        source=[tokenizer.piece(i) for i in source],
        target=[tokenizer.piece(i) for i in target],
        encoder=stacks["encoder"]["layers"]["self_attention"]["weights"][0][:, 0],
        decoder=decoder["self_attention"]["weights"][0][:, 0],
        cross=decoder["cross_attention"]["weights"][0][:, 0],
    )
