"""BART, mBART, PEGASUS, Blenderbot and Blenderbot-small in transformers' layout: one table.

Each row is a model of its own in transformers, and a :class:`BartConfig` here. M2M-100 has the same
tensors in its layers, and a file of its own.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.interop.huggingface.foreign_layout import (
    Layout,
    Tensor,
    affine,
    layer_norm,
)
from jaxformer.interop.huggingface.layouts.text_models import (
    EXAMPLE,
    SPECIAL,
    TOKEN_NAMES,
    pair_data,
)
from jaxformer.interop.json_fields import JsonFields
from jaxformer.interop.marian.marian_names import LINEAR, NORMS
from jaxformer.models.architecture import Architecture
from jaxformer.models.bart import BartConfig

PREFIX = "model."
# The axes of the matrices of a layer; the others are "QD".
_AXES = {
    "output": "DQ",
    "inner": "FD",
    "outer": "DF",
}
_FIELDS = {
    "encoder_layers": "num_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_ffn_dim": "d_ff",
    "encoder_attention_heads": "num_heads",
    "d_model": "d_model",
    "max_position_embeddings": "max_length",
    "activation_function": "activation",
    "dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
    "scale_embedding": "scaled_embeddings",
}
# Sizes that a file has for each stack, and our field for both.
_SAME_SIZES = {
    "ffn_dim": "d_ff",
    "attention_heads": "num_heads",
}
# Defaults of transformers. Files of 2020 leave some out.
_DEFAULTS = {
    "activation_function": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "scale_embedding": False,
}
_ONLY = {
    "is_encoder_decoder": True,
    "is_decoder": False,
    "tie_word_embeddings": True,
}
_LACKS = {
    "activation_dropout": " within feed-forward networks",
    "encoder_layerdrop": "",
    "decoder_layerdrop": "",
}
# Of training; of another head; another name of encoder_layers; checked ones; and notes of fairseq
# and ParlAI about the model's parts, which transformers does not read.
_IGNORED = (
    r"activation_dropout|(en|de)coder_layerdrop|classif(ier)?_dropout|num_hidden_layers"
    r"|decoder_(ffn_dim|attention_heads)|add_bias_logits|add_final_layer_norm"
    r"|do_blenderbot_90_layernorm|extra_layer_norm|extra_pos_embeddings"
    r"|force_bos_token_to_be_generated|layernorm_variant|normalize_(before|embedding)"
    r"|static_position_embeddings|variant"
)
# The tokenizer of mbart-large-50 and its children; other models have mbart-large-cc25's.
_MBART_50 = "MBart50Tokenizer"
_SINUSOIDS = r"(en|de)coder\.embed_positions\.weight"  # the same in all files


def check_same_sizes(fields: JsonFields, sizes: dict[str, str], section: type) -> None:
    """Refuses a decoder with other sizes than the encoder."""
    for name, ours in sizes.items():
        size = fields.integer(f"encoder_{name}")
        reason = f"{section.__name__} has one {ours}"
        fields.check(f"decoder_{name}", [size], f"encoder_{name}={size}", reason)


def stack_tensors(stack: str, norm_position: str) -> Iterator[Tensor]:
    """Yields the tensors of the encoder's layers, or of the decoder's, and of their last norm."""
    if norm_position == "pre":
        yield from layer_norm(f"{stack}.layer_norm", f"{stack}/norm")

    theirs = f"{stack}.layers.{{n}}"
    layer = f"{stack}/layers"

    skipped = "cross_attention" if stack == "encoder" else ""
    for module, name in NORMS.items():
        if module != skipped:
            yield from layer_norm(f"{theirs}.{name}", f"{layer}/{module}_residual/norm")

    for name, (module, matrix) in LINEAR.items():
        if module != skipped:
            axes = _AXES.get(matrix, "QD")
            yield from affine(f"{theirs}.{name}", axes, f"{layer}/{module}/{matrix}")


def embedding_tensors() -> Iterator[Tensor]:
    """Yields the embeddings that source, target and output share, and the copies in some files."""
    yield Tensor("shared.weight", "VD", ("embedding",))
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        yield Tensor(name, "VD", ("embedding",), is_copy=True)


def _tensors(model: BartConfig) -> Iterator[Tensor]:
    yield from embedding_tensors()
    yield Tensor("final_logits_bias", "1V", ("logits_bias",), is_optional=True)

    for stack, side in (("encoder", "src"), ("decoder", "tgt")):
        if model.positions == "learned":
            yield Tensor(f"{stack}.embed_positions.weight", "MD", (f"{side}_positions",))
        if model.embedding_norm != "none":
            yield from layer_norm(f"{stack}.layernorm_embedding", f"{side}_norm")
        yield from stack_tensors(stack, model.norm_position)


class _Row(NamedTuple):
    """The differences of a model from the others.

    Attributes:
      network: Its class in transformers, before "ForConditionalGeneration".
      norm_position: As the next two, a field of :class:`BartConfig`.
      positions: "learned", or "sinusoidal" where files have none.
      embedding_norm: Sides with a norm of embeddings.
      start: Default of ``decoder_start_token_id``.
      first_position: Row of the position 0 in a table of learned positions.
    """

    network: str
    norm_position: str
    positions: str
    embedding_norm: str
    start: int
    first_position: int = 0

    @property
    def own_fields(self) -> dict[str, Any]:
        """Our fields that have one value in all files of the model."""
        return {
            "norm_position": self.norm_position,
            "positions": self.positions,
            "embedding_norm": self.embedding_norm,
            "norm_epsilon": 1e-5,
        }


def _read(row: _Row, fields: JsonFields) -> dict[str, Any]:
    check_same_sizes(fields, _SAME_SIZES, BartConfig)
    return row.own_fields


def _write(model: BartConfig) -> dict[str, Any]:
    sizes = {f"decoder_{name}": getattr(model, ours) for name, ours in _SAME_SIZES.items()}
    return sizes | {"decoder_layers": model.decoder_layers}


def _orders(row: _Row, model: BartConfig) -> dict[str, Int[np.ndarray, " indices"]]:
    """Returns the rows of positions that tokens read, or the order of the features."""
    if model.positions == "learned":
        rows = np.arange(model.max_length)
        return {"M": rows + row.first_position}

    # PEGASUS has all sines before all cosines, the same numbers as the paper's pairs. The output of
    # a model does not depend on the order of its features.
    sines, cosines = np.arange(model.d_model).reshape(2, -1)
    pairs = np.stack([sines, cosines], axis=1)
    return {"D": pairs.reshape(-1)}


def _sizes(row: _Row, model: Architecture) -> dict[str, int]:
    return {"M": model.max_length + row.first_position}


def _layout(model_type: str, row: _Row) -> Layout:
    return Layout(
        model_type=model_type,
        network=f"{row.network}ForConditionalGeneration",
        section=BartConfig,
        fields=_FIELDS,
        defaults=_DEFAULTS | {"decoder_start_token_id": row.start},
        only=_ONLY,
        lacks=_LACKS,
        ignored=_IGNORED,
        read=functools.partial(_read, row),
        write=_write,
        tensors=_tensors,
        sizes=functools.partial(_sizes, row),
        orders=functools.partial(_orders, row),
        data=pair_data,
        special=SPECIAL,
        token_names=TOKEN_NAMES,
        example=EXAMPLE,
        prefix=PREFIX,
        heads=("lm_head.", "final_logits_bias"),
        tasks=("ForConditionalGeneration",),
        buffers="(?!)" if row.positions == "learned" else _SINUSOIDS,
        expressed={name: [value] for name, value in row.own_fields.items()},
    )


def _code_follows(name: str, settings: JsonFields) -> bool:
    return name != _MBART_50


def _mbart_tokenizer(tokenizer: HuggingFaceTokenizer) -> str:
    return "MBartTokenizer" if tokenizer.code_follows else _MBART_50


BART = _layout("bart", _Row("Bart", "post", "learned", "both", start=2, first_position=2))
MBART = dataclasses.replace(
    _layout("mbart", _Row("MBart", "pre", "learned", "both", start=2, first_position=2)),
    has_languages=True,
    code_follows=_code_follows,
    tokenizer_class=_mbart_tokenizer,
)
PEGASUS = _layout("pegasus", _Row("Pegasus", "pre", "sinusoidal", "none", start=0))
BLENDERBOT = _layout("blenderbot", _Row("Blenderbot", "pre", "learned", "none", start=1))
BLENDERBOT_SMALL = _layout(
    "blenderbot-small", _Row("BlenderbotSmall", "post", "learned", "encoder", start=1)
)
