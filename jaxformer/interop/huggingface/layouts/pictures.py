"""Vision Transformers in transformers' layouts: a table of what differs from ViT.

Each field of :class:`~jaxformer.models.vit.ViTConfig` that ViT does not need is used by a row.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxformer.config import ImagesConfig
from jaxformer.errors import UserError
from jaxformer.interop.huggingface.foreign_layout import (
    ANY,
    Layout,
    Tensor,
    affine,
    label_fields,
    layer_norm,
)
from jaxformer.interop.huggingface.layouts.bert import ENCODER_FIELDS, read_labels
from jaxformer.interop.huggingface.layouts.layer_names import VIT_LAYERS, LayerNames
from jaxformer.interop.huggingface.preprocessor import (
    crop_size,
    read_preprocessor,
    write_preprocessor,
)
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.pictures import PictureArchitecture
from jaxformer.models.vit import ViTConfig

HEAD = "ForImageClassification"
# Our fields of all models of pictures that :func:`read_pictures` reads.
EXPRESSED = {
    "height": ANY,
    "width": ANY,
    "pixel_mean": ANY,
    "pixel_std": ANY,
    "resampling": ANY,
    "shortest_side": ANY,
}
_ATTENTION = "encoder/layers/self_attention"
_NETWORK = "encoder/layers/feed_forward"
_TABLE = "relative_position_bias.relative_position_bias_table"
_FIELDS = {**ENCODER_FIELDS, "patch_size": "patch_size", "num_channels": "channels"}
_DEFAULTS = {"image_size": 224, "patch_size": 16, "num_channels": 3, "layer_norm_eps": 1e-12}


def read_pictures(fields: JsonFields, height: int, width: int) -> dict[str, Any]:
    """Returns our fields of the pictures and the classes of a model."""
    if HEAD in fields.architecture_heads() and "classifier.weight" not in fields.tensors:
        raise UserError(f"{fields.place}: expected classifier.weight, the head {HEAD}, got none")

    channels = fields.integer("num_channels")
    return {
        "height": height,
        "width": width,
        "num_classes": len(read_labels(fields)),
        **read_preprocessor(fields, channels, height, width=width),
    }


def read_image_size(fields: JsonFields, section: str = "") -> tuple[int, int]:
    """Returns height and width; one number is the size of a square.

    Args:
      fields: The fields of config.json.
      section: Beginning of their names, such as "encoder.".
    """
    size = fields.values[f"{section}image_size"]
    is_pair = isinstance(size, list) and len(size) == 2
    height, width = size if is_pair else (size, size)
    fields.values |= {"height": height, "width": width}
    return fields.integer("height"), fields.integer("width")


def write_image_size(height: int, width: int) -> dict[str, Any]:
    return {"image_size": height if height == width else [height, width]}


def write_labels(model: PictureArchitecture) -> dict[str, Any]:
    """Returns the fields of config.json that name classes, which may have no other names."""
    return label_fields(f"LABEL_{number}" for number in range(model.num_classes))


def picture_example(model: PictureArchitecture) -> str:
    """Returns code that uses an export."""
    output = "logits" if model.num_classes else "pooler_output"
    return f"""
from transformers import NETWORK
import torch

model = NETWORK.from_pretrained(".")
print(model(torch.zeros(1, {model.channels}, {model.height}, {model.width})).{output})
"""


def picture_data(model: PictureArchitecture) -> ImagesConfig:
    """Returns a section of data for a model whose training pictures are unknown."""
    return ImagesConfig(train="unknown", valid="unknown")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureFamily:
    """A family of Vision Transformers, by what differs from ViT.

    Attributes:
      model_type, fields, defaults, only, ignored, lacks: As in
        :class:`~jaxformer.interop.huggingface.foreign_layout.Layout`.
      classes: Beginning of the names of its classes in transformers.
      prefix: Beginning of the names of tensors.
      layers: Names within a layer.
      unread: Names of tensors that only its pretraining reads.
      least_classes: Smallest number of classes of an export.
      read: Returns further fields of ours, height and width of the pictures among them, given the
        beginning of the names of fields in config.json.
      write: Returns further fields of config.json.
      model: Values that our further fields may have.
      fits: Returns whether the values of several fields fit together in a file.
    """

    model_type: str
    classes: str
    prefix: str
    fields: Mapping[str, str] = dataclasses.field(default_factory=lambda: _FIELDS)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _DEFAULTS)
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ignored: str
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    layers: LayerNames = VIT_LAYERS
    unread: tuple[str, ...] = ()
    least_classes: int = 0
    read: Callable[[JsonFields, str], dict[str, Any]]
    write: Callable[[ViTConfig], dict[str, Any]]
    model: Mapping[str, Any]
    fits: Callable[[ViTConfig], bool] = lambda model: True

    def layout(self) -> Layout:
        """Returns the layout of the family."""
        return Layout(
            model_type=self.model_type,
            network=self.network_of,
            section=ViTConfig,
            fields=self.fields,
            defaults=self.defaults,
            only=self.only,
            ignored=self.ignored,
            lacks=self.lacks,
            read=self.read_model,
            labels=read_labels,
            write=lambda model: {**self.write(model), **write_labels(model)},
            tensors=self.tensors,
            unread=lambda model: self.unread,
            sizes=_sizes,
            data=picture_data,
            preprocessor=write_preprocessor,
            example=picture_example,
            has_tokenizer=False,
            prefix=self.prefix,
            tasks=(HEAD,),
            heads=("classifier.",),
            buffers=r".*relative_position_index",
            expressed={
                **EXPRESSED,
                "architecture": [self.model_type],
                "num_classes": range(self.least_classes, 2**20),
                **self.model,
            },
            fits=self.fits,
        )

    def read_model(self, fields: JsonFields) -> dict[str, Any]:
        """Returns further fields of ours, of a model that is not a part of another."""
        ours = self.read(fields, "")
        pictures = read_pictures(fields, ours["height"], ours["width"])
        return {"architecture": self.model_type, **ours, **pictures}

    def network_of(self, model: ViTConfig) -> str:
        """Returns the name of the class in transformers."""
        return f"{self.classes}{HEAD if model.num_classes else 'Model'}"

    def tensors(self, model: ViTConfig) -> Iterator[Tensor]:
        yield Tensor("embeddings.cls_token", "11D", ("class_token",))
        if model.distilled:
            yield Tensor("embeddings.distillation_token", "11D", ("distillation_token",))
        if model.positions == "learned":
            yield Tensor("embeddings.position_embeddings", "1SD", ("positions",))
        if model.positions == "shared_relative":
            yield Tensor(f"encoder.{_TABLE}", "BH", ("encoder/bias/table",))
        yield from affine("embeddings.patch_embeddings.projection", "DZYX", "patches")

        yield from self._layer(model)

        if model.pooling == "patches":
            yield from layer_norm("pooler.layernorm", "norm")
        else:
            yield from layer_norm("layernorm", "encoder/norm")
        if model.num_classes:
            yield from affine("classifier", "NW", "classes")

    def _layer(self, model: ViTConfig) -> Iterator[Tensor]:
        names = self.layers

        def part(name: str) -> str:
            return f"{names.layer}.{name}"

        projections = {"query": names.query, "key": names.key, "value": names.value}
        for name, theirs in projections.items():
            has_bias = model.biases == "all" or (model.biases == "except_key" and name != "key")
            yield from affine(part(theirs), "QD", f"{_ATTENTION}/{name}", has_bias)
        yield from affine(part(names.output), "DQ", f"{_ATTENTION}/output")
        if model.positions == "relative":
            table = part(f"attention.attention.{_TABLE}")
            yield Tensor(table, "BH", (f"{_ATTENTION}/bias/table",))

        if model.gated:
            both = part(names.gated_inner)
            weights = (f"{_NETWORK}/inner", f"{_NETWORK}/linear")
            biases = (f"{_NETWORK}/inner_bias", f"{_NETWORK}/linear_bias")
            yield Tensor(f"{both}.weight", "GD", weights, is_linear=True)
            yield Tensor(f"{both}.bias", "G", biases)
            yield from affine(part(names.gated_outer), "DF", f"{_NETWORK}/outer")
        else:
            yield from affine(part(names.inner), "FD", f"{_NETWORK}/inner")
            yield from affine(part(names.outer), "DF", f"{_NETWORK}/outer")

        yield from layer_norm(part(names.attention_norm), f"{_ATTENTION}_residual/norm")
        yield from layer_norm(part(names.network_norm), f"{_NETWORK}_residual/norm")
        if model.layer_scale is not None:
            yield Tensor(part(names.attention_scale), "D", (f"{_ATTENTION}_residual/scale",))
            yield Tensor(part(names.network_scale), "D", (f"{_NETWORK}_residual/scale",))


def _sizes(model: ViTConfig) -> dict[str, int]:
    """Returns the sizes of B, the rows of a table of offsets, and of further axes."""
    rows, columns = model.grid
    offsets = (2 * rows - 1) * (2 * columns - 1)
    return {
        "B": offsets + 3 * model.has_class_token,
        "G": 2 * model.d_ff,
        "S": model.num_positions,
        "W": model.pooled_size,
    }


def _read_vit(fields: JsonFields, section: str) -> dict[str, Any]:
    height, width = read_image_size(fields, section)
    biases = _read_biases(fields, section)
    return {"height": height, "width": width, "biases": biases}


def _write_vit(model: ViTConfig) -> dict[str, Any]:
    return {**write_image_size(model.height, model.width), **_write_biases(model)}


def _read_biases(fields: JsonFields, section: str) -> str:
    return "all" if fields.boolean(f"{section}qkv_bias") else "output"


def _write_biases(model: ViTConfig) -> dict[str, Any]:
    return {"qkv_bias": model.biases == "all"}


def _read_square(fields: JsonFields, section: str) -> int:
    """Returns the side of the pictures of a family that transformers has for squares only."""
    height, width = read_image_size(fields, section)
    if height != width:
        raise UserError(
            f"{fields.place}: expected {section}image_size to be one number, since transformers "
            f"stretches the positions of other pictures: got {height} and {width}"
        )
    return height


# Values of use_absolute_position_embeddings, use_relative_position_bias and
# use_shared_relative_position_bias, by the positions that they describe.
_POSITIONS: dict[tuple[bool, ...], str] = {
    (True, False, False): "learned",
    (False, True, False): "relative",
    (False, False, True): "shared_relative",
}
_POSITION_FIELDS = (
    "use_absolute_position_embeddings",
    "use_relative_position_bias",
    "use_shared_relative_position_bias",
)


def _read_beit(fields: JsonFields, section: str) -> dict[str, Any]:
    flags = tuple(fields.boolean(f"{section}{name}") for name in _POSITION_FIELDS)
    if flags not in _POSITIONS:
        given = ", ".join(map(str, flags))
        names = ", ".join(f"{section}{name}" for name in _POSITION_FIELDS)
        raise UserError(f"{fields.place}: expected one of {names} to be true: got {given}")

    side = _read_square(fields, section)
    scale = fields.number(f"{section}layer_scale_init_value")
    has_mean = fields.boolean(f"{section}use_mean_pooling")
    return {
        "height": side,
        "width": side,
        "positions": _POSITIONS[flags],
        "pooling": "patches" if has_mean else "token",
        "layer_scale": scale if scale > 0 else None,
        "biases": "except_key",
    }


def _write_beit(model: ViTConfig) -> dict[str, Any]:
    [flags] = [flags for flags, name in _POSITIONS.items() if name == model.positions]
    return {
        **write_image_size(model.height, model.width),
        **dict(zip(_POSITION_FIELDS, flags, strict=True)),
        "use_mean_pooling": model.pooling == "patches",
        "use_mask_token": False,  # Only pretraining reads the token.
        "layer_scale_init_value": model.layer_scale or 0.0,
    }


def _gated_size(d_model: int, ratio: int) -> int:
    """Returns the inner width of a gated network of DINOv2."""
    return (d_model * ratio * 2 // 3 + 7) // 8 * 8


def _ratios(model: ViTConfig) -> Iterator[int]:
    """Yields the values of mlp_ratio with which networks have the model's width."""
    for ratio in range(1, 65):
        size = _gated_size(model.d_model, ratio) if model.gated else ratio * model.d_model
        if size == model.d_ff:
            yield ratio


def _read_dinov2(fields: JsonFields, section: str) -> dict[str, Any]:
    trained = _read_square(fields, section)
    crop = crop_size(fields)
    height, width = (trained, trained) if crop is None else crop
    has_other_size = (height, width) != (trained, trained)

    d_model = fields.integer(f"{section}hidden_size")
    ratio = fields.integer(f"{section}mlp_ratio")
    values = {
        "height": height,
        "width": width,
        "d_ff": ratio * d_model,
        "pooling": "token_and_patches",
        "position_size": trained if has_other_size else None,
        "layer_scale": fields.number(f"{section}layerscale_value"),
        "biases": _read_biases(fields, section),
    }
    if fields.boolean(f"{section}use_swiglu_ffn"):
        # Its networks have this activation, whatever hidden_act says.
        values |= {"d_ff": _gated_size(d_model, ratio), "gated": True, "activation": "swish"}
    return values


def _write_dinov2(model: ViTConfig) -> dict[str, Any]:
    trained = model.position_size or model.height
    values = {
        **write_image_size(trained, trained),
        "mlp_ratio": next(_ratios(model)),
        "layerscale_value": model.layer_scale,
        "use_swiglu_ffn": model.gated,
        "use_mask_token": False,  # Only pretraining reads the token.
        **_write_biases(model),
    }
    return values | {"hidden_act": "gelu"} if model.gated else values


def _fits_dinov2(model: ViTConfig) -> bool:
    has_positions = model.position_size is not None or model.height == model.width
    has_activation = not model.gated or model.activation == "swish"
    has_ratio = any(_ratios(model))
    return has_positions and has_activation and has_ratio and model.layer_scale is not None


_MASK_TOKEN = "embeddings.mask_token"
# Of classes with another head, and of programs that read feature maps.
_OF_OTHER_CLASSES = (
    "use_mask_token|stage_names|out_(features|indices)|reshape_hidden_states|drop_path_rate"
)

VIT_FAMILY = PictureFamily(
    model_type="vit",
    classes="ViT",
    prefix="vit.",
    defaults={**_DEFAULTS, "qkv_bias": True},
    ignored="pooler_.*|encoder_stride",  # of other heads
    # Without classes, ViTModel of transformers has a pooler besides.
    least_classes=1,
    read=_read_vit,
    write=_write_vit,
    model={"biases": ["all", "output"]},
)
VIT = VIT_FAMILY.layout()

# ViT with one more token. The head with a teacher, which reads that token, is refused.
DEIT_FAMILY = dataclasses.replace(
    VIT_FAMILY,
    model_type="deit",
    classes="DeiT",
    prefix="deit.",
    read=lambda fields, section: {**_read_vit(fields, section), "distilled": True},
    model={"biases": ["all", "output"], "distilled": [True]},
)
DEIT = DEIT_FAMILY.layout()

BEIT_FAMILY = PictureFamily(
    model_type="beit",
    classes="Beit",
    prefix="beit.",
    defaults={
        **_DEFAULTS,
        **dict.fromkeys(_POSITION_FIELDS, False),
        "use_mean_pooling": True,
        "layer_scale_init_value": 0.1,
    },
    ignored=f"{_OF_OTHER_CLASSES}|pool_scales|add_fpn|auxiliary_.*|use_auxiliary_head"
    "|semantic_loss_ignore_index",
    lacks={"drop_path_rate": ""},
    layers=VIT_LAYERS._replace(attention_scale="lambda_1", network_scale="lambda_2"),
    unread=(_MASK_TOKEN,),
    read=_read_beit,
    write=_write_beit,
    model={
        "positions": ["relative", "shared_relative", "learned"],
        "pooling": ["patches", "token"],
        "layer_scale": ANY,
        "biases": ["except_key"],
    },
    fits=lambda model: model.height == model.width,
)
BEIT = BEIT_FAMILY.layout()

DINOV2 = PictureFamily(
    model_type="dinov2",
    classes="Dinov2",
    prefix="dinov2.",
    fields={name: ours for name, ours in _FIELDS.items() if name != "intermediate_size"},
    defaults={
        **_DEFAULTS,
        "patch_size": 14,
        "layer_norm_eps": 1e-6,
        "qkv_bias": True,
        "mlp_ratio": 4,
        "layerscale_value": 1.0,
        "use_swiglu_ffn": False,
    },
    ignored=f"{_OF_OTHER_CLASSES}|apply_layernorm",
    lacks={"drop_path_rate": ""},
    layers=VIT_LAYERS._replace(
        attention_norm="norm1",
        network_norm="norm2",
        inner="mlp.fc1",
        outer="mlp.fc2",
        gated_inner="mlp.weights_in",
        gated_outer="mlp.weights_out",
        attention_scale="layer_scale1.lambda1",
        network_scale="layer_scale2.lambda1",
    ),
    unread=(_MASK_TOKEN,),
    read=_read_dinov2,
    write=_write_dinov2,
    model={
        "pooling": ["token_and_patches"],
        "layer_scale": ANY,
        "gated": ANY,
        "biases": ["all", "output"],
        "d_ff": ANY,
        "position_size": ANY,
    },
    fits=_fits_dinov2,
).layout()
