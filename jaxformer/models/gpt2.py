"""GPT-2 (Radford et al. 2019), a language model with the layers of the paper, norms first."""

import dataclasses
from typing import Literal

from jaxformer.models.architecture import Architecture
from jaxformer.models.language_model import LanguageModel
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.precision import ComputeDtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPT2Config(Architecture):
    """The architecture of :class:`GPT2`; by default the smallest one, of 124 million parameters.

    Attributes:
      vocab_size, d_model, d_ff, num_heads, num_layers, dropout_rate, attention_dropout_rate,
        activation, norm_epsilon, compute_dtype: As in :class:`~jaxformer.ModelConfig`.
      absent_tokens: Special tokens that the vocabulary lacks, of "pad", "bos" and "unk", separated
        by spaces; the model does not generate them.
      max_length: Number of positions, which are learned.
    """

    architecture: Literal["gpt2"] = "gpt2"
    vocab_size: int = 50_257
    d_model: int = 768
    d_ff: int = 3072
    num_heads: int = 12
    num_layers: int = 12
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    activation: Activation = "gelu"
    norm_epsilon: float = 1e-5
    absent_tokens: str = ""
    max_length: int = 1024
    compute_dtype: ComputeDtype = "float32"


class GPT2(LanguageModel):
    """GPT-2, which is called and decodes as :class:`~jaxformer.LanguageModel` does."""

    config: GPT2Config
