"""M2M-100 and NLLB in transformers' layout: the paper's Transformer with norms first."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxformer.checks import is_unicode
from jaxformer.config import ModelConfig
from jaxformer.data.m2m100_tokenizer import M2M100Tokenizer
from jaxformer.errors import UserError
from jaxformer.files import read_object, read_whole
from jaxformer.interop.huggingface.foreign_layout import Layout, Tensor
from jaxformer.interop.huggingface.layouts import pairs
from jaxformer.interop.huggingface.layouts.text_models import (
    EXAMPLE,
    SPECIAL,
    TOKEN_NAMES,
    pair_data,
)
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.architecture import absent_bias

# Fields of both stacks, after "encoder_" or "decoder_".
_SIZES = {
    "layers": "num_layers",
    "ffn_dim": "d_ff",
    "attention_heads": "num_heads",
}
_FIELDS = {
    "encoder_layers": "num_layers",
    "encoder_ffn_dim": "d_ff",
    "encoder_attention_heads": "num_heads",
    "d_model": "d_model",
    "max_position_embeddings": "max_length",
    "activation_function": "activation",
    "dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
}
_CODES = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi
hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns
oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh
zu"""
_ONLY = {
    "is_encoder_decoder": True,
    "scale_embedding": True,
    "tie_word_embeddings": True,
    "activation_dropout": 0.0,
}
# Our fields that have one value in all models.
_FIXED = {
    "norm_position": "pre",
    "positions": "fairseq",
    "biases": True,
    "norm_epsilon": 1e-5,
}
_SPECIAL_PIECES = ["<s>", "<pad>", "</s>", "<unk>"]
_UNKNOWN_PIECE = "\ud800"  # of an id that vocab.json lacks; no text has it


def read_tokenizer(path: pathlib.Path, languages: Sequence[str], size: int) -> M2M100Tokenizer:
    """Reads the SentencePiece model of M2M-100, and vocab.json beside it."""
    place = path.with_name("vocab.json")
    ids = read_object(place, advice="M2M-100 has one beside sentencepiece.bpe.model")
    by_number = {number: piece for piece, number in ids.items() if isinstance(number, int)}
    pieces = [by_number.get(number, _UNKNOWN_PIECE) for number in range(len(ids))]

    codes = _CODES.split()

    num_special = len(_SPECIAL_PIECES)
    is_known = pieces[:num_special] == _SPECIAL_PIECES and is_unicode("".join(pieces))
    num_unused = size - len(pieces) - len(codes)
    if not is_known or num_unused < 0:
        raise UserError(
            f"{place}: expected ids from 0, of <s>, <pad>, </s>, <unk> and pieces, fewer than "
            f"vocab_size={size} with {len(codes)} languages"
        )

    model = read_whole(path)
    names = [
        "<s>",
        *pieces[num_special:],
        *(f"__{code}__" for code in codes),
        *(f"<madeupword{number}>" for number in range(num_unused)),
    ]
    return M2M100Tokenizer.assemble(model, model, names, languages=" to ".join(languages))


def _code_follows(name: str, settings: JsonFields) -> bool:
    settings.check("legacy_behaviour", [False], "false", "sources begin with their language")
    settings.check("language_codes", ["m2m100"], "m2m100", "list of languages is this")
    return False


def _read(fields: JsonFields) -> dict[str, Any]:
    pairs.check_same_sizes(fields, _SIZES, ModelConfig)
    return dict(_FIXED)


def _write(model: ModelConfig) -> dict[str, Any]:
    return {f"decoder_{name}": getattr(model, ours) for name, ours in _SIZES.items()}


def _tensors(model: ModelConfig) -> Iterator[Tensor]:
    yield from pairs.embedding_tensors()
    for stack in ("encoder", "decoder"):
        yield from pairs.stack_tensors(stack, model.norm_position)


def _constants(model: ModelConfig, absent: str) -> dict[str, Float[np.ndarray, "..."]]:
    """Returns the bias of the logits: files have none, and absent tokens are never generated."""
    bias = np.zeros(model.vocab_size, np.float32)
    of_absent = absent_bias(absent, model.vocab_size)
    if of_absent is not None:
        bias = bias + of_absent
    return {"logits_bias": bias}


M2M100 = Layout(
    model_type="m2m_100",
    network="M2M100ForConditionalGeneration",
    section=ModelConfig,
    fields=_FIELDS,
    defaults={"decoder_start_token_id": 2},
    only=_ONLY,
    lacks={"encoder_layerdrop": "", "decoder_layerdrop": ""},
    # Checked ones, and another name of encoder_layers.
    ignored="decoder_(layers|ffn_dim|attention_heads)|num_hidden_layers",
    read=_read,
    write=_write,
    tensors=_tensors,
    constants=_constants,
    data=pair_data,
    special=SPECIAL,
    token_names=TOKEN_NAMES,
    tokenizer_class="NllbTokenizer",
    example=EXAMPLE,
    prefix=pairs.PREFIX,
    tasks=("ForConditionalGeneration",),
    has_languages=True,
    code_follows=_code_follows,
    buffers=r"(en|de)coder\.embed_positions\.weights",
    expressed={name: [value] for name, value in _FIXED.items()},
)
