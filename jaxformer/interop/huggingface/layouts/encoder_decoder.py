"""BERT2BERT in the layout of transformers: an EncoderDecoderModel of two BERT."""

from collections.abc import Iterator
from typing import Any

from jaxformer.interop.huggingface.foreign_layout import (
    Layout,
    Tensor,
    activation_name,
    affine,
    layer_norm,
)
from jaxformer.interop.huggingface.layouts.bert import BERT, ENCODER_FIELDS
from jaxformer.interop.huggingface.layouts.text_models import EXAMPLE, SPECIAL, pair_data
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.encoder_decoder import EncoderDecoderConfig

_FIELDS = ENCODER_FIELDS | {
    "max_position_embeddings": "max_length",
    "type_vocab_size": "num_token_types",
}
_LAYERS = "num_hidden_layers"
# Modules of a layer, and the name of the attention in each.
_ATTENTION = {"self_attention": "attention", "cross_attention": "crossattention"}
_ONLY = {
    "is_encoder_decoder": True,
    "tie_word_embeddings": True,
    "encoder.model_type": "bert",
    "encoder.is_decoder": False,
    "encoder.add_cross_attention": False,
    "encoder.tie_word_embeddings": True,
    "decoder.model_type": "bert",
    "decoder.is_decoder": True,
    "decoder.add_cross_attention": True,
    "decoder.tie_word_embeddings": True,
}


def _in_sections(values: dict[str, Any]) -> dict[str, Any]:
    """Returns fields with the same values in both sections."""
    found = {}
    for section in ("encoder", "decoder"):
        for name, value in values.items():
            found[f"{section}.{name}"] = value
    return found


def _read(fields: JsonFields) -> dict[str, Any]:
    for name, ours in {**_FIELDS, "vocab_size": "vocab_size"}.items():
        if name != _LAYERS:
            value = fields.values.get(f"encoder.{name}")
            reason = f"EncoderDecoderConfig has one {ours}"
            fields.check(f"decoder.{name}", [value], f"encoder.{name}={value!r}", reason)
    return {}


def _write(model: EncoderDecoderConfig) -> dict[str, Any]:
    """Returns the fields of the decoder."""
    values = {name: getattr(model, ours) for name, ours in _FIELDS.items()}
    values["hidden_act"] = activation_name(model.activation)
    values[_LAYERS] = model.decoder_layers
    return {f"decoder.{name}": value for name, value in values.items()}


def _embedding_tensors(place: str, side: str) -> Iterator[Tensor]:
    yield Tensor(f"{place}.word_embeddings.weight", "VD", (f"{side}_embedding",))
    yield Tensor(f"{place}.position_embeddings.weight", "MD", (f"{side}_positions",))
    yield Tensor(f"{place}.token_type_embeddings.weight", "TD", (f"{side}_types",))
    yield from layer_norm(f"{place}.LayerNorm", f"{side}_norm")


def layer_tensors(place: str, stack: str) -> Iterator[Tensor]:
    theirs = f"{place}.layer.{{n}}"
    ours = f"{stack}/layers"

    for module, name in _ATTENTION.items():
        if stack == "encoder" and module == "cross_attention":
            continue
        attention = f"{theirs}.{name}"
        for matrix in ("query", "key", "value"):
            yield from affine(f"{attention}.self.{matrix}", "QD", f"{ours}/{module}/{matrix}")
        yield from affine(f"{attention}.output.dense", "DQ", f"{ours}/{module}/output")
        yield from layer_norm(f"{attention}.output.LayerNorm", f"{ours}/{module}_residual/norm")

    network = f"{ours}/feed_forward"
    yield from affine(f"{theirs}.intermediate.dense", "FD", f"{network}/inner")
    yield from affine(f"{theirs}.output.dense", "DF", f"{network}/outer")
    yield from layer_norm(f"{theirs}.output.LayerNorm", f"{network}_residual/norm")


def _tensors(model: EncoderDecoderConfig) -> Iterator[Tensor]:
    yield from _embedding_tensors("encoder.embeddings", "src")
    yield from layer_tensors("encoder.encoder", "encoder")
    yield from _embedding_tensors("decoder.bert.embeddings", "tgt")
    yield from layer_tensors("decoder.bert.encoder", "decoder")

    head = "decoder.cls.predictions"
    yield from affine(f"{head}.transform.dense", "DD", "decoder/norm/dense")
    yield from layer_norm(f"{head}.transform.LayerNorm", "decoder/norm/norm")
    yield Tensor(f"{head}.bias", "V", ("logits_bias",))
    yield Tensor(f"{head}.decoder.bias", "V", ("logits_bias",), is_copy=True)
    yield Tensor(f"{head}.decoder.weight", "VD", ("tgt_embedding",), is_copy=True)


ENCODER_DECODER = Layout(
    model_type="encoder-decoder",
    network="EncoderDecoderModel",
    section=EncoderDecoderConfig,
    sections=("encoder", "decoder"),
    fields={
        **{f"encoder.{name}": ours for name, ours in _FIELDS.items()},
        f"decoder.{_LAYERS}": "num_decoder_layers",
    },
    defaults=_in_sections({"type_vocab_size": 2, "layer_norm_eps": 1e-12}),
    only=_ONLY | _in_sections({"position_embedding_type": "absolute"}),
    # Checked ones; of code that saved old files; and of classifiers.
    ignored=(
        "decoder[.].*(size|heads|act|prob|eps|embeddings)"
        "|(en|de)coder[.](pooler_.*|directionality|classifier_dropout)"
    ),
    read=_read,
    write=_write,
    tensors=_tensors,
    data=pair_data,
    special=SPECIAL,
    vocab_fields=("encoder.vocab_size", "decoder.vocab_size"),
    token_names=BERT.token_names,
    example=EXAMPLE,
    tasks=(),
    old_names=BERT.old_names,
    # The output of the encoder's pooler is not used.
    buffers=(
        r"encoder\.pooler\.dense\.(weight|bias)"
        r"|(encoder|decoder\.bert)\.embeddings\.(position|token_type)_ids"
    ),
)
