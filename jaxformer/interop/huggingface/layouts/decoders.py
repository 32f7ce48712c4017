"""OPT, GPT-Neo, GPT-J, BLOOM and XGLM in transformers' layout: decoders like GPT-2, a row for each.

A row has the fields of config.json, the names of the tensors, and the settings of ``GPT2Config``
that all models of the family have.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from jaxformer.errors import UserError
from jaxformer.interop.huggingface.foreign_layout import ANY, Layout, Tensor, affine, layer_norm
from jaxformer.interop.huggingface.layouts.text_models import EXAMPLE, stream_data
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.gpt2 import GPT2Config

# The first rows of learned positions of OPT, which no token has: fairseq counts from its padding.
_OPT_ROWS = 2


class Names(NamedTuple):
    """Names of the tensors of a family, without the prefix of the layout."""

    embedding: str
    layer: str  # begins the names that follow
    attention: tuple[str, ...]  # queries, keys, values and output; or the first three in one
    network: tuple[str, str]
    norms: tuple[str, ...]  # before or after attention, and the network; one if both are parallel
    final_norm: str  # after the layers
    positions: str = ""
    embedding_norm: str = ""


def _tensors(names: Names, model: GPT2Config) -> Iterator[Tensor]:
    """Yields the tensors of a model, with an axis of our own.

    G is queries or keys in the order of rotary positions.
    """
    is_tied = model.embeddings == "tied"
    yield Tensor(f"{names.embedding}.weight", "VE", ("embedding",))
    yield Tensor("lm_head.weight", "VE", model.embedding_names[2:], is_copy=is_tied)
    if model.output_bias:
        yield Tensor("lm_head.bias", "V", ("logits_bias",))

    if model.positions == "learned":
        yield Tensor(f"{names.positions}.weight", "MD", ("positions",))
    if model.embedding_norm:
        yield from layer_norm(names.embedding_norm, "embedding_norm")
    if model.embedding_width != model.d_model:
        yield from affine("decoder.project_in", "DE", "input_projection", bias=False)
        yield from affine("decoder.project_out", "ED", "final_projection", bias=False)
    if model.norm_position == "pre":
        yield from layer_norm(names.final_norm, "decoder/norm")

    parts = ("self_attention", "feed_forward")
    for name, part in zip(names.norms, parts, strict=False):
        yield from layer_norm(f"{names.layer}.{name}", f"decoder/layers/{part}_residual/norm")

    yield from _attention(names, model)
    for name, axes, matrix in zip(names.network, ("FD", "DF"), ("inner", "outer"), strict=True):
        yield from affine(f"{names.layer}.{name}", axes, f"decoder/layers/feed_forward/{matrix}")


def _attention(names: Names, model: GPT2Config) -> Iterator[Tensor]:
    *inputs, output = [f"{names.layer}.{name}" for name in names.attention]
    attention = "decoder/layers/self_attention"
    query, key, value = [f"{attention}/{name}" for name in ("query", "key", "value")]

    if len(inputs) == 1:
        paths = (query, key, value)
        biases = tuple(f"{path}_bias" for path in paths)
        yield Tensor(f"{inputs[0]}.weight", "CD", paths, is_linear=True)
        yield Tensor(f"{inputs[0]}.bias", "C", biases)
    else:
        is_biased = model.attention_biases == "all"
        yield from affine(inputs[0], "GD", query, is_biased)
        yield from affine(inputs[1], "GD", key, is_biased)
        yield from affine(inputs[2], "KD", value, is_biased)
    yield from affine(output, "DQ", f"{attention}/output", model.attention_biases != "none")


def _sizes(model: GPT2Config) -> dict[str, int]:
    return {"G": model.num_heads * model.key_size}


def _fix_settings(**settings: Any) -> dict[str, Any]:
    """Returns the arguments of a layout whose models all have these settings."""
    return {
        "read": lambda fields: settings,
        "expressed": {name: [value] for name, value in settings.items()},
    }


_FAIRSEQ_ATTENTION = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.out_proj",
)
_FAIRSEQ_NORMS = ("self_attn_layer_norm", "final_layer_norm")


def _read_opt(fields: JsonFields) -> dict[str, Any]:
    size = None
    if fields.values["word_embed_proj_dim"] is not None:
        size = fields.integer("word_embed_proj_dim")
    norm_position = "pre" if fields.boolean("do_layer_norm_before") else "post"
    return {"norm_position": norm_position, "embedding_size": size}


def _write_opt(model: GPT2Config) -> dict[str, Any]:
    return {
        "do_layer_norm_before": model.norm_position == "pre",
        "word_embed_proj_dim": model.embedding_width,
    }


OPT = Layout(
    model_type="opt",
    network="OPTForCausalLM",
    section=GPT2Config,
    fields={
        "hidden_size": "d_model",
        "ffn_dim": "d_ff",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "max_position_embeddings": "max_length",
        "activation_function": "activation",
        "dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
    },
    defaults={
        "max_position_embeddings": 2048,
        "activation_function": "relu",
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "do_layer_norm_before": True,
        "word_embed_proj_dim": None,
    },
    only={
        "_remove_final_layer_norm": False,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
    },
    lacks={"layerdrop": ""},
    ignored="layerdrop|activation_dropout",  # transformers does not read the second.
    read=_read_opt,
    write=_write_opt,
    tensors=functools.partial(
        _tensors,
        Names(
            embedding="decoder.embed_tokens",
            layer="decoder.layers.{n}",
            attention=_FAIRSEQ_ATTENTION,
            network=("fc1", "fc2"),
            norms=_FAIRSEQ_NORMS,
            final_norm="decoder.final_layer_norm",
            positions="decoder.embed_positions",
        ),
    ),
    sizes=lambda model: {**_sizes(model), "M": model.max_length + _OPT_ROWS},
    orders=lambda model: {"M": np.arange(model.max_length) + _OPT_ROWS},
    data=stream_data,
    example=EXAMPLE,
    prefix="model.",
    tasks=("ForCausalLM",),
    expressed={"norm_position": ANY, "embedding_size": ANY},
)

XGLM = dataclasses.replace(
    OPT,
    model_type="xglm",
    network="XGLMForCausalLM",
    fields={
        "d_model": "d_model",
        "ffn_dim": "d_ff",
        "attention_heads": "num_heads",
        "num_layers": "num_layers",
        "max_position_embeddings": "max_length",
        "activation_function": "activation",
        "scale_embedding": "scaled_embedding",
        "dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
    },
    defaults={
        "max_position_embeddings": 2048,
        "activation_function": "gelu",
        "scale_embedding": True,
        "dropout": 0.1,
        "attention_dropout": 0.1,
    },
    only={"activation_dropout": 0.0, "add_cross_attention": False, "tie_word_embeddings": True},
    ignored="layerdrop",
    write=lambda model: {},
    tensors=functools.partial(
        _tensors,
        Names(
            embedding="embed_tokens",
            layer="layers.{n}",
            attention=_FAIRSEQ_ATTENTION,
            network=("fc1", "fc2"),
            norms=_FAIRSEQ_NORMS,
            final_norm="layer_norm",
        ),
    ),
    sizes=_sizes,
    orders=lambda model: {},
    buffers=r"embed_positions\.weights",
    **_fix_settings(positions="fairseq"),
)


def _check_embedding_dropout(fields: JsonFields, name: str, other: str) -> None:
    same = fields.values[other]
    fields.check(name, [same], f"{other}={same!r}", "GPT2Config has one dropout_rate")


def _network_width(fields: JsonFields, name: str, d_model: str) -> int:
    if fields.values[name] is None:
        return 4 * fields.integer(d_model)
    return fields.integer(name)


def _read_gpt_neo(fields: JsonFields) -> dict[str, Any]:
    _check_embedding_dropout(fields, "embed_dropout", "resid_dropout")
    return {
        "d_ff": _network_width(fields, "intermediate_size", "hidden_size"),
        "scaled_scores": False,
        "attention_biases": "output",
        **_read_windows(fields),
    }


def _layer_types(window_every: int | None, num_layers: int) -> list[str]:
    """Returns the type of each layer: every n-th is local; none if n is None."""
    types = ["global"] * num_layers
    if window_every is not None:
        types[window_every - 1 :: window_every] = ["local"] * (num_layers // window_every)
    return types


def _read_windows(fields: JsonFields) -> dict[str, Any]:
    num_layers = fields.integer("num_layers")
    given = fields.values["attention_types"]
    try:
        expanded = []
        for types, times in given:
            expanded += list(types) * int(times)
    except (TypeError, ValueError):
        expanded = []

    if expanded == _layer_types(None, num_layers):
        return {}
    for every in range(1, num_layers + 1):
        if expanded == _layer_types(every, num_layers):
            # Theirs is the number of tokens that are seen, ours the distance of the last of them.
            return {"window": fields.integer("window_size") - 1, "window_every": every}

    raise UserError(
        f"{fields.place}: expected attention_types with a type for each of {num_layers} layers, "
        f"all global, or every n-th local: got {given!r:.200}"
    )


def _write_gpt_neo(model: GPT2Config) -> dict[str, Any]:
    every = None if model.window is None else model.window_every
    layers = _layer_types(every, model.num_layers)
    return {
        "intermediate_size": model.d_ff,
        "embed_dropout": model.dropout_rate,
        "attention_types": [[layers, 1]],
        "attention_layers": layers,
        "window_size": 256 if model.window is None else model.window + 1,
    }


GPT_NEO = dataclasses.replace(
    OPT,
    model_type="gpt_neo",
    network="GPTNeoForCausalLM",
    fields={
        "hidden_size": "d_model",
        "num_heads": "num_heads",
        "num_layers": "num_layers",
        "max_position_embeddings": "max_length",
        "activation_function": "activation",
        "layer_norm_epsilon": "norm_epsilon",
        "resid_dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
    },
    defaults={
        "intermediate_size": None,
        "max_position_embeddings": 2048,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "resid_dropout": 0.0,
        "embed_dropout": 0.0,
        "attention_dropout": 0.0,
        "attention_types": [[["global", "local"], 12]],
        "window_size": 256,
    },
    only={"tie_word_embeddings": True},
    lacks={},
    # The first follows from attention_types.
    ignored="attention_layers|classifier_dropout|summary_.*",
    read=_read_gpt_neo,
    write=_write_gpt_neo,
    tensors=functools.partial(
        _tensors,
        Names(
            embedding="wte",
            layer="h.{n}",
            attention=(
                "attn.attention.q_proj",
                "attn.attention.k_proj",
                "attn.attention.v_proj",
                "attn.attention.out_proj",
            ),
            network=("mlp.c_fc", "mlp.c_proj"),
            norms=("ln_1", "ln_2"),
            final_norm="ln_f",
            positions="wpe",
        ),
    ),
    sizes=_sizes,
    orders=lambda model: {},
    prefix="transformer.",
    buffers=r"h\.\d+\.attn\.attention\.(masked_)?bias",  # masks
    expressed={
        "d_ff": ANY,
        "window": ANY,
        "window_every": ANY,
        "scaled_scores": [False],
        "attention_biases": ["output"],
    },
)


def _fused_order(model: GPT2Config) -> Int[np.ndarray, " indices"]:
    """Returns the index in a file of queries, keys and values: [H, 3, K] there, ours [3, H, K]."""
    shape = (model.num_heads, 3, model.key_size)
    return np.arange(3 * model.d_model).reshape(shape).swapaxes(0, 1).reshape(-1)


_BLOOM = _fix_settings(positions="alibi", embedding_norm=True, activation="gelu")
BLOOM = dataclasses.replace(
    OPT,
    model_type="bloom",
    network="BloomForCausalLM",
    fields={
        "hidden_size": "d_model",
        "n_head": "num_heads",
        "n_layer": "num_layers",
        "seq_length": "max_length",
        "layer_norm_epsilon": "norm_epsilon",
        "hidden_dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
    },
    renamed={"n_embed": "hidden_size", "num_attention_heads": "n_head"},
    defaults={
        "seq_length": 2048,  # of some files; transformers has no limit
        "layer_norm_epsilon": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    only={
        "apply_residual_connection_post_layernorm": False,
        "slow_but_exact": False,
        "tie_word_embeddings": True,
    },
    lacks={},
    # Fields of the program that trained it. Only slow_but_exact reads pretraining_tp.
    ignored=(
        "pretraining_tp|attention_softmax_in_fp32|bias_dropout_fusion"
        "|masked_softmax_fusion|n_inner|offset_alibi|skip_bias_add|skip_bias_add_qkv"
    ),
    read=lambda fields: {**_BLOOM["read"](fields), "d_ff": 4 * fields.integer("hidden_size")},
    write=lambda model: {},
    tensors=functools.partial(
        _tensors,
        Names(
            embedding="word_embeddings",
            layer="h.{n}",
            attention=("self_attention.query_key_value", "self_attention.dense"),
            network=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
            norms=("input_layernorm", "post_attention_layernorm"),
            final_norm="ln_f",
            embedding_norm="word_embeddings_layernorm",
        ),
    ),
    sizes=_sizes,
    orders=lambda model: {"C": _fused_order(model)},
    prefix="transformer.",
    expressed={**_BLOOM["expressed"], "d_ff": ANY},
    fits=lambda model: model.d_ff == 4 * model.d_model,
)


def _rotary_order(model: GPT2Config) -> Int[np.ndarray, " indices"]:
    """Returns the index in a file of queries or keys, whose rotated pairs are neighbors there.

    Ours are half of the rotated part apart.
    """
    size = model.rotary_size or model.key_size
    within = np.concatenate(
        [np.arange(0, size, 2), np.arange(1, size, 2), np.arange(size, model.key_size)]
    )
    heads = np.arange(model.num_heads)[:, None]
    return (heads * model.key_size + within).reshape(-1)


_GPTJ = _fix_settings(
    positions="rotary",
    is_parallel=True,
    attention_biases="none",
    output_bias=True,
)


def _read_gptj(fields: JsonFields) -> dict[str, Any]:
    _check_embedding_dropout(fields, "embd_pdrop", "resid_pdrop")
    return {
        **_GPTJ["read"](fields),
        "d_ff": _network_width(fields, "n_inner", "n_embd"),
        "rotary_size": fields.integer("rotary_dim"),
        "embeddings": "tied" if fields.boolean("tie_word_embeddings") else "separate",
    }


def _write_gptj(model: GPT2Config) -> dict[str, Any]:
    return {
        "n_inner": model.d_ff,
        "embd_pdrop": model.dropout_rate,
        "rotary_dim": model.rotary_size or model.key_size,
        "tie_word_embeddings": model.embeddings == "tied",
    }


GPTJ = dataclasses.replace(
    OPT,
    model_type="gptj",
    network="GPTJForCausalLM",
    fields={
        "n_embd": "d_model",
        "n_head": "num_heads",
        "n_layer": "num_layers",
        "n_positions": "max_length",
        "activation_function": "activation",
        "layer_norm_epsilon": "norm_epsilon",
        "resid_pdrop": "dropout_rate",
        "attn_pdrop": "attention_dropout_rate",
    },
    defaults={
        "n_inner": None,
        "n_positions": 2048,
        "rotary_dim": 64,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": False,
    },
    only={"rotary": True, "scale_attn_weights": True},
    lacks={},
    ignored="summary_.*",
    read=_read_gptj,
    write=_write_gptj,
    tensors=functools.partial(
        _tensors,
        Names(
            embedding="wte",
            layer="h.{n}",
            attention=("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj"),
            network=("mlp.fc_in", "mlp.fc_out"),
            norms=("ln_1",),
            final_norm="ln_f",
        ),
    ),
    sizes=_sizes,
    orders=lambda model: {"G": _rotary_order(model)},
    prefix="transformer.",
    buffers=r"h\.\d+\.attn\.(masked_bias|bias|embed_positions)",  # masks and sinusoids
    expressed={
        **_GPTJ["expressed"],
        "d_ff": ANY,
        "rotary_size": ANY,
        "embeddings": ANY,
    },
)
