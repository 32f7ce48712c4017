"""A Vision Transformer and a decoder in transformers' layout: a layout for each pair of them."""

import functools
from collections.abc import Iterator
from typing import Any

from jaxformer.data.captions import CaptionsConfig
from jaxformer.interop.huggingface.foreign_layout import Layout, Tensor
from jaxformer.interop.huggingface.layouts.array_decoders import (
    BERT,
    DECODER_BUFFERS,
    GPT2,
    ROBERTA,
    TROCR,
    ArrayDecoder,
    in_section,
    pair_sizes,
    pair_tensors,
)
from jaxformer.interop.huggingface.layouts.pictures import (
    BEIT_FAMILY,
    DEIT_FAMILY,
    EXPRESSED,
    VIT_FAMILY,
    PictureFamily,
)
from jaxformer.interop.huggingface.layouts.text_models import SPECIAL
from jaxformer.interop.huggingface.preprocessor import read_preprocessor, write_preprocessor
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.captioning import VisionEncoderDecoderConfig

_EXAMPLE = """
from transformers import AutoTokenizer, NETWORK
import torch

tokenizer, model = AutoTokenizer.from_pretrained("."), NETWORK.from_pretrained(".")
encoder = model.config.encoder
size = encoder.image_size
sides = size if isinstance(size, (list, tuple)) else (size, size)
tokens = model.generate(torch.zeros(1, encoder.num_channels, *sides))
print(tokenizer.decode(tokens[0], skip_special_tokens=True))
"""
# Fields of the encoder that have the same names here.
_SHARED = ("channels", "height", "patch_size", "width")
_TROCR_TOKENS = {"pad": "pad_token", "eos": "eos_token", "unk": "unk_token"}


# What a model of the encoder alone reads, and programs of pretraining.
_ENCODER_BUFFERS = (
    r"encoder\.pooler\.(dense|layernorm)\.(weight|bias)"
    r"|encoder\.embeddings\.mask_token|encoder\..*relative_position_index"
)


def _our_name(name: str) -> str:
    """Returns our name of a field of the encoder."""
    return name if name in _SHARED else f"encoder_{name}"


def _read(family: PictureFamily, decoder: ArrayDecoder, fields: JsonFields) -> dict[str, Any]:
    of_encoder = family.read(fields, "encoder.")
    channels = fields.integer("encoder.num_channels")
    pixels = read_preprocessor(fields, channels, of_encoder["height"], width=of_encoder["width"])
    return {
        **{_our_name(name): value for name, value in of_encoder.items()},
        **decoder.settings,
        **decoder.read(fields),
        **pixels,
    }


def _write(
    family: PictureFamily,
    decoder: ArrayDecoder,
    model: VisionEncoderDecoderConfig,
) -> dict[str, Any]:
    return {
        "tie_word_embeddings": False,  # of encoder and decoder
        **in_section("encoder", family.write(model.encoder_section())),
        **in_section("decoder", decoder.write(model)),
    }


def _tensors(
    family: PictureFamily,
    decoder: ArrayDecoder,
    model: VisionEncoderDecoderConfig,
) -> Iterator[Tensor]:
    encoder = model.encoder_section()
    for tensor in pair_tensors(family.tensors(encoder), decoder, model):
        # The norm after the mean over the patches, which nothing reads here.
        if not tensor.name.startswith("encoder.pooler."):
            yield tensor


def _layout(family: PictureFamily, decoder: ArrayDecoder) -> Layout:
    encoder_fields = {theirs: _our_name(ours) for theirs, ours in family.fields.items()}
    encoder_values = {_our_name(ours): values for ours, values in family.model.items()}
    return Layout(
        model_type="vision-encoder-decoder",
        parts={"encoder": family.model_type, "decoder": decoder.model_type},
        network="VisionEncoderDecoderModel",
        section=VisionEncoderDecoderConfig,
        sections=("encoder", "decoder"),
        fields={
            **in_section("encoder", encoder_fields),
            **in_section("decoder", dict(decoder.fields)),
        },
        defaults={
            **in_section("encoder", dict(family.defaults)),
            **in_section("decoder", dict(decoder.defaults)),
        },
        only={
            "is_encoder_decoder": True,
            **in_section("encoder", {"model_type": family.model_type, **family.only}),
            **in_section("decoder", {"model_type": decoder.model_type, **decoder.only}),
        },
        ignored=(
            f"encoder[.]({family.ignored}|is_decoder|add_cross_attention|tie_word_embeddings)"
            f"|decoder[.]({decoder.ignored})|tie_word_embeddings|processor_class"
        ),
        lacks={
            **in_section("encoder", dict(family.lacks)),
            **in_section("decoder", dict(decoder.lacks)),
        },
        read=functools.partial(_read, family, decoder),
        write=functools.partial(_write, family, decoder),
        tensors=functools.partial(_tensors, family, decoder),
        sizes=functools.partial(pair_sizes, family.layout(), decoder),
        orders=decoder.orders,
        vocab_fields=("decoder.vocab_size",),
        special=SPECIAL,
        token_names=_TROCR_TOKENS,
        data=lambda model: CaptionsConfig(train="unknown", valid="unknown"),
        preprocessor=write_preprocessor,
        example=_EXAMPLE,
        tasks=(),
        buffers=f"{_ENCODER_BUFFERS}|{DECODER_BUFFERS}",
        expressed={
            **EXPRESSED,
            **encoder_values,
            **{name: [value] for name, value in decoder.settings.items()},
            **decoder.expressed,
        },
        fits=lambda model: family.fits(model.encoder_section()),
        is_exported=decoder.is_exported,
    )


VIT_GPT2 = _layout(VIT_FAMILY, GPT2)
VIT_BERT = _layout(VIT_FAMILY, BERT)
VIT_ROBERTA = _layout(VIT_FAMILY, ROBERTA)
VIT_TROCR = _layout(VIT_FAMILY, TROCR)
DEIT_GPT2 = _layout(DEIT_FAMILY, GPT2)
DEIT_BERT = _layout(DEIT_FAMILY, BERT)
DEIT_ROBERTA = _layout(DEIT_FAMILY, ROBERTA)
DEIT_TROCR = _layout(DEIT_FAMILY, TROCR)
BEIT_GPT2 = _layout(BEIT_FAMILY, GPT2)
BEIT_BERT = _layout(BEIT_FAMILY, BERT)
BEIT_ROBERTA = _layout(BEIT_FAMILY, ROBERTA)
BEIT_TROCR = _layout(BEIT_FAMILY, TROCR)
