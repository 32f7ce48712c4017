"""GPT-2 (Radford et al. 2019), a language model with the layers of the paper, norms first.

Other decoders of its time differ by a few settings: OPT, GPT-Neo, GPT-J, BLOOM and XGLM.
"""

import dataclasses
from typing import Literal

from jaxformer.errors import UserError, prefix_errors
from jaxformer.fields import setting
from jaxformer.models.architecture import (
    EmbeddingSettings,
    PaperArchitecture,
    StackSettings,
    check_absent_tokens,
    check_even_heads,
)
from jaxformer.models.language_model import LanguageModel
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.positions import ENCODINGS, Positions
from jaxformer.nn.precision import ComputeDtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPT2Config(PaperArchitecture):
    """The architecture of :class:`GPT2`; by default the smallest one, of 124 million parameters.

    Attributes:
      vocab_size, d_model, d_ff, num_heads, num_layers, dropout_rate, attention_dropout_rate,
        norm_position, activation, norm_epsilon, compute_dtype: As in
        :class:`~jaxformer.ModelConfig`.
      positions: "learned", or another of :class:`~jaxformer.ModelConfig`: BLOOM has "alibi", GPT-J
        "rotary", and XGLM "fairseq".
      rotary_size: Number of the first entries of a head that rotary positions rotate; all when
        None. GPT-J has 64 of 256.
      window: Maximum distance between a token and the earlier ones that it sees; None for any.
      window_every: Only every n-th layer has the window: 2 in GPT-Neo, whose odd layers see all
        earlier tokens.
      scaled_scores: Divide the dot products of attention by sqrt(d_k). GPT-Neo does not.
      is_parallel: Attention and the feed-forward network read the same input, as in GPT-J. Their
        sum has one dropout.
      attention_biases: Biases of the projections of attention: of "all", the "output" only, as in
        GPT-Neo, or "none", as in GPT-J.
      scaled_embedding: Multiply embeddings by sqrt(d_model), as in XGLM and in the paper.
      embedding_norm: Normalize embeddings, as in BLOOM.
      embedding_size: Width of embeddings, which are projected to ``d_model`` and back, as in OPT
        with 350 million parameters; ``d_model`` when None.
      embeddings: "tied", or "separate" for an output matrix of its own, as in GPT-J.
      output_bias: Add a bias to the logits, as in GPT-J.
      absent_tokens: Special tokens that the vocabulary lacks, of "pad", "bos" and "unk", separated
        by spaces; the model does not generate them.
      max_length: Maximum sequence length in tokens, and the number of learned positions.
    """

    architecture: Literal["gpt2"] = "gpt2"
    vocab_size: int = setting(50_257, "size", may_differ=True)
    d_model: int = setting(768, "size")
    d_ff: int = setting(3072, "size")
    num_heads: int = setting(12, "size")
    num_layers: int = setting(12, "size")
    dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    norm_position: Literal["post", "pre"] = "pre"
    positions: Positions = "learned"
    rotary_size: int | None = setting(None, "positive")
    window: int | None = setting(None, "positive", may_differ=True)
    window_every: int = setting(1, "positive", may_differ=True)
    scaled_scores: bool = True
    is_parallel: bool = False
    attention_biases: Literal["all", "output", "none"] = "all"
    activation: Activation = "gelu"
    scaled_embedding: bool = False
    embedding_norm: bool = False
    embedding_size: int | None = setting(None, "size")
    embeddings: Literal["tied", "separate"] = "tied"
    output_bias: bool = False
    norm_epsilon: float = setting(1e-5, "positive")
    absent_tokens: str = setting("", may_differ=True)
    max_length: int = setting(1024, "size", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_parallel and self.norm_position == "post":
            raise UserError("model.is_parallel needs model.norm_position=pre: got post")
        if self.window is None and self.window_every > 1:
            raise UserError(
                f"model.window_every={self.window_every} needs model.window, of those layers"
            )

        self._check_positions()
        check_absent_tokens(self.absent_tokens)

    def _check_positions(self) -> None:
        with prefix_errors("model"):
            # The table refuses sizes that it cannot encode.
            ENCODINGS[self.positions].table(0, self.d_model)

        size = self.rotary_size
        if self.positions == "rotary" and size is None:
            check_even_heads(self)
        if size is None:
            return

        if self.positions != "rotary":
            raise UserError(
                f"model.rotary_size={size} needs model.positions=rotary: got {self.positions}"
            )
        if size % 2 or size > self.key_size:
            raise UserError(
                "model.rotary_size must be even, and at most the size of a head, "
                f"{self.key_size}: got {size}"
            )

    def stack_settings(self) -> StackSettings:
        all_but_last = (None,) * (self.window_every - 1)
        biases = {"all": True, "output": "output", "none": False}
        return dataclasses.replace(
            super().stack_settings(),
            norm_position=self.norm_position,
            positions=self.positions,
            rotary_size=self.rotary_size,
            window=(*all_but_last, self.window) if all_but_last else self.window,
            attention_scale=None if self.scaled_scores else 1.0,
            is_parallel=self.is_parallel,
            biases=biases[self.attention_biases],
        )

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(
            positions=self.positions,
            is_scaled=self.scaled_embedding,
            has_norm=self.embedding_norm,
            dropout_rate=self.dropout_rate,
            has_bias=self.output_bias,
            absent_tokens=self.absent_tokens,
        )

    @property
    def embedding_width(self) -> int:
        return self.d_model if self.embedding_size is None else self.embedding_size

    @property
    def embedding_names(self) -> tuple[str, str, str]:
        if self.embeddings == "separate":
            return "embedding", "embedding", "output_embedding"
        return super().embedding_names


class GPT2(LanguageModel):
    """GPT-2, which is called and decodes as :class:`~jaxformer.LanguageModel` does."""

    config: GPT2Config
