"""The config of a model, and the stacks and embeddings that models build from it."""

import dataclasses
import functools
import inspect
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.errors import UserError, prefix_errors
from jaxformer.fields import check_positive
from jaxformer.models.architecture import Architecture, absent_bias, check_divides, check_even_heads
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.block import Block, Residual
from jaxformer.nn.embedding import Embedding
from jaxformer.nn.feed_forward import Activation, FeedForward
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import Role, parameter
from jaxformer.nn.positions import ENCODINGS, PositionalEncoding, Positions
from jaxformer.nn.precision import ComputeDtype, Int8Matrix
from jaxformer.nn.stack import Remat, Stack


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(Architecture):
    """The architecture (section 3 of the paper).

    Attributes:
      vocab_size: Size of the vocabulary, which source and target share.
      d_model: Width of the output of every sub-layer.
      d_ff: Inner width of the feed-forward networks (equation 2).
      num_heads: Number of attention heads, ``h``.
      num_layers: Number of encoder layers, and of decoder layers, ``N``.
      d_k: Size of the queries and keys of a head; ``d_model / num_heads`` when None.
      d_v: Size of the values of a head; ``d_model / num_heads`` when None.
      dropout_rate: Dropout rate of sub-layer outputs and of embedding sums, ``P_drop``.
      attention_dropout_rate: Dropout rate of attention weights; the paper has none.
      norm_position: "post" as in the paper, LayerNorm(x + Sublayer(x)), or "pre".
      positions: "sinusoidal" as in section 3.5, "tensor2tensor" as in the authors' own code,
        "fairseq" the same from position 2 on, "learned" (Table 3, row E), or one of three that add
        nothing to embeddings, and act on self-attention: "rotary" rotates queries and keys, "alibi"
        lowers scores in proportion to the distance, "relative" learns a bias for each distance.
      window: Maximum distance, in tokens, at which self-attention sees other tokens; None for no
        limit. With a window, time and memory of attention are proportional to the length.
      activation: Activation of the feed-forward networks: "relu" as in equation 2, "gelu" (the
        approximation with tanh), "gelu_exact" or "swish".
      biases: Add biases to attention projections and output logits. The paper has none; some other
        systems do.
      embeddings: "tied" as in section 3.4, one matrix for source, target and output, or "separate".
      target_vocab_size: Size of the target and output matrices if they are separate; ``vocab_size``
        when None. Targets use the first ids of the vocabulary, such as the brackets of trees.
      norm_epsilon: Added to the variance in layer normalization.
      max_length: Maximum sequence length in tokens. Bounds the memory that translation takes and
        sets the size of learned positions.
      compute_dtype: Dtype of the inputs of matrix multiplications. Sums, softmax, layer norm
        statistics and the loss are always float32. "int8" quantizes the parameters and inputs of
        matmuls, for decoding only. Accelerators multiply float32 in reduced precision by default;
        set ``JAX_DEFAULT_MATMUL_PRECISION=highest`` for full precision.
    """

    vocab_size: int = 37_000
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    num_layers: int = 6
    d_k: int | None = None
    d_v: int | None = None
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.0
    norm_position: Literal["post", "pre"] = "post"
    positions: Positions = "sinusoidal"
    window: int | None = None
    activation: Activation = "relu"
    biases: bool = False
    embeddings: Literal["tied", "separate"] = "tied"
    target_vocab_size: int | None = None
    norm_epsilon: float = 1e-6
    max_length: int = 1024
    compute_dtype: ComputeDtype = "float32"

    has_scaled_embeddings = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "model", "window", "d_k", "d_v")
        if None in (self.d_k, self.d_v):
            check_divides(self, "num_heads", "d_model", ", or set model.d_k and model.d_v")
        if (size := self.target_vocab_size) is not None:
            if self.embeddings == "tied":
                raise UserError(
                    "model.target_vocab_size needs model.embeddings=separate: one matrix for both "
                    "sides has one size"
                )
            if not 1 <= size <= self.vocab_size:
                raise UserError(
                    "model.target_vocab_size must be from 1 to model.vocab_size="
                    f"{self.vocab_size}, since targets use its first ids: got {size}"
                )
        if self.positions == "rotary":
            check_even_heads(self)
        with prefix_errors("model"):
            ENCODINGS[self.positions].table(0, self.d_model)  # refuses sizes that it cannot encode

    @property
    def embedding_names(self) -> tuple[str, str, str]:
        if self.embeddings == "separate":
            return "src_embedding", "tgt_embedding", "output_embedding"
        return super().embedding_names

    @property
    def value_size(self) -> int:
        """Size of the values of a head, with the default applied."""
        return self.d_model // self.num_heads if self.d_v is None else self.d_v


def make_stack(
    config: Any,  # a ModelConfig, or a section with its attributes
    *,
    causal: bool = False,
    cross_attention: bool = False,
    self_attention: nn.Module | None = None,
    remat: Remat = "none",
) -> Stack:
    """Returns the stack of an encoder, a decoder or a language model.

    With ``causal``, tokens see only earlier tokens; with ``cross_attention``, also a memory.
    ``self_attention`` replaces the paper's.
    """
    c, encoding = config, ENCODINGS[config.positions]
    make_attention = functools.partial(
        MultiHeadAttention,
        num_heads=c.num_heads,
        d_k=c.d_k,
        d_v=c.d_v,
        use_bias=c.biases,
        dropout_rate=c.attention_dropout_rate,
        compute_dtype=c.compute_dtype,
    )
    make_norm, make_bias = functools.partial(LayerNorm, c.norm_epsilon), encoding.make_bias
    block = Block(
        self_attention=self_attention or make_attention(encode_positions=encoding.rotate),
        cross_attention=make_attention() if cross_attention else None,
        feed_forward=FeedForward(c.d_ff, c.activation, c.compute_dtype),
        make_residual=functools.partial(Residual, c.norm_position, c.dropout_rate, make_norm),
    )
    return Stack(
        block,
        c.decoder_layers if cross_attention else c.num_layers,
        final_norm=make_norm if c.norm_position == "pre" else None,
        window=c.window,
        make_bias=make_bias and functools.partial(make_bias, c.num_heads, causal),
        remat=remat,
    )


class Model(nn.Module):
    """The base of all models, which have a config; its annotation is the class ``section``."""

    config: Any
    remat: Remat = "none"

    section: ClassVar[type[Architecture]] = ModelConfig

    def __init_subclass__(cls, **options: Any) -> None:
        cls.section = inspect.get_annotations(cls).get("config", cls.section)
        super().__init_subclass__(**options)

    @nn.nowrap
    def _check_config(self) -> None:
        if not isinstance(c := self.config, self.section):
            advice = "; give config.model" if hasattr(c, "model") else ""
            owner, expected, given = type(self).__name__, self.section.__name__, type(c).__name__
            article = "an" if expected[0] in "AEIOU" else "a"
            raise UserError(f"{owner}: expected {article} {expected}, got {given}{advice}")

    @nn.nowrap
    def _make_linear(
        self, name: str, outputs: int, axes: tuple = (), inputs: int | None = None
    ) -> tuple[Any, Any]:
        """Creates a matrix and its bias; a matrix with named axes may be quantized."""
        glorot, shape = nn.initializers.xavier_uniform(), (inputs or self.config.d_model, outputs)
        matrix = parameter(self, name, glorot, shape, axes, "matrix" if axes else "vector")
        return matrix, parameter(self, f"{name}_bias", nn.initializers.zeros, shape[1:])


class TokenModel(Model):
    """The base of models of tokens, with the building blocks of their ``setup``.

    ``setup`` creates the embeddings; a subclass also assigns ``logits_bias``.
    """

    def setup(self) -> None:
        self._check_config()
        c = self.config
        sizes = zip(c.embedding_names, (c.vocab_size, c.output_size, c.output_size), strict=True)
        tables = {name: self._make_table(name, size) for name, size in dict(sizes).items()}
        self.src_table, self.tgt_table, self.output_table = (tables[n] for n in c.embedding_names)

    @nn.nowrap
    def _make_table(
        self, name: str, size: int, axes: tuple = ("vocab", "d_model"), role: Role = "table"
    ) -> Any:
        """Creates an embedding that has unit variance after multiplication by sqrt(d_model)."""
        normal = nn.initializers.normal(stddev=self.config.d_model**-0.5)
        return parameter(self, name, normal, (size, self.config.d_model), axes, role)

    @nn.nowrap
    def _make_embedding(self, table: Any, positions: str) -> Embedding:
        """Returns an embedding; ``positions`` is the name of the parameter of learned positions."""
        c, learned = self.config, None
        encoding = ENCODINGS.get(c.positions, PositionalEncoding())
        if encoding.is_learned:
            learned = self._make_table(positions, c.max_length, axes=(), role="vector")

        def encode(length: int) -> Any:
            return encoding.table(length, c.d_model) if learned is None else learned

        encodings = None if c.positions is None else encode
        return Embedding(table, encodings, c.max_length, c.compute_dtype, c.has_scaled_embeddings)

    @nn.nowrap
    def _make_logits_bias(self) -> Any:
        """Returns the bias of the output logits: of absent tokens, or a parameter, or None."""
        c, zeros = self.config, nn.initializers.zeros
        if (absent := getattr(c, "absent_tokens", None)) is not None:
            return absent_bias(absent, c.vocab_size)
        return parameter(self, "logits_bias", zeros, (c.output_size,)) if c.biases else None

    def output_projection(self) -> tuple[Float[Array, "V D"], Float[Array, " V"] | None]:
        """Returns matrix and bias of the logits of tokens, for losses that do not store logits.

        Raises:
          ValueError: The parameters are quantized to int8, which cannot be trained.
        """
        if isinstance(self.output_table, Int8Matrix):
            raise ValueError("parameters are quantized to int8: expected the original ones")
        return jnp.asarray(self.output_table), self.logits_bias
