"""T5, Flan-T5, mT5 and umT5 in transformers' layout."""

import dataclasses
from collections.abc import Container, Iterator
from typing import Any

import numpy as np

from jaxformer.errors import UserError
from jaxformer.interop.huggingface.foreign_layout import (
    ACTIVATIONS,
    ANY,
    Layout,
    Tensor,
    activation_name,
    rms_norm,
)
from jaxformer.interop.huggingface.layouts.text_models import (
    EXAMPLE,
    SPECIAL,
    TOKEN_NAMES,
    pair_data,
)
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.t5 import T5Config

_SAME = ("d_model", "d_ff", "num_heads", "num_layers", "num_decoder_layers", "dropout_rate")
_FIELDS = {name: name for name in _SAME} | {
    "d_kv": "d_k",
    "relative_attention_num_buckets": "num_buckets",
    "relative_attention_max_distance": "max_distance",
    "layer_norm_epsilon": "norm_epsilon",
}
_DEFAULTS = {
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "num_decoder_layers": None,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "dense_act_fn": None,  # derived from the last one, as the next one
    "is_gated_act": None,
    # Outputs are scaled if embeddings are tied. transformers 5 ties them unless the tensors differ,
    # and saves the meaning of the second field as the first.
    "scale_decoder_outputs": None,
    "tie_word_embeddings": True,
}
_MODULES = {
    "SelfAttention": "self_attention",
    "EncDecAttention": "cross_attention",
    "DenseReluDense": "feed_forward",
}
# The matrices of a module: their name, their axes, and our name.
_ATTENTION = (
    ("q", "QD", "query"),
    ("k", "KD", "key"),
    ("v", "KD", "value"),
    ("o", "DQ", "output"),
)
_PLAIN = (
    ("wi", "FD", "inner"),
    ("wo", "DF", "outer"),
)
_GATED = (
    ("wi_0", "FD", "inner"),
    ("wi_1", "FD", "linear"),
    ("wo", "DF", "outer"),
)
_EXPRESSED: dict[str, Container[Any]] = {
    "activation": ANY,
    "gated": ANY,
    "embeddings": ANY,
    "scaled_output": ANY,
    "max_length": ANY,  # no parameter depends on it
}


def _read(fields: JsonFields) -> dict[str, Any]:
    network = fields.values["feed_forward_proj"]
    prefix, _, name = str(network).rpartition("-")
    is_gated = prefix == "gated"
    if is_gated and name == "gelu":
        name = "gelu_new"
    if prefix not in ("", "gated") or name not in ACTIVATIONS:
        raise UserError(
            f"{fields.place}: expected feed_forward_proj to be gated-gelu, or one of "
            f"{', '.join(ACTIVATIONS)} with or without gated-: got "
            f"{network!r:.80}"
        )

    same = "feed-forward networks follow feed_forward_proj"
    fields.check("dense_act_fn", [None, name], repr(name), same)
    fields.check("is_gated_act", [None, is_gated], repr(is_gated), same)

    is_set = fields.values["scale_decoder_outputs"] is not None
    scaled = "scale_decoder_outputs" if is_set else "tie_word_embeddings"

    table = fields.tensors.get("shared.weight")
    output = fields.tensors.get("lm_head.weight")
    is_tied = table is None or output is None or np.array_equal(table, output)
    return {
        "embeddings": "tied" if is_tied else "separate",
        "activation": ACTIVATIONS[name],
        "gated": is_gated,
        "scaled_output": fields.boolean(scaled),
    }


def _write(model: T5Config) -> dict[str, Any]:
    network = activation_name(model.activation)
    if model.gated:
        name = "gelu" if network == "gelu_new" else network
        network = f"gated-{name}"

    return {
        "num_decoder_layers": model.decoder_layers,
        "feed_forward_proj": network,
        # Earlier versions scale the output if, and only if, embeddings are tied.
        "tie_word_embeddings": model.scaled_output,
        "scale_decoder_outputs": model.scaled_output,
    }


def _tensors(model: T5Config) -> Iterator[Tensor]:

    tied = model.embeddings == "tied"
    yield Tensor("shared.weight", "VD", ("embedding",))
    yield Tensor("lm_head.weight", "VD", model.embedding_names[2:], is_copy=tied)
    for stack in ("encoder", "decoder"):
        yield Tensor(f"{stack}.embed_tokens.weight", "VD", ("embedding",), is_copy=True)

        yield rms_norm(f"{stack}.final_layer_norm", stack)
        yield _position_bias(stack, model)

        sublayers = list(_MODULES)
        if stack == "encoder":
            sublayers.remove("EncDecAttention")
        for number, sublayer in enumerate(sublayers):
            place = f"{stack}.block.{{n}}.layer.{number}"
            ours = f"{stack}/layers/{_MODULES[sublayer]}"
            yield rms_norm(f"{place}.layer_norm", f"{ours}_residual")

            matrices = _ATTENTION
            if sublayer == "DenseReluDense":
                matrices = _GATED if model.gated else _PLAIN
            for theirs, axes, matrix in matrices:
                name = f"{place}.{sublayer}.{theirs}.weight"
                yield Tensor(name, axes, (f"{ours}/{matrix}",), is_linear=True)


def _position_bias(stack: str, model: T5Config) -> Tensor:
    """Returns the table of the relative positions, one for each layer or for all of a stack."""
    block = f"{stack}.block.0"
    ours = f"{stack}/bias/table"
    if model.bias_per_layer:
        block = f"{stack}.block.{{n}}"
        ours = f"{stack}/layers/self_attention/bias/table"
    return Tensor(f"{block}.layer.0.SelfAttention.relative_attention_bias.weight", "RH", (ours,))


T5 = Layout(
    model_type="t5",
    network="T5ForConditionalGeneration",
    section=T5Config,
    fields=_FIELDS,
    defaults=_DEFAULTS,
    only={"is_encoder_decoder": True, "is_decoder": False},
    lacks={"dropout_rate": " within feed-forward networks and after the last norms"},
    # The first is read by another program; the second is the length of the training texts.
    ignored="scalable_attention|n_positions",
    read=_read,
    write=_write,
    tensors=_tensors,
    data=pair_data,
    special=SPECIAL,
    token_names=TOKEN_NAMES,
    example=EXAMPLE,
    tasks=("ForConditionalGeneration",),
    # Files of version 1.0 have a table that is not used.
    buffers=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    expressed=_EXPRESSED,
)
UMT5 = dataclasses.replace(
    T5,
    model_type="umt5",
    network="UMT5ForConditionalGeneration",
    defaults=_DEFAULTS | {"feed_forward_proj": "gated-gelu"},
    read=lambda fields: _read(fields) | {"bias_per_layer": True},
    expressed=_EXPRESSED | {"bias_per_layer": [True]},
)
MT5 = dataclasses.replace(
    T5,
    model_type="mt5",
    network="MT5ForConditionalGeneration",
    defaults=UMT5.defaults,
    read=lambda fields: _read(fields) | {"scaled_output": False},
    is_exported=False,  # An export is a T5.
)
