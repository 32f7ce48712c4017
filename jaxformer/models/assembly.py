"""The config of a model, and the stacks and embeddings that models build from it."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.errors import UserError, prefix_errors
from jaxformer.fields import setting
from jaxformer.models.architecture import (
    Architecture,
    EmbeddingSettings,
    PaperArchitecture,
    StackSettings,
    absent_bias,
    check_divides,
    check_even_heads,
)
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.block import Block, Residual
from jaxformer.nn.block_pattern import BlockPattern
from jaxformer.nn.depth_scaling import (
    DepthScalings,
    scaling_of_decoder,
    scaling_of_encoder,
    scaling_of_stack,
)
from jaxformer.nn.embedding import Embedding
from jaxformer.nn.feed_forward import Activation, FeedForward
from jaxformer.nn.global_attention import GlobalAttention
from jaxformer.nn.norm import Identity, LayerNorm, RMSNorm
from jaxformer.nn.parameters import Role, parameter
from jaxformer.nn.positions import ENCODINGS, PositionalEncoding, Positions
from jaxformer.nn.precision import ComputeDtype, Int8Matrix
from jaxformer.nn.rematerialization import Remat
from jaxformer.nn.stack import Stack


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(PaperArchitecture):
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
      depth_scaling: Factors for deep stacks. "deepnorm", for norm_position "post": multiplies x by
        a constant above 1, and initial values by one below (Wang et al. 2022). "gpt2" divides the
        initial matrices before each addition by the square root of their number in the stack.
      positions: "sinusoidal" as in section 3.5, "tensor2tensor" as in the authors' own code,
        "fairseq" the same from position 2 on, "learned" (Table 3, row E), or one of three that add
        nothing to embeddings, and act on self-attention: "rotary" rotates queries and keys, "alibi"
        lowers scores in proportion to the distance, "relative" learns a bias for each distance.
      window: Maximum distance, in tokens, at which self-attention sees other tokens; None for no
        limit. With a window, time and memory of attention are proportional to the length.
      qk_norm: Normalize the queries and keys of each head, before rotary positions, to a root mean
        square of 1 times a learned scale, which all heads of a layer share: "QK-norm" (Henry et al.
        2020; Dehghani et al. 2023), which bounds the scores. The paper has none.
      activation: Activation of the feed-forward networks: "relu" as in equation 2, "gelu" (the
        approximation with tanh), "gelu_exact", "quick_gelu" (with a sigmoid), "swish" or "tanh".
      biases: Add biases to attention projections and output logits. The paper has none; some other
        systems do.
      embeddings: "tied" as in section 3.4, one matrix for source, target and output, or "separate".
      target_vocab_size: Size of the target and output matrices if they are separate; ``vocab_size``
        when None. Targets use the first ids of the vocabulary, such as the brackets of trees.
      norm_epsilon: Added to the variance in layer normalization, and to the mean square of QK-norm.
      max_length: Maximum sequence length in tokens. Bounds the memory that translation takes and
        sets the size of learned positions.
      compute_dtype: Dtype of the inputs of matrix multiplications. Sums, softmax, layer norm
        statistics and the loss are always float32. "float16" has more digits than "bfloat16" and a
        smaller range: training scales the loss, see docs/precision.md. "float8", for training
        only, rounds inputs and parameters to e4m3 and gradients to e5m2. "int8" quantizes the
        parameters and inputs of matmuls, for decoding only. Accelerators multiply float32 in
        reduced precision by default; set ``JAX_DEFAULT_MATMUL_PRECISION=highest`` for full
        precision.
    """

    vocab_size: int = setting(37_000, "size", may_differ=True, is_usual=True)
    d_model: int = setting(512, "size", is_usual=True)
    d_ff: int = setting(2048, "size")
    num_heads: int = setting(8, "size")
    num_layers: int = setting(6, "size", is_usual=True)
    d_k: int | None = setting(None, "size")
    d_v: int | None = setting(None, "size")
    dropout_rate: float = setting(0.1, "fraction", may_differ=True, is_usual=True)
    attention_dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    norm_position: Literal["post", "pre"] = "post"
    depth_scaling: DepthScalings = "none"
    positions: Positions = "sinusoidal"
    window: int | None = setting(None, "positive", may_differ=True)
    qk_norm: bool = False
    activation: Activation = "relu"
    biases: bool = setting(False, may_differ=True)
    embeddings: Literal["tied", "separate"] = "tied"
    target_vocab_size: int | None = setting(None, "own", may_differ=True)
    norm_epsilon: float = setting(1e-6, "positive")
    max_length: int = setting(1024, "size", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if None in (self.d_k, self.d_v):
            check_divides(self, "num_heads", "d_model", ", or set model.d_k and model.d_v")
        self._check_target_vocab_size()
        if self.depth_scaling == "deepnorm" and self.norm_position != "post":
            raise UserError(
                "model.depth_scaling=deepnorm needs model.norm_position=post: got "
                f"{self.norm_position}; gpt2 is for both"
            )

        if self.positions == "rotary":
            check_even_heads(self)
        with prefix_errors("model"):
            # The table refuses sizes that it cannot encode.
            ENCODINGS[self.positions].table(0, self.d_model)

    def _check_target_vocab_size(self) -> None:
        size = self.target_vocab_size
        if size is None:
            return

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

    def stack_settings(self) -> StackSettings:
        return dataclasses.replace(
            super().stack_settings(),
            d_k=self.d_k,
            d_v=self.d_v,
            norm_position=self.norm_position,
            depth_scaling=scaling_of_stack(self.depth_scaling, self.num_layers),
            positions=self.positions,
            window=self.window,
            qk_norm=self.qk_norm,
            biases=self.biases,
        )

    def encoder_settings(self) -> StackSettings:
        scaling = scaling_of_encoder(self.depth_scaling, self.num_layers, self.decoder_layers)
        return dataclasses.replace(super().encoder_settings(), depth_scaling=scaling)

    def decoder_settings(self) -> StackSettings:
        scaling = scaling_of_decoder(self.depth_scaling, self.decoder_layers)
        return dataclasses.replace(super().decoder_settings(), depth_scaling=scaling)

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(
            positions=self.positions,
            is_scaled=True,
            dropout_rate=self.dropout_rate,
            has_bias=self.biases,
        )

    @property
    def embedding_names(self) -> tuple[str, str, str]:
        if self.embeddings == "separate":
            return "src_embedding", "tgt_embedding", "output_embedding"
        return super().embedding_names

    @property
    def key_size(self) -> int:
        return super().key_size if self.d_k is None else self.d_k

    @property
    def value_size(self) -> int:
        """Size of the values of a head, with the default applied."""
        return self.d_model // self.num_heads if self.d_v is None else self.d_v

    @property
    def output_size(self) -> int:
        return super().output_size if self.target_vocab_size is None else self.target_vocab_size


def make_stack(
    settings: StackSettings,
    *,
    causal: bool = False,
    cross_attention: bool = False,
    self_attention: nn.Module | None = None,
    make_bias: Callable[[], nn.Module] | None = None,
    has_own_biases: bool = False,
    remat: Remat = "none",
) -> Stack:
    """Returns the stack of an encoder, a decoder or a language model.

    A section ``model`` returns the settings, as in ``make_stack(ModelConfig().stack_settings())``.
    With ``causal``, tokens see only earlier tokens; with ``cross_attention``, also a memory.
    ``self_attention`` replaces the paper's. ``make_bias`` creates the module of the bias of scores,
    in place of the positions' own: for all layers, or with ``has_own_biases`` for each layer.
    """
    c = settings
    encoding = ENCODINGS[c.positions]
    make_norm = functools.partial(LayerNorm, c.norm_epsilon)
    make_qk_norm = functools.partial(RMSNorm, c.norm_epsilon)
    make_attention = functools.partial(
        GlobalAttention if c.global_tokens else MultiHeadAttention,
        num_heads=c.num_heads,
        d_k=c.d_k,
        d_v=c.d_v,
        use_bias=c.biases,
        dropout_rate=c.attention_dropout_rate,
        make_qk_norm=make_qk_norm if c.qk_norm else None,
        scale=c.attention_scale,
        value_gain=c.depth_scaling.inner_gain,
        output_gain=c.depth_scaling.output_gain,
        compute_dtype=c.compute_dtype,
    )

    make_cross_attention = functools.partial(make_attention, memory_width=c.memory_width)

    # Positions are encoded in self-attention only: a memory has positions of its own.
    if self_attention is None:
        rotate = encoding.rotate
        if rotate is not None and c.rotary_size is not None:
            rotate = functools.partial(rotate, size=c.rotary_size)
        self_attention = make_attention(
            encode_positions=rotate,
            make_bias=make_bias if has_own_biases else None,
        )
    block = Block(
        self_attention=self_attention,
        cross_attention=make_cross_attention() if cross_attention else None,
        feed_forward=FeedForward(
            c.d_ff,
            c.activation,
            c.compute_dtype,
            gated=c.gated,
            inner_gain=c.depth_scaling.inner_gain,
            outer_gain=c.depth_scaling.output_gain,
        ),
        make_residual=functools.partial(
            Residual,
            c.norm_position,
            c.dropout_rate,
            make_norm,
            scale=c.layer_scale,
            input_scale=c.depth_scaling.residual,
        ),
        is_parallel=c.is_parallel,
    )

    make_common_bias = None if has_own_biases else make_bias
    if make_bias is None and encoding.make_bias is not None:
        make_common_bias = functools.partial(encoding.make_bias, c.num_heads, causal)

    final_norm = None
    if c.norm_position == "pre":
        final_norm = make_norm if c.has_final_norm else Identity
    return Stack(
        layers=block,
        num_layers=c.layer_groups or c.num_layers,
        repeats=c.num_layers // c.layer_groups if c.layer_groups else 1,
        final_norm=final_norm,
        window=c.window,
        global_tokens=c.global_tokens,
        blocks=BlockPattern(c.block_size, c.random_blocks) if c.block_size else None,
        make_bias=make_common_bias,
        remat=remat,
    )


class Model(nn.Module):
    """The base of all models, which have a config; its annotation is the class ``section``.

    A model that ``extends`` another has all of its parameters, which it may begin with.
    """

    config: Any
    remat: Remat = "none"

    section: ClassVar[type[Architecture]] = ModelConfig
    extends: "ClassVar[type[Model] | None]" = None

    def __init_subclass__(cls, **options: Any) -> None:
        cls.section = inspect.get_annotations(cls).get("config", cls.section)
        super().__init_subclass__(**options)

    @nn.nowrap
    def _check_config(self) -> None:
        if isinstance(self.config, self.section):
            return

        owner = type(self).__name__
        expected = self.section.__name__
        article = "an" if expected[0] in "AEIOU" else "a"
        given = type(self.config).__name__
        advice = "; give config.model" if hasattr(self.config, "model") else ""
        raise UserError(f"{owner}: expected {article} {expected}, got {given}{advice}")

    @nn.nowrap
    def _make_linear(
        self,
        name: str,
        outputs: int,
        axes: tuple = (),
        inputs: int | None = None,
    ) -> tuple[Any, Any]:
        """Creates a matrix and its bias; a matrix without named axes is a head."""
        shape = (inputs or self.config.d_model, outputs)
        is_head = not axes
        matrix = parameter(
            self,
            name,
            nn.initializers.xavier_uniform(),
            shape,
            axes=axes,
            role="head" if is_head else "matrix",
        )

        bias = parameter(
            self,
            f"{name}_bias",
            nn.initializers.zeros,
            (outputs,),
            role="head" if is_head else "vector",
        )
        return matrix, bias


class TokenModel(Model):
    """The base of models of tokens, with the building blocks of their ``setup``.

    ``setup`` creates the embeddings; a subclass also assigns ``logits_bias``.
    """

    def setup(self) -> None:
        self._check_config()
        c = self.config
        source, target, output = c.embedding_names

        # Tables of the same name are one parameter, and have the same size.
        sizes = {source: c.vocab_size, target: c.output_size, output: c.output_size}
        tables = {name: self._make_table(name, size) for name, size in sizes.items()}
        self.src_table = tables[source]
        self.tgt_table = tables[target]
        self.output_table = tables[output]

    @nn.nowrap
    def _make_table(
        self,
        name: str,
        size: int,
        axes: tuple = ("vocab", "d_model"),
        role: Role = "table",
        width: int | None = None,
    ) -> Any:
        """Creates an embedding that has unit variance after multiplication by sqrt(its width)."""
        if width is None:
            width = int(self.config.embedding_width)
        normal = nn.initializers.normal(stddev=width**-0.5)
        return parameter(self, name, normal, (size, width), axes=axes, role=role)

    @nn.nowrap
    def _make_embedding(
        self,
        table: Any,
        positions: str,
        *,
        is_projected: bool = False,
    ) -> Embedding:
        """Returns an embedding.

        Args:
          table: Its matrix.
          positions: Name of the parameter of learned positions.
          is_projected: Embeddings are projected to ``d_model`` before positions are added.
        """
        c = self.config
        width = c.d_model if is_projected else c.embedding_width
        settings = c.embedding_settings()
        has_positions = settings.positions is not None
        encoding = ENCODINGS[settings.positions] if has_positions else PositionalEncoding()

        learned = None
        if encoding.is_learned:
            learned = self._make_table(
                positions,
                c.max_length,
                axes=(),
                role="vector",
                width=width,
            )

        norm = None
        if settings.has_norm:
            norm = self.embedding_norm = LayerNorm(c.norm_epsilon)

        def encode(length: int) -> Any:
            if learned is not None:
                return learned
            return encoding.table(length, width)

        return Embedding(
            table,
            encodings=encode if has_positions else None,
            max_length=c.max_length,
            compute_dtype=c.compute_dtype,
            is_scaled=settings.is_scaled,
            projection=self._make_projection("input_projection", c.embedding_width, width),
            norm=norm,
        )

    @nn.nowrap
    def _make_projection(self, name: str, inputs: int, outputs: int) -> Any:
        """Creates the matrix between two widths; returns None if they are the same."""
        if inputs == outputs:
            return None
        glorot = nn.initializers.xavier_uniform()
        axes = ("d_model", None)
        return parameter(self, name, glorot, (inputs, outputs), axes=axes, role="matrix")

    @nn.nowrap
    def _make_logits_bias(self) -> Any:
        """Returns the bias of the output logits: of absent tokens, a parameter, both, or None."""
        c = self.config
        settings = c.embedding_settings()
        absent = absent_bias(settings.absent_tokens, c.vocab_size)
        if not settings.has_bias:
            return absent

        bias = parameter(self, "logits_bias", nn.initializers.zeros, (c.output_size,))
        return bias if absent is None else bias + absent

    def output_projection(self) -> tuple[Float[Array, "V D"], Float[Array, " V"] | None]:
        """Returns matrix and bias of the logits of tokens, for losses that do not store logits.

        Raises:
          ValueError: The parameters are quantized to int8, which cannot be trained.
        """
        if isinstance(self.output_table, Int8Matrix):
            raise ValueError("parameters are quantized to int8: expected the original ones")
        return jnp.asarray(self.output_table), self.logits_bias
