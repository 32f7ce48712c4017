"""LLaMA (Touvron et al. 2023), and language models with the same layers."""

import dataclasses
import functools
from typing import Literal

from flax import linen as nn

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.models.architecture import (
    Architecture,
    EmbeddingSettings,
    check_absent_tokens,
    check_divides,
    check_even_heads,
)
from jaxformer.models.language_model import LanguageModel
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.block import Block, Residual
from jaxformer.nn.feed_forward import Activation, FeedForward
from jaxformer.nn.norm import RMSNorm
from jaxformer.nn.positions import (
    LinearScaling,
    Llama3Scaling,
    RotaryScaling,
    rotary_positions,
)
from jaxformer.nn.precision import ComputeDtype
from jaxformer.nn.stack import Stack


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig(Architecture):
    """The architecture of :class:`Llama`; by default LLaMA's with 7 billion parameters.

    Fields that are not listed are as in :class:`~jaxformer.models.gpt2.GPT2Config`.

    Attributes:
      num_kv_heads: Number of heads of the keys and values, a divisor of ``num_heads``, which is
        meant when None.
      d_k: Size of a head; ``d_model / num_heads`` when None.
      qk_norm: Normalize the queries and keys of each head before they are rotated, as in Qwen3; see
        :class:`~jaxformer.ModelConfig`.
      attention_biases: Add biases to attention projections.
      feed_forward_biases: Add biases to feed-forward networks.
      embeddings: "separate" for an output matrix of its own, or "tied".
      norm_unit_offset: Scale by 1 plus the parameter of each norm, as in Gemma.
      scaled_embedding: Multiply embeddings by sqrt(d_model), as in Gemma and in the paper.
      rotary_base: Base of the rotary positions; a larger one tells positions further apart.
      rotary_scaling: Change of the frequencies of rotary positions, to read longer texts than the
        model was trained with: "none", "linear" for all of them, or "llama3" for the low ones, as
        in LLaMA 3.1; see :class:`~jaxformer.nn.positions.Llama3Scaling`.
      rotary_factor: Number that frequencies are divided by.
      rotary_low_turns, rotary_high_turns, rotary_original_length: Fields of the scaling "llama3".
      window: Maximum distance between a token and the earlier ones that it sees, as in Mistral
        (Jiang et al. 2023); None for any.
      max_length: Maximum sequence length in tokens.
    """

    architecture: Literal["llama"] = "llama"
    vocab_size: int = setting(32_000, "size", may_differ=True)
    d_model: int = setting(4096, "size")
    d_ff: int = setting(11_008, "size")
    num_heads: int = setting(32, "size")
    num_kv_heads: int | None = setting(None, "positive")
    d_k: int | None = setting(None, "size")
    num_layers: int = setting(32, "size")
    attention_dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    activation: Activation = "swish"
    qk_norm: bool = False
    attention_biases: bool = False
    feed_forward_biases: bool = False
    embeddings: Literal["tied", "separate"] = "separate"
    norm_epsilon: float = setting(1e-6, "positive")
    norm_unit_offset: bool = False
    scaled_embedding: bool = False
    rotary_base: float = setting(10_000.0, "positive")
    rotary_scaling: Literal["none", "linear", "llama3"] = "none"
    rotary_factor: float = setting(1.0, "positive")
    rotary_low_turns: float = setting(1.0, "positive")
    rotary_high_turns: float = setting(4.0, "positive")
    rotary_original_length: int = setting(8192, "size")
    window: int | None = setting(None, "positive", may_differ=True)
    absent_tokens: str = setting("", may_differ=True)
    max_length: int = setting(2048, "size", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_k is None:
            check_divides(self, "num_heads", "d_model")
        if self.num_kv_heads is not None:
            check_divides(self, "num_kv_heads", "num_heads")

        # All layers have rotary positions.
        check_even_heads(self)
        self._check_scaling()
        check_absent_tokens(self.absent_tokens)

    def _check_scaling(self) -> None:
        if self.rotary_scaling == "none" and self.rotary_factor != 1:
            raise UserError(
                "model.rotary_factor needs model.rotary_scaling=linear or llama3: got "
                f"{self.rotary_factor:g} without"
            )
        if self.rotary_low_turns >= self.rotary_high_turns:
            raise UserError(
                "model.rotary_low_turns must be less than model.rotary_high_turns: got "
                f"{self.rotary_low_turns:g} and {self.rotary_high_turns:g}"
            )

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(
            is_scaled=self.scaled_embedding,
            absent_tokens=self.absent_tokens,
        )

    def make_rotary_scaling(self) -> RotaryScaling | None:
        """Returns the change of the frequencies of rotary positions; None without any."""
        if self.rotary_scaling == "linear":
            return LinearScaling(self.rotary_factor)
        if self.rotary_scaling == "llama3":
            return Llama3Scaling(
                self.rotary_factor,
                low_turns=self.rotary_low_turns,
                high_turns=self.rotary_high_turns,
                original_length=self.rotary_original_length,
            )
        return None

    @property
    def key_size(self) -> int:
        return super().key_size if self.d_k is None else self.d_k

    @property
    def kv_heads(self) -> int:
        return super().kv_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def embedding_names(self) -> tuple[str, str, str]:
        if self.embeddings == "separate":
            return "embedding", "embedding", "output_embedding"
        return super().embedding_names

    @property
    def feed_forward_matrices(self) -> int:
        return 3


class Llama(LanguageModel):
    """LLaMA, which is called and decodes as :class:`~jaxformer.LanguageModel` does."""

    config: LlamaConfig

    @nn.nowrap
    def _make_decoder(self) -> Stack:
        c = self.config
        make_norm = functools.partial(RMSNorm, c.norm_epsilon, c.norm_unit_offset)
        encode_positions = functools.partial(
            rotary_positions,
            base=c.rotary_base,
            scaling=c.make_rotary_scaling(),
        )

        self_attention = MultiHeadAttention(
            c.num_heads,
            d_k=c.key_size,
            d_v=c.key_size,
            use_bias=c.attention_biases,
            dropout_rate=c.attention_dropout_rate,
            encode_positions=encode_positions,
            num_kv_heads=c.num_kv_heads,
            make_qk_norm=make_norm if c.qk_norm else None,
            compute_dtype=c.compute_dtype,
        )
        feed_forward = FeedForward(
            c.d_ff,
            c.activation,
            c.compute_dtype,
            use_bias=c.feed_forward_biases,
            gated=True,
        )
        block = Block(
            self_attention=self_attention,
            feed_forward=feed_forward,
            make_residual=functools.partial(Residual, "pre", 0.0, make_norm),
        )

        return Stack(
            layers=block,
            num_layers=c.num_layers,
            final_norm=make_norm,
            window=c.window,
            remat=self.remat,
        )
