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
from jaxformer.interop.huggingface.preprocessor import read_preprocessor, write_preprocessor
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.vit import ViTConfig

_EXAMPLE = """
from transformers import NETWORK
import torch

model = NETWORK.from_pretrained(".")
size = model.vit.embeddings.image_size
print(model(torch.zeros(1, model.config.num_channels, *size)).logits)
"""


def _read(fields: JsonFields) -> dict[str, Any]:
    """Returns the fields that no table has."""
    # One number is the size of a square, two are height and width.
    size = fields.values["image_size"]
    is_pair = isinstance(size, list) and len(size) == 2
    height, width = size if is_pair else (size, size)
    fields.values |= {"height": height, "width": width}
    height = fields.integer("height")
    width = fields.integer("width")
    channels = fields.integer("num_channels")
    return {
        "height": height,
        "width": width,
        "num_classes": len(read_labels(fields)),
        **read_preprocessor(fields, channels, height, width=width),
    }


def _write(model: ViTConfig) -> dict[str, Any]:
    is_square = model.height == model.width
    labels = [f"LABEL_{number}" for number in range(model.num_classes)]
    return {
        "image_size": model.height if is_square else [model.height, model.width],
        **label_fields(labels),
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
    preprocessor=write_preprocessor,
    example=_EXAMPLE,
    has_tokenizer=False,
    prefix="vit.",
    tasks=("ForImageClassification",),
    heads=("classifier.",),
    expressed={
        "height": ANY,
        "width": ANY,
        "num_classes": range(1, 2**20),
        "pixel_mean": ANY,
        "pixel_std": ANY,
        "resampling": ANY,
        "shortest_side": ANY,
    },
)
