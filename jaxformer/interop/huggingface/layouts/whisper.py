"""Whisper in transformers' layout."""

from collections.abc import Iterator
from typing import Any

from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.transcripts import TranscriptsConfig
from jaxformer.data.whisper_tokenizer import WhisperTokenizer
from jaxformer.interop.huggingface.foreign_layout import (
    Layout,
    Tensor,
    affine,
)
from jaxformer.interop.huggingface.layouts.pairs import check_same_sizes, stack_tensors
from jaxformer.interop.huggingface.layouts.text_models import SPECIAL, TOKEN_NAMES
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.whisper import WhisperConfig
from jaxformer.nn.log_mel import HOP, SAMPLE_RATE, WINDOW

_FIELDS = {
    "encoder_layers": "num_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_ffn_dim": "d_ff",
    "encoder_attention_heads": "num_heads",
    "d_model": "d_model",
    "num_mel_bins": "num_mel_bins",
    "max_source_positions": "max_source_length",
    "max_target_positions": "max_length",
    "activation_function": "activation",
    "dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
}
_SAME_SIZES = {
    "ffn_dim": "d_ff",
    "attention_heads": "num_heads",
}
# Of training; of another head; other names of encoder_layers; and what generate takes from
# generation_config.json, if there is one.
_IGNORED = (
    r"activation_dropout|(en|de)coder_layerdrop|num_hidden_layers|decoder_(ffn_dim|attention_heads)"
    r"|apply_spec_augment|mask_(time|feature)_.*|classifier_proj_size|use_weighted_layer_sum"
    r"|median_filter_width|(begin_)?suppress_tokens|forced_decoder_ids"
)
# What a feature extractor does, besides filters and length.
_SOUND = {
    "sampling_rate": SAMPLE_RATE,
    "hop_length": HOP,
    "n_fft": WINDOW,
    "padding_value": 0.0,
    "dither": 0.0,
    "do_normalize": False,
}
_EXTRACTOR = {"feature_extractor_type": ["WhisperFeatureExtractor"]}
# Fields that follow from others, that only change what is returned beside the features, and names.
_SOUND_IGNORED = (
    "n_samples|nb_max_frames|padding_side|return_attention_mask|processor_class|mel_filters"
    "|max_length|return_tensors"
)
_EXAMPLE = """
from transformers import AutoProcessor, NETWORK
import numpy as np

processor, model = AutoProcessor.from_pretrained("."), NETWORK.from_pretrained(".")
wave = np.zeros(16_000)  # a second of silence
features = processor(wave, sampling_rate=16_000, return_tensors="pt").input_features
tokens = model.generate(features)
print(processor.decode(tokens[0], skip_special_tokens=True))
"""


def _read(fields: JsonFields) -> dict[str, Any]:
    check_same_sizes(fields, _SAME_SIZES, WhisperConfig)
    _check_extractor(fields)
    return {}


def _check_extractor(config: JsonFields) -> None:
    """Refuses a feature extractor that makes other features of sound than ours."""
    place = config.place.with_name("preprocessor_config.json")
    fields = JsonFields(place, {})
    for name, value in _SOUND.items():
        fields.check(name, [value], repr(value), "features have no other")
    for name, known in _EXTRACTOR.items():
        fields.check(name, known, known[0], "models of sound have no other")

    bins = config.integer("num_mel_bins")
    fields.check("feature_size", [bins], f"num_mel_bins={bins}", "models have one")
    seconds = _seconds(config.integer("max_source_positions"))
    fields.check("chunk_length", [seconds], f"{seconds:g}", "models take all that they encode")
    fields.check_known({*_SOUND, *_EXTRACTOR, "feature_size", "chunk_length"}, _SOUND_IGNORED)


def _seconds(positions: int) -> float:
    """Returns the duration of the positions of an encoder, a whole number if it is one."""
    seconds = 2 * HOP * positions / SAMPLE_RATE
    return int(seconds) if seconds.is_integer() else seconds


def _preprocessor(model: WhisperConfig) -> dict[str, Any]:
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": model.num_mel_bins,
        "chunk_length": _seconds(model.max_source_length),
        **_SOUND,
        "return_attention_mask": False,
    }


def _write(model: WhisperConfig) -> dict[str, Any]:
    sizes = {f"decoder_{name}": getattr(model, ours) for name, ours in _SAME_SIZES.items()}
    return sizes | {"decoder_layers": model.decoder_layers}


def _tensors(model: WhisperConfig) -> Iterator[Tensor]:
    yield Tensor("decoder.embed_tokens.weight", "VD", ("embedding",))
    yield Tensor("proj_out.weight", "VD", ("embedding",), is_copy=True)
    yield Tensor("decoder.embed_positions.weight", "MD", ("tgt_positions",))

    yield from affine("encoder.conv1", "DBW", "conv1")
    yield from affine("encoder.conv2", "DDW", "conv2")
    yield Tensor("encoder.embed_positions.weight", "SD", ("src_positions",))
    for stack in ("encoder", "decoder"):
        for tensor in stack_tensors(stack, "pre"):
            if not tensor.name.endswith("k_proj.bias"):
                yield tensor


def _sizes(model: WhisperConfig) -> dict[str, int]:
    """Returns the sizes of mel filters, of convolutions and of the encoder's positions."""
    return {"B": model.num_mel_bins, "W": 3, "S": model.max_source_length}


def _finish_tokenizer(
    tokenizer: HuggingFaceTokenizer, generation: JsonFields
) -> HuggingFaceTokenizer:
    return WhisperTokenizer.of(tokenizer, generation.values)


WHISPER = Layout(
    model_type="whisper",
    network="WhisperForConditionalGeneration",
    section=WhisperConfig,
    fields=_FIELDS,
    defaults={
        "activation_function": "gelu",
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "num_mel_bins": 80,
    },
    only={"is_encoder_decoder": True, "tie_word_embeddings": True, "scale_embedding": False},
    lacks={
        "activation_dropout": " within feed-forward networks",
        "encoder_layerdrop": "",
        "decoder_layerdrop": "",
    },
    ignored=_IGNORED,
    read=_read,
    write=_write,
    tensors=_tensors,
    sizes=_sizes,
    data=lambda model: TranscriptsConfig(
        train="unknown",
        valid="unknown",
        max_seconds=_seconds(model.max_source_length),
        max_length=model.max_length,
    ),
    finish_tokenizer=_finish_tokenizer,
    special=SPECIAL,
    token_names=TOKEN_NAMES,
    preprocessor=_preprocessor,
    example=_EXAMPLE,
    prefix="model.",
    tasks=("ForConditionalGeneration",),
    heads=("proj_out.",),
)
