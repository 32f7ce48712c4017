"""Bases of all sections ``model`` of a config, and special tokens that a model lacks."""

import dataclasses
import typing
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxformer.data.tokenizer import BOS, EOS, PAD, UNK
from jaxformer.errors import UserError
from jaxformer.fields import check_values
from jaxformer.nn.depth_scaling import UNSCALED, DepthScaling
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.positions import Positions
from jaxformer.nn.precision import ComputeDtype

_SPECIAL = {"pad": PAD, "eos": EOS, "bos": BOS, "unk": UNK}
# Bias of the logit of a token that is never generated. Its probability is 0 in float32, even beside
# GPT-2's logits of -100. With -inf, label smoothing would have an infinite loss, and training skips
# steps whose parameters are infinite. Workdirs of imported models, such as M2M-100, contain it.
NEVER_GENERATED = -1e4


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackSettings:
    """The layers of a stack that :func:`~jaxformer.models.assembly.make_stack` builds.

    The fields are as in :class:`~jaxformer.ModelConfig` and
    :class:`~jaxformer.models.gpt2.GPT2Config`; later models, such as ViT, have the defaults.
    Without ``has_final_norm``, the model itself normalizes the output of pre-norm layers.
    """

    num_layers: int
    layer_groups: int | None = None
    d_ff: int
    num_heads: int
    d_k: int | None = None
    d_v: int | None = None
    dropout_rate: float
    attention_dropout_rate: float
    norm_position: Literal["post", "pre"] = "pre"
    norm_epsilon: float
    has_final_norm: bool = True
    layer_scale: float | None = None
    depth_scaling: DepthScaling = UNSCALED
    positions: Positions = "learned"
    rotary_size: int | None = None
    window: int | tuple[int | None, ...] | None = None
    global_tokens: int = 0
    block_size: int | None = None
    random_blocks: int = 0
    qk_norm: bool = False
    attention_scale: float | None = None
    memory_width: int | None = None
    is_parallel: bool = False
    activation: Activation
    gated: bool = False
    biases: bool | Literal["output", "except_key"] = True
    compute_dtype: ComputeDtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingSettings:
    """The embeddings and the logits of a model of tokens.

    Attributes:
      positions: Encoding that is added to embeddings; None if the layers encode positions.
      is_scaled: Embeddings are multiplied by sqrt(d_model), as in the paper.
      has_norm: Embedding sums are normalized.
      dropout_rate: Dropout rate of embedding sums.
      has_bias: The bias of the logits is a parameter.
      absent_tokens: Special tokens that the vocabulary lacks; see :func:`absent_bias`.
    """

    positions: Positions | None = None
    is_scaled: bool = False
    has_norm: bool = False
    dropout_rate: float = 0.0
    has_bias: bool = False
    absent_tokens: str = ""


class Architecture:
    """The base of the frozen dataclasses that describe models; each model has its own.

    ``ModelConfig`` describes the paper's. A dataclass of another model has a field ``architecture``
    with its name, which selects it when a config is read. One dataclass may have several names, of
    published models that it describes. Values that are out of range, or that do not fit together,
    raise a ``UserError``.
    """

    if TYPE_CHECKING:  # Only subclasses are dataclasses, in their own order of fields.
        __dataclass_fields__: ClassVar[dict[str, Any]]

    architecture = "transformer"
    # Some models have fields for these.
    window: int | None = None
    window_every: int = 1
    vocab_size: int
    d_model: int
    d_ff: int
    num_heads: int
    num_layers: int
    norm_epsilon: float
    max_length: int
    compute_dtype: ComputeDtype

    def __post_init__(self) -> None:
        check_values(self, "model")

        fields = self.__dataclass_fields__
        if "num_heads" in fields and "d_k" not in fields:  # A head has no size of its own.
            check_divides(self, "num_heads", "d_model")

    def embedding_settings(self) -> EmbeddingSettings:
        """Returns the settings of a model of tokens."""
        raise NotImplementedError(f"{type(self).__name__} describes no model of tokens")

    @classmethod
    def architectures(cls) -> tuple[str, ...]:
        """Returns the values of the field ``architecture`` that select this class."""
        hint = typing.get_type_hints(cls).get("architecture")
        return typing.get_args(hint) or (cls.architecture,)

    @property
    def key_size(self) -> int:
        """Size of the queries and keys of a head."""
        return self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        """Size of the values of a head."""
        return self.key_size

    @property
    def kv_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.num_heads

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings of tokens."""
        return self.d_model

    @property
    def embedding_names(self) -> tuple[str, str, str]:
        """Names of the parameters of the source, target and output matrices."""
        return "embedding", "embedding", "embedding"

    @property
    def output_size(self) -> int:
        """Number of logits, and of rows of the target and output matrices."""
        return self.vocab_size

    @property
    def decoder_layers(self) -> int:
        """Number of layers of the decoder, or of the only stack."""
        return self.num_layers

    def pair_multiplications(self, src_length: int, tgt_length: int) -> int | None:
        """Returns the multiplications of the forward pass of a pair of sequences.

        None for models of the paper's layers, whose multiplications their sizes determine.
        """
        return None

    @property
    def feed_forward_matrices(self) -> int:
        """Number of matrices of a feed-forward network, to count operations."""
        return 2


class PaperArchitecture(Architecture):
    """The base of sections of models with the paper's layers, maybe with other settings."""

    dropout_rate: float
    attention_dropout_rate: float
    activation: Activation

    def stack_settings(self) -> StackSettings:
        """Returns the settings of the layers; those without a field have their defaults."""
        return StackSettings(
            num_layers=self.num_layers,
            d_ff=self.d_ff,
            num_heads=self.num_heads,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            norm_epsilon=self.norm_epsilon,
            activation=self.activation,
            compute_dtype=self.compute_dtype,
        )

    def encoder_settings(self) -> StackSettings:
        """Returns the settings of the layers of an encoder that has a decoder."""
        return self.stack_settings()

    def decoder_settings(self) -> StackSettings:
        """Returns the settings of the layers of a decoder that has an encoder."""
        return dataclasses.replace(self.stack_settings(), num_layers=self.decoder_layers)


def check_divides(
    model: Architecture,
    part: str,
    whole: str,
    advice: str = "",
) -> None:
    """Checks that one field of a model divides another."""
    given = getattr(model, part)
    size = getattr(model, whole)
    if size % given == 0:
        return

    divisors = [n for n in range(1, size + 1) if size % n == 0]
    nearest = min(divisors, key=lambda n: abs(n - given))
    raise UserError(
        f"model.{part} must divide model.{whole}={size}: got {given}; use {nearest}{advice}"
    )


def check_even_heads(model: Architecture) -> None:
    """Checks that rotary positions can rotate pairs of the entries of a head."""
    if model.key_size % 2:
        raise UserError(
            "the size of a head, model.d_k, must be even, since rotary positions turn pairs: got "
            f"{model.key_size}"
        )


def check_absent_tokens(names: str) -> None:
    """Checks the names of special tokens that a vocabulary lacks; see :func:`absent_bias`."""
    known = _SPECIAL.keys() - {"eos"}  # Without an end, generation would not stop.
    if not known.issuperset(names.split()):
        choices = ", ".join(sorted(known))
        raise UserError(
            f"model.absent_tokens must be some of {choices}, separated by spaces: got {names!r:.80}"
        )


def absent_bias(names: str, vocab_size: int) -> Float[Array, " V"] | None:
    """Returns the bias of the logits of a model whose vocabulary lacks special tokens.

    jaxformer's vocabularies have four. A foreign model's may lack some, such as "pad bos unk" in
    GPT-2's. They have rows in our tables, and must not be generated.

    >>> absent_bias("pad", 5).tolist()
    [-10000.0, 0.0, 0.0, 0.0, 0.0]
    """
    if not names:
        return None

    absent_ids = [_SPECIAL[name] for name in names.split()]
    absent = np.isin(np.arange(vocab_size), absent_ids)  # [V]
    return jnp.where(absent, jnp.float32(NEVER_GENERATED), 0.0)
