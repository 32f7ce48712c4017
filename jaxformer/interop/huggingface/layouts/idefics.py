"""Idefics, an open Flamingo, in transformers' layout: sections for its encoder and resampler."""

from collections.abc import Iterator
from typing import Any

from jaxformer.data.interleaved import InterleavedConfig
from jaxformer.interop.huggingface.foreign_layout import (
    ANY,
    Layout,
    Tensor,
    affine,
    layer_norm,
)
from jaxformer.interop.huggingface.layouts.clip import vision_tower_tensors
from jaxformer.interop.huggingface.layouts.llama import (
    LLAMA,
    language_model_tensors,
    read_rotary,
    write_rotary,
)
from jaxformer.interop.huggingface.preprocessor import read_normalization, write_normalization
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.flamingo import FlamingoConfig

_PICTURE = "<image>"
_PROCESSORS = ("IdeficsImageProcessor", "IdeficsImageProcessorFast", "IdeficsImageProcessorPil")
_GATES = {"float": "scalar", "vector": "vector"}
# The resampler's feed-forward networks are so many times as wide as its vectors.
_WIDENING = 4
_FIELDS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "max_position_embeddings": "max_length",
    "hidden_act": "activation",
    "rms_norm_eps": "norm_epsilon",
    "additional_vocab_size": "additional_tokens",
    "cross_layer_interval": "gated_every",
    "qk_layer_norms": "gated_qk_norm",
    "vision_config.embed_dim": "vision_d_model",
    "vision_config.intermediate_size": "vision_d_ff",
    "vision_config.num_attention_heads": "vision_num_heads",
    "vision_config.num_hidden_layers": "vision_num_layers",
    "vision_config.hidden_act": "vision_activation",
    "vision_config.layer_norm_eps": "vision_norm_epsilon",
    "vision_config.patch_size": "patch_size",
    "vision_config.num_channels": "channels",
    "perceiver_config.resampler_n_latents": "num_latents",
    "perceiver_config.resampler_depth": "resampler_num_layers",
    "perceiver_config.resampler_n_heads": "resampler_num_heads",
    "perceiver_config.resampler_head_dim": "resampler_d_k",
    "perceiver_config.qk_layer_norms_perceiver": "resampler_qk_norm",
}
_DEFAULTS = {
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_parameters": None,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "additional_vocab_size": 0,
    "alpha_type": "float",
    "cross_layer_interval": 1,
    "qk_layer_norms": False,
    "use_resampler": False,
    "vision_config.embed_dim": 768,
    "vision_config.intermediate_size": 5120,
    "vision_config.num_attention_heads": 16,
    "vision_config.num_hidden_layers": 32,
    "vision_config.hidden_act": "gelu",
    "vision_config.layer_norm_eps": 1e-5,
    "vision_config.image_size": 224,
    "vision_config.patch_size": 14,
    "vision_config.num_channels": 3,
    "perceiver_config.resampler_n_latents": 64,
    "perceiver_config.resampler_depth": 6,
    "perceiver_config.resampler_n_heads": 16,
    "perceiver_config.resampler_head_dim": 96,
    "perceiver_config.qk_layer_norms_perceiver": False,
}
_EXAMPLE = """
from transformers import AutoTokenizer, NETWORK
import torch

tokenizer, model = AutoTokenizer.from_pretrained("."), NETWORK.from_pretrained(".")
inputs = tokenizer(["<image>"], return_tensors="pt")
side = model.config.vision_config.image_size
pixels = torch.zeros(1, 1, model.config.vision_config.num_channels, side, side)  # normalized
seen = (inputs["input_ids"] == tokenizer.convert_tokens_to_ids("<image>")).cumsum(1)[..., None]
tokens = model.generate(
    **inputs, pixel_values=pixels, image_attention_mask=seen, max_new_tokens=20
)
print(tokenizer.batch_decode(tokens, skip_special_tokens=True))
"""


def _read(fields: JsonFields) -> dict[str, Any]:
    fields.check("alpha_type", list(_GATES), " or ".join(_GATES), "gates have no other type")
    side = fields.integer("vision_config.image_size")
    channels = fields.integer("vision_config.num_channels")
    embeddings = "tied" if fields.boolean("tie_word_embeddings") else "separate"
    return {
        "embeddings": embeddings,
        "gates": _GATES[fields.values["alpha_type"]],
        "resampler_d_ff": _WIDENING * fields.integer("vision_config.embed_dim"),
        "height": side,
        "width": side,
        **read_rotary(fields),
        **_read_pixels(fields, side, channels),
    }


def _read_pixels(config: JsonFields, side: int, channels: int) -> dict[str, Any]:
    """Returns our fields of the pixels that a model takes."""
    fields = JsonFields(config.place.with_name("preprocessor_config.json"), {})
    name = "image_processor_type"
    fields.check(name, list(_PROCESSORS), " or ".join(_PROCESSORS), "pictures have no other")
    fields.check("image_size", [side], str(side), "pictures have the size in config.json")
    fields.check("image_num_channels", [channels], str(channels), "pictures have these channels")

    values = read_normalization(fields, channels)
    known = {name, "image_size", "image_num_channels", "image_mean", "image_std"}
    fields.check_known(known, "do_convert_rgb|processor_class|feature_extractor_type")
    return {**values, "resampling": "bicubic"}


def _write(model: FlamingoConfig) -> dict[str, Any]:
    types = {ours: theirs for theirs, ours in _GATES.items()}
    return {
        "alpha_type": types[model.gates],
        "tie_word_embeddings": model.embeddings == "tied",
        "vision_config.image_size": model.height,
        **write_rotary(model),
    }


def _preprocessor(model: FlamingoConfig) -> dict[str, Any]:
    return {
        "image_processor_type": _PROCESSORS[0],
        "image_num_channels": model.channels,
        "image_size": model.height,
        **write_normalization(model),
    }


def _resampler_tensors(model: FlamingoConfig) -> Iterator[Tensor]:
    """Yields the tensors of the resampler, with axes "d", "g" and "r" for its widths."""
    place = "model.perceiver_resampler"
    yield Tensor(f"{place}.latents", "ld", ("resampler/latents",))
    yield from layer_norm(f"{place}.layer_norm", "resampler/stack/norm", "d")

    theirs = f"{place}.blocks.{{n}}"
    ours = "resampler/stack/layers"
    tensors = [
        *layer_norm(f"{theirs}.0.context_layer_norm", f"{ours}/picture_norm", "d"),
        *layer_norm(f"{theirs}.0.latents_layer_norm", f"{ours}/latents_norm", "d"),
        *affine(f"{theirs}.0.q_proj", "rd", f"{ours}/attention/query", bias=False),
        *affine(f"{theirs}.0.k_proj", "rd", f"{ours}/attention/key", bias=False),
        *affine(f"{theirs}.0.v_proj", "rd", f"{ours}/attention/value", bias=False),
        *affine(f"{theirs}.0.output_proj", "dr", f"{ours}/attention/output", bias=False),
        *layer_norm(f"{theirs}.1.ln", f"{ours}/feed_forward_norm", "d"),
        *affine(f"{theirs}.1.fc", "gd", f"{ours}/feed_forward/inner", bias=False),
        *affine(f"{theirs}.1.c_proj", "dg", f"{ours}/feed_forward/outer", bias=False),
    ]
    if model.resampler_qk_norm:
        for name, own in (("q_layer_norm", "query_norm"), ("k_layer_norm", "key_norm")):
            tensors += layer_norm(f"{theirs}.0.{name}", f"{ours}/attention/{own}", "u")
    for tensor in tensors:
        yield tensor._replace(numbers=range(model.resampler_num_layers))


def _gated_tensors(model: FlamingoConfig) -> Iterator[Tensor]:
    """Yields the tensors of the gated blocks."""
    theirs = "model.gated_cross_attn_layers.{n}"
    ours = "decoder/gated"
    attention = f"{ours}/cross_attention"
    network = f"{ours}/feed_forward"
    gate = "11D" if model.gates == "vector" else "1"
    tensors = [
        *affine(f"{theirs}.cross_attn.q_proj", "QD", f"{attention}/query", bias=False),
        *affine(f"{theirs}.cross_attn.k_proj", "Qd", f"{attention}/key", bias=False),
        *affine(f"{theirs}.cross_attn.v_proj", "Qd", f"{attention}/value", bias=False),
        *affine(f"{theirs}.cross_attn.o_proj", "DQ", f"{attention}/output", bias=False),
        *affine(f"{theirs}.mlp.gate_proj", "FD", f"{network}/inner", bias=False),
        *affine(f"{theirs}.mlp.up_proj", "FD", f"{network}/linear", bias=False),
        *affine(f"{theirs}.mlp.down_proj", "DF", f"{network}/outer", bias=False),
        Tensor(f"{theirs}.input_layernorm.weight", "D", (f"{attention}_norm/scale",)),
        Tensor(f"{theirs}.post_attention_layernorm.weight", "D", (f"{network}_norm/scale",)),
        Tensor(f"{theirs}.alpha_cross_attn", gate, (f"{ours}/attention_gate",)),
        Tensor(f"{theirs}.alpha_dense", gate, (f"{ours}/feed_forward_gate",)),
    ]
    if model.gated_qk_norm:
        for name, own in (("q_layer_norm", "query_norm"), ("k_layer_norm", "key_norm")):
            path = f"{attention}/{own}/scale"
            tensors.append(Tensor(f"{theirs}.cross_attn.{name}.weight", "U", (path,)))
    for tensor in tensors:
        yield tensor._replace(numbers=range(model.num_layers // model.gated_every))


def _tensors(model: FlamingoConfig) -> Iterator[Tensor]:
    yield from language_model_tensors(model)
    yield from vision_tower_tensors("model.vision_model", model.vision_num_layers)
    yield from _resampler_tensors(model)
    yield from _gated_tensors(model)


def _data(model: FlamingoConfig) -> InterleavedConfig:
    length = min(model.max_length, InterleavedConfig.length)
    return InterleavedConfig(train="unknown", valid="unknown", length=length)


def _fits(model: FlamingoConfig) -> bool:
    is_square = model.height == model.width
    return is_square and model.resampler_d_ff == _WIDENING * model.vision_d_model


IDEFICS = Layout(
    model_type="idefics",
    network="IdeficsForVisionText2Text",
    section=FlamingoConfig,
    sections=("vision_config", "perceiver_config"),
    fields=_FIELDS,
    defaults=_DEFAULTS,
    only={"use_resampler": True},
    lacks={"dropout": " in the language model", "vision_config.attention_dropout": ""},
    # How weights were drawn, and what was trained. Published files name the encoder that it began
    # with. transformers reads neither max_sequence_length nor use_resampler of the section.
    ignored=(
        "alpha_initializer|alphas_initializer_range|freeze_.*|max_sequence_length"
        "|perceiver_config[.]use_resampler|vision_config[.]vision_model_name"
    ),
    read=_read,
    write=_write,
    tensors=_tensors,
    continued={
        "model.embed_tokens.weight": "model.embed_tokens.additional_embedding.weight",
        "lm_head.weight": "lm_head.additional_fc.weight",
    },
    additional_vocab="additional_vocab_size",
    token_fields={"picture_token": _PICTURE},
    sizes=lambda model: {
        "d": model.vision_d_model,
        "f": model.vision_d_ff,
        "g": model.resampler_d_ff,
        "l": model.num_latents,
        "r": model.resampler_num_heads * model.resampler_d_k,
        "u": model.resampler_d_k,
    },
    data=_data,
    preprocessor=_preprocessor,
    example=_EXAMPLE,
    tasks=("ForVisionText2Text",),
    # The norm after the encoder is of a pooled output that the model does not read.
    buffers=(
        rf"{LLAMA.buffers}|model\.vision_model\.post_layernorm\.(weight|bias)"
        r"|model\.vision_model\.embeddings\.position_ids"
        r"|model\.gated_cross_attn_layers\.\d+\.cross_attn\.rotary_emb\.inv_freq"
    ),
    expressed={
        **LLAMA.expressed,
        "picture_token": ANY,
        "gates": ANY,
        "height": ANY,
        "width": ANY,
        "resampler_d_ff": ANY,
        "pixel_mean": ANY,
        "pixel_std": ANY,
        "resampling": ["bicubic"],
    },
    fits=_fits,
)
