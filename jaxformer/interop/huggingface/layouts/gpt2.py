"""GPT-2 in transformers' layout."""

from collections.abc import Iterator
from typing import Any

from jaxformer.interop.huggingface.foreign_layout import ANY, Layout, Tensor, layer_norm
from jaxformer.interop.huggingface.layouts.text_models import EXAMPLE, stream_data
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.architecture import Architecture
from jaxformer.models.gpt2 import GPT2Config

_LAYER = "decoder/layers"
_FIELDS = {
    "n_embd": "d_model",
    "n_head": "num_heads",
    "n_layer": "num_layers",
    "n_positions": "max_length",
    "activation_function": "activation",
    "resid_pdrop": "dropout_rate",
    "attn_pdrop": "attention_dropout_rate",
    "layer_norm_epsilon": "norm_epsilon",
}
_DEFAULTS = {
    "n_inner": None,
    "n_positions": 1024,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
}
_ONLY = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def _read(fields: JsonFields) -> dict[str, Any]:
    same = fields.values["resid_pdrop"]
    fields.check("embd_pdrop", [same], f"resid_pdrop={same!r}", "GPT2Config has one dropout_rate")

    d_ff = 4 * fields.integer("n_embd")
    if fields.values["n_inner"] is not None:
        d_ff = fields.integer("n_inner")
    return {"d_ff": d_ff}


def _tensors(model: Architecture) -> Iterator[Tensor]:
    yield Tensor("wte.weight", "VD", ("embedding",))
    yield Tensor("lm_head.weight", "VD", ("embedding",), is_copy=True)
    yield Tensor("wpe.weight", "MD", ("positions",))
    yield from layer_norm("ln_f", "decoder/norm")

    attention = f"{_LAYER}/self_attention"
    network = f"{_LAYER}/feed_forward"
    yield from layer_norm("h.{n}.ln_1", f"{attention}_residual/norm")
    yield from layer_norm("h.{n}.ln_2", f"{network}_residual/norm")

    # Conv1D, whose axes are [in, out].
    for theirs, axes, ours in (
        ("attn.c_attn", "DC", [f"{attention}/{name}" for name in ("query", "key", "value")]),
        ("attn.c_proj", "QD", [f"{attention}/output"]),
        ("mlp.c_fc", "DF", [f"{network}/inner"]),
        ("mlp.c_proj", "FD", [f"{network}/outer"]),
    ):
        yield Tensor(f"h.{{n}}.{theirs}.weight", axes, tuple(ours))
        yield Tensor(f"h.{{n}}.{theirs}.bias", axes[1], tuple(f"{path}_bias" for path in ours))


GPT2 = Layout(
    model_type="gpt2",
    network="GPT2LMHeadModel",
    section=GPT2Config,
    fields=_FIELDS,
    defaults=_DEFAULTS,
    only=_ONLY,
    ignored="is_decoder",  # transformers does not read it
    read=_read,
    write=lambda model: {"n_inner": model.d_ff, "embd_pdrop": model.dropout_rate},
    tensors=_tensors,
    data=stream_data,
    example=EXAMPLE,
    # With ReLU, it is an OPT.
    expressed={"d_ff": ANY, "activation": ["gelu", "gelu_exact", "swish"]},
    prefix="transformer.",
    tasks=(),
    buffers=r"h\.\d+\.attn\.(masked_)?bias",  # masks
)
