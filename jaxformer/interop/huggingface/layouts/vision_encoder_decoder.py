"""A Vision Transformer and a decoder in transformers' layout: a layout for each decoder."""

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
from jaxformer.interop.huggingface.layouts.pictures import EXPRESSED, VIT, write_image_size
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
_SHARED = ("channels", "patch_size")
_TROCR_TOKENS = {"pad": "pad_token", "eos": "eos_token", "unk": "unk_token"}


def _encoder_fields() -> dict[str, str]:
    """Returns the fields of the section ``encoder``, and ours."""
    fields = {}
    for theirs, ours in VIT.fields.items():
        fields[f"encoder.{theirs}"] = ours if ours in _SHARED else f"encoder_{ours}"
    return fields


def _read(decoder: ArrayDecoder, fields: JsonFields) -> dict[str, Any]:
    # One number is the size of a square, two are height and width.
    size = fields.values["encoder.image_size"]
    is_pair = isinstance(size, list) and len(size) == 2
    height, width = size if is_pair else (size, size)
    fields.values |= {"height": height, "width": width}
    height = fields.integer("height")
    width = fields.integer("width")

    channels = fields.integer("encoder.num_channels")
    has_all_biases = fields.boolean("encoder.qkv_bias")
    return {
        "height": height,
        "width": width,
        "encoder_biases": "all" if has_all_biases else "output",
        **decoder.settings,
        **decoder.read(fields),
        **read_preprocessor(fields, channels, height, width=width),
    }


def _write(decoder: ArrayDecoder, model: VisionEncoderDecoderConfig) -> dict[str, Any]:
    encoder = {
        **write_image_size(model.height, model.width),
        "qkv_bias": model.encoder_biases == "all",
    }
    return {
        "tie_word_embeddings": False,  # of encoder and decoder
        **in_section("encoder", encoder),
        **in_section("decoder", decoder.write(model)),
    }


def _tensors(decoder: ArrayDecoder, model: VisionEncoderDecoderConfig) -> Iterator[Tensor]:
    return pair_tensors(VIT.tensors(model.encoder_section()), decoder, model)


def _layout(decoder: ArrayDecoder) -> Layout:
    return Layout(
        model_type="vision-encoder-decoder",
        parts={"encoder": "vit", "decoder": decoder.model_type},
        network="VisionEncoderDecoderModel",
        section=VisionEncoderDecoderConfig,
        sections=("encoder", "decoder"),
        fields={**_encoder_fields(), **in_section("decoder", dict(decoder.fields))},
        defaults={
            **in_section("encoder", dict(VIT.defaults)),
            **in_section("decoder", dict(decoder.defaults)),
        },
        only={
            "is_encoder_decoder": True,
            **in_section("encoder", {"model_type": "vit", **VIT.only}),
            **in_section("decoder", {"model_type": decoder.model_type, **decoder.only}),
        },
        ignored=(
            f"encoder[.]({VIT.ignored}|is_decoder|add_cross_attention|tie_word_embeddings)"
            f"|decoder[.]({decoder.ignored})|tie_word_embeddings|processor_class"
        ),
        lacks=in_section("decoder", dict(decoder.lacks)),
        read=functools.partial(_read, decoder),
        write=functools.partial(_write, decoder),
        tensors=functools.partial(_tensors, decoder),
        sizes=functools.partial(pair_sizes, VIT, decoder),
        orders=decoder.orders,
        vocab_fields=("decoder.vocab_size",),
        special=SPECIAL,
        token_names=_TROCR_TOKENS,
        data=lambda model: CaptionsConfig(train="unknown", valid="unknown"),
        preprocessor=write_preprocessor,
        example=_EXAMPLE,
        tasks=(),
        # The output of the encoder's pooler is not used.
        buffers=rf"encoder\.pooler\.dense\.(weight|bias)|{DECODER_BUFFERS}",
        expressed={
            **EXPRESSED,
            **{name: [value] for name, value in decoder.settings.items()},
            **decoder.expressed,
            "encoder_biases": ["all", "output"],
        },
        is_exported=decoder.is_exported,
    )


VIT_GPT2 = _layout(GPT2)
VIT_BERT = _layout(BERT)
VIT_ROBERTA = _layout(ROBERTA)
VIT_TROCR = _layout(TROCR)
