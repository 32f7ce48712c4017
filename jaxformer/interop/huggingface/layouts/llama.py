"""LLaMA, Mistral, Qwen2 and Qwen3 in transformers' layout."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxformer.errors import UserError
from jaxformer.interop.huggingface.foreign_layout import ANY, Layout, Tensor, affine, rms_norm
from jaxformer.interop.huggingface.layouts.text_models import EXAMPLE, stream_data
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.llama import LlamaConfig

_FIELDS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "d_k",
    "num_hidden_layers": "num_layers",
    "max_position_embeddings": "max_length",
    "hidden_act": "activation",
    "attention_bias": "attention_biases",
    "mlp_bias": "feed_forward_biases",
    "attention_dropout": "attention_dropout_rate",
    "rms_norm_eps": "norm_epsilon",
}
_DEFAULTS = {
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "rms_norm_eps": 1e-6,
    "rope_parameters": None,  # of transformers 5
    "rope_theta": 10_000.0,  # of transformers 4, as the next one
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
_EXPRESSED = {"embeddings": ANY, "rotary_base": ANY}


def _read(fields: JsonFields) -> dict[str, Any]:
    plain = "LlamaConfig has plain rotary positions"
    fields.check("rope_scaling", [None], "null", plain)

    rope = fields.values["rope_parameters"]
    if rope is not None:
        if not _is_plain(rope):
            raise UserError(
                f"{fields.place}: expected rope_parameters with rope_type 'default' and rope_theta "
                f"only: got {rope!r:.200}; jaxformer's {plain}"
            )
        fields.values["rope_theta"] = rope.get("rope_theta", fields.values["rope_theta"])

    embeddings = "tied" if fields.boolean("tie_word_embeddings") else "separate"
    return {"rotary_base": fields.number("rope_theta"), "embeddings": embeddings}


def _is_plain(rope: Any) -> bool:
    """Returns whether rotary positions have no parameter but their base."""
    if not isinstance(rope, dict):
        return False

    others = {name: value for name, value in rope.items() if name != "rope_theta"}
    return others == {"rope_type": "default"}


def _write(model: LlamaConfig) -> dict[str, Any]:
    return {
        "head_dim": model.key_size,
        "num_key_value_heads": model.kv_heads,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rotary_base},
        "rope_theta": model.rotary_base,
        "tie_word_embeddings": model.embeddings == "tied",
    }


def _tensors(model: LlamaConfig) -> Iterator[Tensor]:
    tied = model.embeddings == "tied"
    yield Tensor("model.embed_tokens.weight", "VD", ("embedding",))
    yield Tensor("lm_head.weight", "VD", model.embedding_names[2:], is_copy=tied)
    yield rms_norm("model.norm", "decoder")

    name = "model.layers.{n}"
    attention = "decoder/layers/self_attention"
    network = "decoder/layers/feed_forward"
    yield rms_norm(f"{name}.input_layernorm", f"{attention}_residual")
    yield rms_norm(f"{name}.post_attention_layernorm", f"{network}_residual")

    for theirs, axes, ours, biased in (
        ("self_attn.q_proj", "QD", f"{attention}/query", model.attention_biases),
        ("self_attn.k_proj", "KD", f"{attention}/key", model.attention_biases),
        ("self_attn.v_proj", "KD", f"{attention}/value", model.attention_biases),
        ("self_attn.o_proj", "DQ", f"{attention}/output", model.attention_biases),
        ("mlp.gate_proj", "FD", f"{network}/inner", model.feed_forward_biases),
        ("mlp.up_proj", "FD", f"{network}/linear", model.feed_forward_biases),
        ("mlp.down_proj", "DF", f"{network}/outer", model.feed_forward_biases),
    ):
        yield from affine(f"{name}.{theirs}", axes, ours, biased)


LLAMA = Layout(
    model_type="llama",
    network="LlamaForCausalLM",
    section=LlamaConfig,
    fields=_FIELDS,
    defaults=_DEFAULTS,
    only={"pretraining_tp": 1},
    # Fields that transformers does not read.
    ignored="is_llama_config|is_decoder|max_sequence_length",
    read=_read,
    write=_write,
    tensors=_tensors,
    data=stream_data,
    example=EXAMPLE,
    tasks=("ForCausalLM",),
    buffers=r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    expressed=_EXPRESSED,
)


def _read_mistral(fields: JsonFields) -> dict[str, Any]:
    # Theirs is the number of tokens that are seen, ours the distance of the last of them.
    window = None
    if fields.values["sliding_window"] is not None:
        window = fields.integer("sliding_window") - 1
    return _read(fields) | {"window": window}


def _write_mistral(model: LlamaConfig) -> dict[str, Any]:
    window = model.window and model.window + 1
    return _write(model) | {"sliding_window": window}


_OUTPUT_BIAS = "decoder/layers/self_attention/output_bias"
_BIASES = ("attention_bias", "mlp_bias")
MISTRAL = dataclasses.replace(
    LLAMA,
    model_type="mistral",
    network="MistralForCausalLM",
    fields={name: ours for name, ours in _FIELDS.items() if name not in _BIASES},
    defaults=_DEFAULTS | {"num_key_value_heads": 8, "sliding_window": 4096},
    only=dict.fromkeys(_BIASES, False),
    read=_read_mistral,
    write=_write_mistral,
    expressed=_EXPRESSED | {"window": ANY},
)


def _read_qwen2(fields: JsonFields) -> dict[str, Any]:
    _check_full_attention(fields)
    return _read(fields) | {"attention_biases": True}


def _check_full_attention(fields: JsonFields) -> None:
    full = ["full_attention"] * fields.integer("num_hidden_layers")
    fields.check("layer_types", [None, full], "full_attention", "LlamaConfig has one window")


def _tensors_qwen2(model: LlamaConfig) -> Iterator[Tensor]:
    for tensor in _tensors(model):
        if not tensor.name.endswith("o_proj.bias"):
            yield tensor


def _constants_qwen2(model: LlamaConfig, absent: str) -> dict[str, np.ndarray]:
    """Returns the bias that files lack."""
    return {_OUTPUT_BIAS: np.zeros((model.num_layers, model.d_model))}


QWEN2 = dataclasses.replace(
    MISTRAL,
    model_type="qwen2",
    network="Qwen2ForCausalLM",
    defaults=_DEFAULTS | {"num_key_value_heads": 32, "max_position_embeddings": 32_768},
    only={"use_sliding_window": False},
    ignored="sliding_window|max_window_layers|layer_types",  # the last is checked
    read=_read_qwen2,
    tensors=_tensors_qwen2,
    constants=_constants_qwen2,
    is_exported=False,  # An export is a LLaMA.
)


def _read_qwen3(fields: JsonFields) -> dict[str, Any]:
    _check_full_attention(fields)
    return _read(fields) | {"qk_norm": True}


def _tensors_qwen3(model: LlamaConfig) -> Iterator[Tensor]:
    yield from _tensors(model)
    for theirs, ours in (("q_norm", "query_norm"), ("k_norm", "key_norm")):
        path = f"decoder/layers/self_attention/{ours}/scale"
        yield Tensor(f"model.layers.{{n}}.self_attn.{theirs}.weight", "U", (path,))


QWEN3 = dataclasses.replace(
    LLAMA,
    model_type="qwen3",
    network="Qwen3ForCausalLM",
    fields={name: ours for name, ours in _FIELDS.items() if name != "mlp_bias"},
    defaults={**QWEN2.defaults, "head_dim": 128},
    only={**QWEN2.only, "mlp_bias": False},
    ignored=QWEN2.ignored,
    read=_read_qwen3,
    tensors=_tensors_qwen3,
    expressed=_EXPRESSED | {"qk_norm": [True]},
)
