"""Wav2Vec 2.0 and a decoder in transformers' layout: a layout for each decoder."""

import functools
from collections.abc import Iterator
from typing import Any

from jaxformer.data.transcripts import TranscriptsConfig
from jaxformer.interop.huggingface.foreign_layout import ANY, Layout, Tensor
from jaxformer.interop.huggingface.layouts.array_decoders import (
    BERT,
    DECODER_BUFFERS,
    GPT2,
    ROBERTA,
    ArrayDecoder,
    in_section,
    pair_sizes,
    pair_tensors,
)
from jaxformer.interop.huggingface.layouts.text_models import SPECIAL, TOKEN_NAMES
from jaxformer.interop.huggingface.layouts.wav2vec2 import (
    WAV2VEC2,
    encoder_tensors,
    preprocessor,
    read_convolutions,
    read_extractor,
    read_norm_position,
    write_encoder,
)
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.speech_text import SpeechEncoderDecoderConfig

_EXAMPLE = """
from transformers import AutoFeatureExtractor, AutoTokenizer, NETWORK
import numpy as np

extractor, tokenizer = AutoFeatureExtractor.from_pretrained("."), AutoTokenizer.from_pretrained(".")
model = NETWORK.from_pretrained(".")
rate = extractor.sampling_rate
wave = np.zeros(rate)  # a second of silence
inputs = extractor(wave, sampling_rate=rate, return_tensors="pt")
tokens = model.generate(**inputs)
print(tokenizer.decode(tokens[0], skip_special_tokens=True))
"""
# Fields of the encoder that have the same names here.
_SHARED = ("conv_bias", "position_kernel", "position_groups")
# Of its heads, and of training.
_UNUSED = (
    "codebooks",
    "codebook_entries",
    "code_size",
    "contrast_size",
    "num_negatives",
    "mask_rate",
    "mask_length",
)


def _encoder_fields() -> dict[str, str]:
    """Returns the fields of the section ``encoder``, and ours."""
    fields = {}
    for theirs, ours in WAV2VEC2.fields.items():
        if ours not in _UNUSED:
            fields[f"encoder.{theirs}"] = ours if ours in _SHARED else f"encoder_{ours}"
    return fields


def _unused_fields() -> str:
    """Returns a pattern of the fields of the encoder that our model does not use."""
    unused = [theirs for theirs, ours in WAV2VEC2.fields.items() if ours in _UNUSED]
    return "|".join(unused)


def _read(decoder: ArrayDecoder, fields: JsonFields) -> dict[str, Any]:
    return {
        "encoder_norm_position": read_norm_position(fields, "encoder."),
        **read_convolutions(fields, "encoder."),
        **read_extractor(fields),
        **decoder.settings,
        **decoder.read(fields),
    }


def _write(decoder: ArrayDecoder, model: SpeechEncoderDecoderConfig) -> dict[str, Any]:
    encoder = {
        **write_encoder(model.encoder_section()),
        # transformers has the vector of masked frames only with a rate.
        "apply_spec_augment": False,
        "mask_time_prob": 0.05,
    }
    return {
        "tie_word_embeddings": False,  # of encoder and decoder
        **in_section("encoder", encoder),
        **in_section("decoder", decoder.write(model)),
    }


def _tensors(decoder: ArrayDecoder, model: SpeechEncoderDecoderConfig) -> Iterator[Tensor]:
    return pair_tensors(encoder_tensors(model.encoder_section()), decoder, model)


def _layout(decoder: ArrayDecoder) -> Layout:
    return Layout(
        model_type="speech-encoder-decoder",
        parts={"encoder": "wav2vec2", "decoder": decoder.model_type},
        network="SpeechEncoderDecoderModel",
        section=SpeechEncoderDecoderConfig,
        sections=("encoder", "decoder"),
        fields={**_encoder_fields(), **in_section("decoder", dict(decoder.fields))},
        defaults={
            **in_section("encoder", dict(WAV2VEC2.defaults)),
            **in_section("decoder", dict(decoder.defaults)),
        },
        only={
            "is_encoder_decoder": True,
            **in_section("encoder", {"model_type": "wav2vec2", **WAV2VEC2.only}),
            **in_section("decoder", {"model_type": decoder.model_type, **decoder.only}),
        },
        ignored=(
            f"encoder[.]({WAV2VEC2.ignored}|{_unused_fields()}|is_decoder|add_cross_attention"
            f"|tie_word_embeddings)|decoder[.]({decoder.ignored})|tie_word_embeddings"
            "|processor_class"
        ),
        lacks={
            **in_section("encoder", {**WAV2VEC2.lacks, "mask_time_prob": " of frames"}),
            **in_section("decoder", dict(decoder.lacks)),
        },
        read=functools.partial(_read, decoder),
        write=functools.partial(_write, decoder),
        tensors=functools.partial(_tensors, decoder),
        sizes=functools.partial(pair_sizes, WAV2VEC2, decoder),
        orders=decoder.orders,
        vocab_fields=("decoder.vocab_size",),
        special=SPECIAL,
        token_names=TOKEN_NAMES,
        data=lambda model: TranscriptsConfig(
            train="unknown",
            valid="unknown",
            max_length=model.max_length,
        ),
        preprocessor=preprocessor,
        example=_EXAMPLE,
        tasks=(),
        old_names=WAV2VEC2.old_names,
        buffers=DECODER_BUFFERS,
        expressed={
            **{name: [value] for name, value in decoder.settings.items()},
            **decoder.expressed,
            "encoder_norm_position": ANY,
            "sample_rate": ANY,
            "standardized": ANY,
            "conv_widths": ANY,
            "conv_kernels": ANY,
            "conv_strides": ANY,
            "conv_norm": ANY,
        },
        is_exported=decoder.is_exported,
    )


WAV2VEC2_GPT2 = _layout(GPT2)
WAV2VEC2_BERT = _layout(BERT)
WAV2VEC2_ROBERTA = _layout(ROBERTA)
