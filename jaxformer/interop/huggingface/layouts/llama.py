"""LLaMA, Mistral, Qwen2, Qwen3 and Gemma in transformers' layout."""

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
# Types of rotary positions, and the fields that each has besides its type and rope_theta.
_ROPE_FIELDS = {
    "default": {},
    "linear": {"factor": "rotary_factor"},
    "llama3": {
        "factor": "rotary_factor",
        "low_freq_factor": "rotary_low_turns",
        "high_freq_factor": "rotary_high_turns",
        "original_max_position_embeddings": "rotary_original_length",
    },
}
_EXPRESSED = {
    "embeddings": ANY,
    "rotary_base": ANY,
    "rotary_scaling": ANY,
    "rotary_factor": ANY,
    "rotary_low_turns": ANY,
    "rotary_high_turns": ANY,
    "rotary_original_length": ANY,
}


def _read(fields: JsonFields) -> dict[str, Any]:
    embeddings = "tied" if fields.boolean("tie_word_embeddings") else "separate"
    return {"embeddings": embeddings, **read_rotary(fields)}


def read_rotary(fields: JsonFields) -> dict[str, Any]:
    """Returns our fields of rotary positions; transformers 5 reads them in the same order."""
    section = "rope_scaling" if fields.values["rope_scaling"] else "rope_parameters"
    given = fields.values[section] or {}
    kind = _rope_type(given)
    if kind is None:
        raise UserError(
            f"{fields.place}: expected {section} of rope_type {', '.join(_ROPE_FIELDS)}, with its "
            f"own fields only: got {given!r:.200}; jaxformer's LlamaConfig has no other"
        )

    defaults = {
        "rope_theta": fields.values["rope_theta"],
        "original_max_position_embeddings": fields.values["max_position_embeddings"],
    }
    for name, value in {**defaults, **given}.items():
        fields.values[f"{section}.{name}"] = value  # so that errors name the section

    values: dict[str, Any] = {
        "rotary_base": fields.number(f"{section}.rope_theta"),
        "rotary_scaling": "none" if kind == "default" else kind,
    }
    for name, ours in _ROPE_FIELDS[kind].items():
        read = fields.integer if ours == "rotary_original_length" else fields.number
        values[ours] = read(f"{section}.{name}")
    return values


def _rope_type(rope: Any) -> str | None:
    """Returns the type of rotary positions; None if we lack the type, or one of its fields."""
    if not isinstance(rope, dict):
        return None

    given = rope.get("rope_type", rope.get("type", "default"))
    for kind, own in _ROPE_FIELDS.items():
        known = {"rope_type", "type", "rope_theta", *own}
        if given == kind and known.issuperset(rope):
            return kind
    return None


def _write(model: LlamaConfig) -> dict[str, Any]:
    return {
        "head_dim": model.key_size,
        "num_key_value_heads": model.kv_heads,
        "tie_word_embeddings": model.embeddings == "tied",
        **write_rotary(model),
    }


def write_rotary(model: LlamaConfig) -> dict[str, Any]:
    """Returns the fields of rotary positions, of transformers 5 and 4."""
    kind = "default" if model.rotary_scaling == "none" else model.rotary_scaling
    rope: dict[str, Any] = {"rope_type": kind}
    for name, ours in _ROPE_FIELDS[kind].items():
        rope[name] = getattr(model, ours)

    values = {
        "rope_parameters": {**rope, "rope_theta": model.rotary_base},
        "rope_theta": model.rotary_base,
    }
    if kind != "default":
        values["rope_scaling"] = rope  # of transformers 4
    return values


def language_model_tensors(model: LlamaConfig) -> Iterator[Tensor]:
    """Yields the tensors of the language model."""
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
    tensors=language_model_tensors,
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
    for tensor in language_model_tensors(model):
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
    yield from language_model_tensors(model)
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


def _read_gemma(fields: JsonFields) -> dict[str, Any]:
    reason = "Gemma has the approximation with tanh"
    fields.check("hidden_act", ["gelu", _TANH_GELU], f"gelu or {_TANH_GELU}", reason)
    fields.check("hidden_activation", [None, _TANH_GELU], _TANH_GELU, reason)
    return _read(fields) | {
        "activation": "gelu",
        "norm_unit_offset": True,
        "scaled_embedding": True,
    }


# Old files have hidden_act "gelu", which transformers 4 and 5 take as this, too.
_TANH_GELU = "gelu_pytorch_tanh"
GEMMA = dataclasses.replace(
    LLAMA,
    model_type="gemma",
    network="GemmaForCausalLM",
    fields={name: ours for name, ours in _FIELDS.items() if name not in ("hidden_act", "mlp_bias")},
    defaults={
        **_DEFAULTS,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "hidden_act": _TANH_GELU,
        "hidden_activation": None,
        "tie_word_embeddings": True,
    },
    only={"mlp_bias": False},
    read=_read_gemma,
    write=lambda model: _write(model) | {"hidden_act": _TANH_GELU, "hidden_activation": _TANH_GELU},
    expressed=_EXPRESSED
    | {"activation": ["gelu"], "norm_unit_offset": [True], "scaled_embedding": [True]},
)
