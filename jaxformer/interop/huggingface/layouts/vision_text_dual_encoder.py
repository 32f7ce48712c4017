"""Encoders of pictures and a BERT in transformers' layout: a layout for each encoder."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxformer.config import ImageTextConfig
from jaxformer.interop.huggingface.foreign_layout import (
    ANY,
    Layout,
    Tensor,
    affine,
    layer_norm,
    sizes_of,
)
from jaxformer.interop.huggingface.layouts.array_decoders import in_section
from jaxformer.interop.huggingface.layouts.bert import BERT, ENCODER_FIELDS
from jaxformer.interop.huggingface.layouts.clip import vision_tower_tensors
from jaxformer.interop.huggingface.layouts.pictures import (
    EXPRESSED,
    VIT,
    read_image_size,
    write_image_size,
)
from jaxformer.interop.huggingface.preprocessor import read_preprocessor, write_preprocessor
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.vision_text import VisionTextDualEncoderConfig

_EXAMPLE = """
from transformers import AutoTokenizer, NETWORK
import torch

tokenizer, model = AutoTokenizer.from_pretrained("."), NETWORK.from_pretrained(".")
vision = model.config.vision_config
size = vision.image_size
sides = size if isinstance(size, (list, tuple)) else (size, size)
texts = tokenizer(["a cat", "a dog"], padding=True, return_tensors="pt")
pictures = torch.zeros(1, vision.num_channels, *sides)
print(model(**texts, pixel_values=pictures).logits_per_image.softmax(dim=1))
"""
_VISION = "vision_config"
_TEXT = "text_config"
# Fields of the encoder of pictures that have the same names here.
_SHARED = ("channels", "patch_size")
_CLIP_FIELDS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "hidden_act": "activation",
    "attention_dropout": "attention_dropout_rate",
    "layer_norm_eps": "norm_epsilon",
    "patch_size": "patch_size",
    "num_channels": "channels",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vision:
    """An encoder of pictures, by its section of config.json.

    Attributes:
      name: Our name of the encoder.
      model_type, fields, defaults, only, ignored: As in
        :class:`~jaxformer.interop.huggingface.foreign_layout.Layout`.
      has_biases_field: The section has a field ``qkv_bias``.
      tensors: Returns its tensors, with names and paths as in the whole model.
    """

    name: str
    model_type: str
    fields: Mapping[str, str]
    defaults: Mapping[str, Any]
    only: Mapping[str, Any]
    ignored: str
    has_biases_field: bool
    tensors: Callable[[VisionTextDualEncoderConfig], Iterator[Tensor]]

    def layout(self) -> Layout:
        """Returns the layout of a model with this encoder and a BERT."""
        text_fields = {
            **ENCODER_FIELDS,
            "max_position_embeddings": "max_length",
            "type_vocab_size": "num_token_types",
        }
        only = {
            **in_section(_VISION, {"model_type": self.model_type, **self.only}),
            **in_section(_TEXT, {"model_type": "bert", **BERT.only}),
        }
        return Layout(
            model_type="vision-text-dual-encoder",
            parts={_VISION: self.model_type, _TEXT: "bert"},
            network="VisionTextDualEncoderModel",
            section=VisionTextDualEncoderConfig,
            sections=(_VISION, _TEXT),
            fields={
                **in_section(_VISION, self._our_fields()),
                **in_section(_TEXT, text_fields),
                "projection_dim": "embedding_dim",
            },
            defaults={
                **in_section(_VISION, dict(self.defaults)),
                **in_section(_TEXT, dict(BERT.defaults)),
                "projection_dim": 512,
            },
            only=only,
            # The dropout of classes and the scale before training change nothing.
            ignored=(
                f"vision_config[.]({self.ignored})"
                f"|text_config[.]({BERT.ignored}|classifier_dropout)|logit_scale_init_value"
            ),
            read=self.read,
            write=self.write,
            tensors=self.all_tensors,
            sizes=_sizes,
            vocab_fields=("text_config.vocab_size",),
            special={},
            special_tokens=BERT.special_tokens,
            token_names=BERT.token_names,
            written_ids={"pad": "text_config.pad_token_id"},
            data=lambda model: ImageTextConfig(train="unknown", valid="unknown"),
            preprocessor=write_preprocessor,
            example=_EXAMPLE,
            tasks=(),
            buffers=(
                r"text_model\.embeddings\.(position|token_type)_ids"
                r"|vision_model\.embeddings\.position_ids"
            ),
            expressed={
                **EXPRESSED,
                "vision": [self.name],
                "vision_biases": ["all", "output"] if self.has_biases_field else ["all"],
                "vision_dropout_rate": ANY if self.has_biases_field else [0.0],
            },
            fits=lambda model: self.has_biases_field or model.height == model.width,
        )

    def _our_fields(self) -> dict[str, str]:
        """Returns the fields of the section, and ours."""
        fields = {}
        for theirs, ours in self.fields.items():
            fields[theirs] = ours if ours in _SHARED else f"vision_{ours}"
        return fields

    def read(self, fields: JsonFields) -> dict[str, Any]:
        """Returns our fields that no table has."""
        height, width = read_image_size(fields, f"{_VISION}.")

        reason = "pooler has the width of the encoder"
        hidden_size = fields.values[f"{_VISION}.hidden_size"]
        pooler_size = f"{_VISION}.pooler_output_size"
        fields.check(pooler_size, [None, hidden_size], f"{hidden_size}", reason)

        values: dict[str, Any] = {"height": height, "width": width, "vision": self.name}
        if self.has_biases_field:
            has_all_biases = fields.boolean(f"{_VISION}.qkv_bias")
            values["vision_biases"] = "all" if has_all_biases else "output"
        channels = fields.integer(f"{_VISION}.num_channels")
        return {**values, **read_preprocessor(fields, channels, height, width=width)}

    def write(self, model: VisionTextDualEncoderConfig) -> dict[str, Any]:
        """Returns the fields of config.json that no table has."""
        section = write_image_size(model.height, model.width)
        if self.has_biases_field:
            section["qkv_bias"] = model.vision_biases == "all"
        return in_section(_VISION, section)

    def all_tensors(self, model: VisionTextDualEncoderConfig) -> Iterator[Tensor]:
        """Yields the tensors; axes in lower case are of the encoder of pictures."""
        yield from self.tensors(model)
        yield from affine("visual_projection", "ed", "vision_projection", bias=False)

        for tensor in BERT.tensors(model.text_section()):
            yield tensor._replace(
                name=f"text_model.{tensor.name}",
                ours=tuple(f"text/{path}" for path in tensor.ours),
                numbers=range(model.num_layers),
            )
        yield from affine("text_projection", "eD", "text_projection", bias=False)
        yield Tensor("logit_scale", "", ("log_scale",))


def _vit_tensors(model: VisionTextDualEncoderConfig) -> Iterator[Tensor]:
    for tensor in VIT.tensors(model.vision_sizes()):
        yield tensor._replace(
            name=f"vision_model.{tensor.name}",
            axes=tensor.axes.lower(),
            ours=tuple(f"vision/{path}" for path in tensor.ours),
            numbers=range(model.vision_num_layers),
        )
    yield from affine("vision_model.pooler.dense", "dd", "vision_pooler")


def _clip_tensors(model: VisionTextDualEncoderConfig) -> Iterator[Tensor]:
    yield from vision_tower_tensors("vision_model", model.vision_num_layers)
    yield from layer_norm("vision_model.post_layernorm", "vision_norm", "d")


def _sizes(model: VisionTextDualEncoderConfig) -> dict[str, int]:
    vision = model.vision_sizes()
    of_vision = sizes_of(vision, 0) | VIT.sizes(vision)
    sizes = {axis.lower(): size for axis, size in of_vision.items()}
    return sizes | {"e": model.embedding_dim}


VIT_AND_BERT = Vision(
    name="vit",
    model_type="vit",
    fields=VIT.fields,
    defaults=VIT.defaults,
    only={**VIT.only, "pooler_act": "tanh"},
    ignored="pooler_output_size|encoder_stride",  # checked; of another head
    has_biases_field=True,
    tensors=_vit_tensors,
).layout()
CLIP_AND_BERT = Vision(
    name="clip",
    model_type="clip_vision_model",
    fields=_CLIP_FIELDS,
    defaults={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "attention_dropout": 0.0,
        "image_size": 224,
        "patch_size": 32,
        "num_channels": 3,
    },
    only={},
    ignored="projection_dim|dropout",  # of CLIP itself
    has_biases_field=False,
    tensors=_clip_tensors,
).layout()
