"""Translation by recurrent networks with attention (Bahdanau et al. 2015): before the Transformer.

>>> import jax, jax.numpy as jnp
>>> model = Recurrent(RecurrentConfig(vocab_size=11, d_model=8, hidden_size=6))
>>> src, tgt_in = jnp.array([[3, 4, 1]]), jnp.array([[2, 5]])
>>> params = jax.jit(model.init)(jax.random.key(0), src, tgt_in)["params"]
>>> model.apply({"params": params}, src, tgt_in).shape
(1, 2, 11)
"""

import dataclasses
from typing import Literal

from flax import linen as nn

from jaxformer.fields import setting
from jaxformer.models.architecture import Architecture, EmbeddingSettings
from jaxformer.models.transformer import Transformer
from jaxformer.nn.precision import ComputeDtype
from jaxformer.nn.recurrent import AttentiveGRU, BidirectionalGRU


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(Architecture):
    """The architecture of a :class:`Recurrent`; the sizes of the paper's by default.

    Attributes:
      vocab_size: Size of the vocabulary, which source and target share.
      d_model: Width of the embeddings, and of the decoder's output.
      hidden_size: Number of units of each GRU, and of the hidden layer of attention.
      dropout_rate: Dropout rate of embeddings, annotations and outputs; the paper has none.
      max_length: Maximum sequence length in tokens.
      compute_dtype: As in :class:`~jaxformer.ModelConfig`; the states are always float32.
    """

    architecture: Literal["recurrent"] = "recurrent"
    vocab_size: int = setting(30_000, "size", may_differ=True)
    d_model: int = setting(620, "size")
    hidden_size: int = setting(1000, "size")
    dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    max_length: int = setting(1024, "size", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    # A single layer, whose attention has one head.
    num_layers = 1
    num_heads = 1

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(is_scaled=True, dropout_rate=self.dropout_rate)

    def pair_multiplications(self, src_length: int, tgt_length: int) -> int:
        states = 3 * self.hidden_size  # the units that make a state: two gates and a candidate
        annotation = 2 * self.hidden_size
        source = 2 * states * (self.d_model + self.hidden_size)  # in both directions
        source += annotation * self.hidden_size  # keys of attention

        inputs = self.d_model + self.hidden_size + annotation
        target = (states + 2 * self.d_model) * inputs + self.d_model * self.output_size
        # Queries, scores and weighted sums, and the first state, which each token might have.
        target += self.hidden_size**2 + src_length * (self.hidden_size + annotation)
        target += self.hidden_size**2 + src_length * self.hidden_size
        return src_length * source + tgt_length * target


class Recurrent(Transformer):
    """A bidirectional GRU as the encoder, and a GRU with additive attention as the decoder.

    It is called and decodes as :class:`~jaxformer.Transformer` does. In place of a cache of keys
    and values, a hypothesis has one state.

    Departs from the paper: recurrences in place of self-attention and feed-forward networks, and a
    single layer with additive attention. Departs from Bahdanau et al. (2015): source, target and
    output share an embedding, as in section 3.4, whose width the output has; and matrices of inputs
    have the usual initialization.
    """

    config: RecurrentConfig

    @nn.nowrap
    def _make_encoder(self) -> BidirectionalGRU:
        c = self.config
        return BidirectionalGRU(
            d_model=c.d_model,
            size=c.hidden_size,
            dropout_rate=c.dropout_rate,
            compute_dtype=c.compute_dtype,
            remat=self.remat,
        )

    @nn.nowrap
    def _make_decoder(self) -> AttentiveGRU:
        c = self.config
        return AttentiveGRU(
            d_model=c.d_model,
            size=c.hidden_size,
            dropout_rate=c.dropout_rate,
            compute_dtype=c.compute_dtype,
            remat=self.remat,
        )
