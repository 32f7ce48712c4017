"""Decoders of models that read arrays, in transformers' layouts: a row for each.

A row has the fields of the section ``decoder`` of config.json, without its name, and the tensors of
a class of transformers whose names begin with ``decoder.``.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxformer.interop.huggingface.foreign_layout import (
    ANY,
    Layout,
    Tensor,
    affine,
    layer_norm,
    sizes_of,
)
from jaxformer.interop.huggingface.layouts import gpt2
from jaxformer.interop.huggingface.layouts.bert import ENCODER_FIELDS
from jaxformer.interop.huggingface.layouts.encoder_decoder import layer_tensors
from jaxformer.interop.huggingface.layouts.encoders import (
    BERT_MASKED,
    ROBERTA_MASKED,
    MaskedNames,
)
from jaxformer.interop.huggingface.layouts.pairs import stack_tensors
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.array_encoder_decoder import ArrayDecoderArchitecture

# Masks, and numbers of positions, which transformers 4 saved.
DECODER_BUFFERS = (
    r"decoder\.transformer\.h\.\d+\.(cross)?attn\.(masked_)?bias"
    r"|decoder\.transformer\.h\.\d+\.crossattention\.(masked_)?bias"
    r"|decoder\.(bert|roberta)\.embeddings\.(position|token_type)_ids"
)
# The first rows of positions, which no token has: fairseq counts from its padding.
_FIRST_POSITION = 2
_CROSS = "decoder/layers/cross_attention"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayDecoder:
    """A decoder that attends to an encoder.

    Attributes:
      model_type, fields, defaults, only, ignored, lacks: As in
        :class:`~jaxformer.interop.huggingface.foreign_layout.Layout`.
      read: Returns further fields of ours.
      write: Returns further fields of the section.
      tensors: Returns the tensors, without the prefix ``decoder.``.
      sizes: As in the layout; G is the keys and values of cross-attention.
      orders: As in the layout.
      settings: Our fields that all models with this decoder have, and their values.
      expressed, is_exported: As in the layout.
    """

    model_type: str
    fields: Mapping[str, str]
    defaults: Mapping[str, Any]
    only: Mapping[str, Any]
    ignored: str = "(?!)"
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    read: Callable[[JsonFields], dict[str, Any]] = lambda fields: {}
    write: Callable[[Any], dict[str, Any]] = lambda model: {}
    tensors: Callable[[Any], Iterator[Tensor]]
    sizes: Callable[[Any], dict[str, int]] = lambda model: {}
    orders: Callable[[Any], dict[str, Int[np.ndarray, " indices"]]] = lambda model: {}
    settings: Mapping[str, Any]
    expressed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_exported: bool = True


def in_section(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields with the name of their section."""
    return {f"{name}.{field}": value for field, value in values.items()}


def pair_tensors(
    of_encoder: Iterable[Tensor],
    decoder: ArrayDecoder,
    model: Any,
) -> Iterator[Tensor]:
    """Yields the tensors of a model; axes in lower case are of the encoder.

    Args:
      of_encoder: Tensors of the encoder alone.
      decoder: The decoder.
      model: Section of the model.
    """
    layers = range(model.encoder_num_layers)
    for tensor in of_encoder:
        yield tensor._replace(
            name=f"encoder.{tensor.name}",
            axes=tensor.axes.lower(),
            ours=tuple(f"encoder/{path}" for path in tensor.ours),
            numbers=layers,
        )

    if model.has_projection:
        yield from affine("enc_to_dec_proj", "Dd", "encoder_projection")
    for tensor in decoder.tensors(model):
        yield tensor._replace(name=f"decoder.{tensor.name}")


def pair_sizes(encoder_layout: Layout, decoder: ArrayDecoder, model: Any) -> dict[str, int]:
    """Returns the sizes of the axes of :func:`pair_tensors`."""
    encoder = model.encoder_section()
    of_encoder = sizes_of(encoder, 0) | encoder_layout.sizes(encoder)
    sizes = {axis.lower(): size for axis, size in of_encoder.items()}
    return sizes | decoder.sizes(model)


def _read_gpt2(fields: JsonFields) -> dict[str, Any]:
    same = fields.values["decoder.resid_pdrop"]
    reason = "decoders have one dropout_rate"
    fields.check("decoder.embd_pdrop", [same], f"decoder.resid_pdrop={same!r}", reason)

    if fields.values["decoder.n_inner"] is not None:
        return {"d_ff": fields.integer("decoder.n_inner")}
    return {"d_ff": 4 * fields.integer("decoder.n_embd")}


def _gpt2_tensors(model: ArrayDecoderArchitecture) -> Iterator[Tensor]:
    for tensor in gpt2.GPT2.tensors(model):
        is_head = tensor.name.startswith("lm_head.")
        yield tensor if is_head else tensor._replace(name=f"transformer.{tensor.name}")

    layer = "transformer.h.{n}"
    yield from layer_norm(f"{layer}.ln_cross_attn", f"{_CROSS}_residual/norm")

    # Conv1D, whose axes are [in, out].
    for name, axes, matrices in (
        ("q_attn", "DQ", ("query",)),
        ("c_attn", "DG", ("key", "value")),
        ("c_proj", "QD", ("output",)),
    ):
        theirs = f"{layer}.crossattention.{name}"
        paths = [f"{_CROSS}/{matrix}" for matrix in matrices]
        yield Tensor(f"{theirs}.weight", axes, tuple(paths))
        yield Tensor(f"{theirs}.bias", axes[1], tuple(f"{path}_bias" for path in paths))


GPT2 = ArrayDecoder(
    model_type="gpt2",
    fields=gpt2.GPT2.fields,
    defaults=gpt2.GPT2.defaults,
    only={**gpt2.GPT2.only, "add_cross_attention": True},
    ignored="summary_.*|is_decoder",
    read=_read_gpt2,
    write=lambda model: {"n_inner": model.d_ff, "embd_pdrop": model.dropout_rate},
    tensors=_gpt2_tensors,
    sizes=lambda model: {"G": 2 * model.num_heads * model.key_size},
    settings={"norm_position": "pre"},
    expressed={"d_ff": ANY},
)


def _encoder_tensors(
    prefix: str, head: MaskedNames, model: ArrayDecoderArchitecture
) -> Iterator[Tensor]:
    """Yields the tensors of an encoder that is used as a decoder, such as BERT.

    Args:
      prefix: Beginning of the names of all but the head, such as "bert".
      head: Names of the layers before the logits.
      model: Our section.
    """
    embeddings = f"{prefix}.embeddings"
    yield Tensor(f"{embeddings}.word_embeddings.weight", "VD", ("embedding",))
    yield Tensor(f"{embeddings}.position_embeddings.weight", "MD", ("positions",))
    yield Tensor(f"{embeddings}.token_type_embeddings.weight", "TD", ("types",))
    yield from layer_norm(f"{embeddings}.LayerNorm", "embedding_norm")
    yield from layer_tensors(f"{prefix}.encoder", "decoder")

    yield from affine(head.dense, "DD", "decoder/norm/dense")
    yield from layer_norm(head.norm, "decoder/norm/norm")
    yield Tensor(head.bias, "V", ("logits_bias",))
    yield Tensor(f"{head.decoder}.bias", "V", ("logits_bias",), is_copy=True)
    yield Tensor(f"{head.decoder}.weight", "VD", ("embedding",), is_copy=True)


BERT = ArrayDecoder(
    model_type="bert",
    fields={
        **ENCODER_FIELDS,
        "max_position_embeddings": "max_length",
        "type_vocab_size": "num_token_types",
    },
    defaults={"type_vocab_size": 2, "layer_norm_eps": 1e-12, "max_position_embeddings": 512},
    only={
        "is_decoder": True,
        "add_cross_attention": True,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    },
    ignored="pooler_.*|directionality|classifier_dropout",  # of encoders
    tensors=functools.partial(_encoder_tensors, "bert", BERT_MASKED),
    settings={
        "norm_position": "post",
        "embedding_norm": True,
        "output_layer": True,
        "output_bias": True,
    },
    expressed={"num_token_types": range(1, 2**20)},
)

# BERT with other names, whose positions are in rows after the id of the padding. An export is a
# BERT, which computes the same.
ROBERTA = dataclasses.replace(
    BERT,
    model_type="roberta",
    fields={name: ours for name, ours in BERT.fields.items() if ours != "max_length"},
    only={**BERT.only, "pad_token_id": 1},
    read=lambda fields: {
        "max_length": fields.integer("decoder.max_position_embeddings") - _FIRST_POSITION
    },
    tensors=functools.partial(_encoder_tensors, "roberta", ROBERTA_MASKED),
    sizes=lambda model: {"M": model.max_length + _FIRST_POSITION},
    orders=lambda model: {"M": np.arange(model.max_length) + _FIRST_POSITION},
    is_exported=False,
)


def _trocr_tensors(model: ArrayDecoderArchitecture) -> Iterator[Tensor]:
    yield Tensor("model.decoder.embed_tokens.weight", "VD", ("embedding",))
    yield Tensor("output_projection.weight", "VD", ("embedding",), is_copy=True)
    yield Tensor("model.decoder.embed_positions.weight", "MD", ("positions",))
    if model.embedding_norm:
        yield from layer_norm("model.decoder.layernorm_embedding", "embedding_norm")

    for tensor in stack_tensors("decoder", "post"):
        # Keys and values of cross-attention are projections of the output of the encoder.
        reads_memory = tensor.ours[0] in (f"{_CROSS}/key", f"{_CROSS}/value")
        axes = "Qd" if reads_memory else tensor.axes
        yield tensor._replace(name=f"model.{tensor.name}", axes=axes)


TROCR = ArrayDecoder(
    model_type="trocr",
    fields={
        "decoder_layers": "num_layers",
        "decoder_ffn_dim": "d_ff",
        "decoder_attention_heads": "num_heads",
        "d_model": "d_model",
        "cross_attention_hidden_size": "encoder_d_model",
        "max_position_embeddings": "max_length",
        "activation_function": "activation",
        "dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
        "scale_embedding": "scaled_embedding",
        "layernorm_embedding": "embedding_norm",
    },
    defaults={
        "max_position_embeddings": 512,
        "activation_function": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "scale_embedding": False,
        "layernorm_embedding": True,
    },
    only={
        "is_decoder": True,
        "add_cross_attention": True,
        "use_learned_position_embeddings": True,
        "tie_word_embeddings": True,
    },
    ignored="activation_dropout|decoder_layerdrop|classifier_dropout|num_hidden_layers|hidden_size",
    lacks={
        "activation_dropout": " within feed-forward networks",
        "decoder_layerdrop": "",
    },
    tensors=_trocr_tensors,
    sizes=lambda model: {"M": model.max_length + _FIRST_POSITION},
    orders=lambda model: {"M": np.arange(model.max_length) + _FIRST_POSITION},
    settings={"norm_position": "post", "projects_encoder": False, "norm_epsilon": 1e-5},
)
