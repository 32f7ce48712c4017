"""Names of the layers of encoders in transformers' layouts."""

from typing import NamedTuple


class LayerNames(NamedTuple):
    """Names of a layer and of its parts; the defaults are BERT's.

    Attributes:
      layer: Beginning of all names, with ``{n}`` for the number of the layer.
      query, key, value, output: Projections of attention.
      attention_norm, network_norm: Norms of the two sub-layers.
      inner, outer: Layers of the feed-forward network.
      gated_inner, gated_outer: Layers of a gated network; the first joins both projections of its
        input. Empty for a family without such networks.
      attention_scale, network_scale: Factors of layer scale; empty for a family without.
    """

    layer: str = "encoder.layer.{n}"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    inner: str = "intermediate.dense"
    outer: str = "output.dense"
    network_norm: str = "output.LayerNorm"
    gated_inner: str = ""
    gated_outer: str = ""
    attention_scale: str = ""
    network_scale: str = ""


BERT_LAYERS = LayerNames()
VIT_LAYERS = LayerNames(
    query="attention.attention.query",
    key="attention.attention.key",
    value="attention.attention.value",
    attention_norm="layernorm_before",
    network_norm="layernorm_after",
)
