"""GPT-2 (Radford et al. 2019), a language model with the layers of the paper, norms first."""

import dataclasses
from typing import Literal

from jaxformer.fields import setting
from jaxformer.models.architecture import EmbeddingSettings, PaperArchitecture, check_absent_tokens
from jaxformer.models.language_model import LanguageModel
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.precision import ComputeDtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPT2Config(PaperArchitecture):
    """The architecture of :class:`GPT2`; by default the smallest one, of 124 million parameters.

    Attributes:
      vocab_size, d_model, d_ff, num_heads, num_layers, dropout_rate, attention_dropout_rate,
        activation, norm_epsilon, compute_dtype: As in :class:`~jaxformer.ModelConfig`.
      absent_tokens: Special tokens that the vocabulary lacks, of "pad", "bos" and "unk", separated
        by spaces; the model does not generate them.
      max_length: Number of positions, which are learned.
    """

    architecture: Literal["gpt2"] = "gpt2"
    vocab_size: int = setting(50_257, "size", may_differ=True)
    d_model: int = setting(768, "size")
    d_ff: int = setting(3072, "size")
    num_heads: int = setting(12, "size")
    num_layers: int = setting(12, "size")
    dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    activation: Activation = "gelu"
    norm_epsilon: float = setting(1e-5, "positive")
    absent_tokens: str = setting("", may_differ=True)
    max_length: int = setting(1024, "size", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_absent_tokens(self.absent_tokens)

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(
            positions="learned",
            dropout_rate=self.dropout_rate,
            absent_tokens=self.absent_tokens,
        )


class GPT2(LanguageModel):
    """GPT-2, which is called and decodes as :class:`~jaxformer.LanguageModel` does."""

    config: GPT2Config
