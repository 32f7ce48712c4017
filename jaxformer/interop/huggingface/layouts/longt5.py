"""LongT5 in transformers' layout: T5 with another self-attention in the encoder."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from jaxformer.interop.huggingface.foreign_layout import ANY, Tensor
from jaxformer.interop.huggingface.layouts.t5 import T5
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.longt5 import LongT5Config

_LOCAL = "local"
_GLOBAL = "transient-global"
# The names of the encoder's attention in the names of tensors.
_ATTENTION = {_LOCAL: "LocalSelfAttention", _GLOBAL: "TransientGlobalSelfAttention"}


def _kind(model: LongT5Config) -> str:
    return _LOCAL if model.global_block_size is None else _GLOBAL


def _read(fields: JsonFields) -> dict[str, Any]:
    name = "encoder_attention_type"
    fields.check(name, list(_ATTENTION), " or ".join(_ATTENTION), "encoders have no other")

    has_blocks = fields.values[name] == _GLOBAL
    block_size = fields.integer("global_block_size") if has_blocks else None
    return T5.read(fields) | {"global_block_size": block_size}


def _write(model: LongT5Config) -> dict[str, Any]:
    found = T5.write(model) | {"encoder_attention_type": _kind(model)}
    if model.global_block_size is not None:
        found["global_block_size"] = model.global_block_size
    return found


def _tensors(model: LongT5Config) -> Iterator[Tensor]:
    attention = _ATTENTION[_kind(model)]
    has_blocks = model.global_block_size is not None

    for tensor in T5.tensors(model):
        name = tensor.name
        ours = tensor.ours
        if name.startswith("encoder."):
            name = name.replace(".SelfAttention.", f".{attention}.")
        if has_blocks and ours == ("encoder/bias/table",):
            ours = ("encoder/bias/tokens/table",)
        yield tensor._replace(name=name, ours=ours)

    if has_blocks:
        # Only the first layer has the table of blocks, as it has the table of tokens.
        table = f"encoder.block.0.layer.0.{attention}.global_relative_attention_bias.weight"
        yield Tensor(table, "RH", ("encoder/bias/blocks/table",))
        norm = f"encoder.block.{{n}}.layer.0.{attention}.global_input_layer_norm.weight"
        yield Tensor(norm, "D", ("encoder/layers/self_attention/sum_norm/scale",))


LONG_T5 = dataclasses.replace(
    T5,
    model_type="longt5",
    network="LongT5ForConditionalGeneration",
    section=LongT5Config,
    fields={**T5.fields, "local_radius": "local_radius"},
    defaults={
        **T5.defaults,
        "local_radius": 127,
        "global_block_size": 16,
        "encoder_attention_type": _LOCAL,
    },
    read=_read,
    write=_write,
    tensors=_tensors,
    expressed={**T5.expressed, "global_block_size": ANY},
)
