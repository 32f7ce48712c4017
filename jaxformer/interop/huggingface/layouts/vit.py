"""The Vision Transformer in transformers' layout, with a classifier."""

from collections.abc import Iterator
from typing import Any

from jaxformer.config import ImagesConfig
from jaxformer.interop.huggingface.foreign_layout import (
    ANY,
    Layout,
    Tensor,
    affine,
    label_fields,
    layer_norm,
)
from jaxformer.interop.huggingface.layouts.bert import ENCODER_FIELDS, encoder_tensors, read_labels
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.vit import ViTConfig

_PIXELS = {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
_BILINEAR = 2  # PIL's number, the default of ViTImageProcessor and so the filter of an export
# Classes of transformers that are known, by the fields that name them.
_PROCESSORS = {
    "image_processor_type": ["ViTImageProcessor", "ViTImageProcessorFast", "ViTImageProcessorPil"],
    "feature_extractor_type": ["ViTFeatureExtractor"],
}
# Fields of preprocessor_config.json that change no pixel of a picture as our models take it: for
# pictures of another size or in grayscale, for steps that are off, for the layout and the device of
# arrays, and names.
_IGNORED = (
    "size|do_resize|default_to_square|do_convert_rgb|crop_size|pad_size"
    "|(input_)?data_format|device|disable_grouping|return_tensors|processor_class"
)
_EXAMPLE = """
from transformers import NETWORK
import torch

model = NETWORK.from_pretrained(".")
size = model.vit.embeddings.image_size
print(model(torch.zeros(1, model.config.num_channels, *size)).logits)  # pixels from -1 to 1
"""


def _read(fields: JsonFields) -> dict[str, Any]:
    """Returns the fields that no table has; checks that the model takes the same pixels as ours."""
    _check_pixels(fields)

    # One number is the size of a square, two are height and width.
    size = fields.values["image_size"]
    is_pair = isinstance(size, list) and len(size) == 2
    height, width = size if is_pair else (size, size)
    fields.values |= {"height": height, "width": width}
    return {
        "height": fields.integer("height"),
        "width": fields.integer("width"),
        "num_classes": len(read_labels(fields)),
    }


def _check_pixels(fields: JsonFields) -> None:
    """Refuses an image processor that does not scale pixels to values from -1 to 1."""
    pixels = JsonFields(fields.place.with_name("preprocessor_config.json"), {})
    half = [0.5] * fields.integer("num_channels")
    expected = {**_PIXELS, "image_mean": half, "image_std": half}
    for name, value in expected.items():
        pixels.check(name, [value], repr(value), "pixels are from -1 to 1")

    pixels.check("resample", [_BILINEAR], f"{_BILINEAR}, bilinear", "exports have this filter")
    for name, known in _PROCESSORS.items():
        pixels.check(name, known, " or ".join(known), "pictures have no other processor")
    pixels.check_known({*expected, "resample", *_PROCESSORS}, _IGNORED)


def _write(model: ViTConfig) -> dict[str, Any]:
    is_square = model.height == model.width
    labels = [f"LABEL_{number}" for number in range(model.num_classes)]
    return {
        "image_size": model.height if is_square else [model.height, model.width],
        **label_fields(labels),
    }


def _preprocessor(model: ViTConfig) -> dict[str, Any]:
    """Returns the fields of an image processor with which pixels are from -1 to 1."""
    half = [0.5] * model.channels
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": model.height, "width": model.width},
        **_PIXELS,
        "image_mean": half,
        "image_std": half,
    }


def _tensors(model: ViTConfig) -> Iterator[Tensor]:
    yield Tensor("embeddings.cls_token", "11D", ("class_token",))
    yield Tensor("embeddings.position_embeddings", "1SD", ("positions",))
    yield from affine("embeddings.patch_embeddings.projection", "DZYX", "patches")

    yield from encoder_tensors("attention.attention", ("layernorm_before", "layernorm_after"))
    yield from layer_norm("layernorm", "encoder/norm")
    yield from affine("classifier", "ND", "classes")


VIT = Layout(
    model_type="vit",
    network="ViTForImageClassification",
    section=ViTConfig,
    fields=ENCODER_FIELDS | {"patch_size": "patch_size", "num_channels": "channels"},
    defaults={"image_size": 224, "patch_size": 16, "num_channels": 3, "layer_norm_eps": 1e-12},
    only={"qkv_bias": True},
    ignored="pooler_.*|encoder_stride",  # of other heads
    read=_read,
    write=_write,
    tensors=_tensors,
    data=lambda model: ImagesConfig(train="unknown", valid="unknown"),
    preprocessor=_preprocessor,
    example=_EXAMPLE,
    has_tokenizer=False,
    prefix="vit.",
    tasks=("ForImageClassification",),
    heads=("classifier.",),
    expressed={"height": ANY, "width": ANY, "num_classes": range(1, 2**20)},
)
