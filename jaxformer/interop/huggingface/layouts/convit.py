"""ConViT in the layout of timm, whose config.json has no ``model_type``."""

from collections.abc import Iterator
from typing import Any

from jaxformer.errors import UserError
from jaxformer.interop.huggingface.foreign_layout import (
    ANY,
    Layout,
    Tensor,
    affine,
    layer_norm,
)
from jaxformer.interop.huggingface.layouts.pictures import EXPRESSED, picture_data
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.convit import ConViTConfig

_BLOCK = "blocks.{n}"
_SECTION = "pretrained_cfg"
# Our fields that the shapes of the tensors express.
_SIZES = (
    "channels",
    "patch_size",
    "d_model",
    "d_ff",
    "num_heads",
    "num_layers",
    "num_local_layers",
    "num_classes",
)
_EXAMPLE = """
import timm
import torch

model = timm.create_model("local-dir:.", pretrained=True).eval()
print(model(torch.zeros(1, CHANNELS, HEIGHT, WIDTH)))
"""


def _read(fields: JsonFields) -> dict[str, Any]:
    """Returns our fields; the shapes of the tensors tell the sizes."""
    if not str(fields.values.get("architecture")).startswith("convit_"):
        raise UserError(
            f"{fields.place}: expected architecture to be a convit of timm, such as convit_tiny: "
            f"got {fields.values.get('architecture')!r:.80}"
        )

    shapes = {name: array.shape for name, array in fields.tensors.items()}
    names = {
        "patches": "patch_embed.proj.weight",
        "heads": "blocks.0.attn.gating_param",
        "inner": "blocks.0.mlp.fc1.weight",
    }
    for name in names.values():
        if name not in shapes:
            raise UserError(f"{fields.place}: expected the tensor {name} of a ConViT: got none")

    channels, height, width = _input_size(fields)
    d_model, _, _, patch_size = shapes[names["patches"]]
    return {
        "height": height,
        "width": width,
        "channels": channels,
        "patch_size": patch_size,
        "d_model": d_model,
        "d_ff": shapes[names["inner"]][0],
        "num_heads": shapes[names["heads"]][0],
        "num_layers": _count(shapes, "norm1.weight"),
        "num_local_layers": _count(shapes, "attn.gating_param"),
        "num_classes": shapes["head.weight"][0] if "head.weight" in shapes else 0,
        **_read_pixels(fields, height),
    }


def _count(shapes: dict[str, tuple[int, ...]], ending: str) -> int:
    """Returns the number of blocks that have a tensor."""
    return sum(name.startswith("blocks.") and name.endswith(ending) for name in shapes)


def _input_size(fields: JsonFields) -> tuple[int, int, int]:
    size: Any = fields.values.get(f"{_SECTION}.input_size")
    match size:
        case [int(channels), int(height), int(width)]:
            return channels, height, width
    raise UserError(
        f"{fields.place}: expected {_SECTION}.input_size to be channels, height and width: got "
        f"{size!r:.80}"
    )


def _read_pixels(fields: JsonFields, height: int) -> dict[str, Any]:
    """Returns our fields of how pictures become pixels."""
    choices = ["bilinear", "bicubic"]
    reason = "pictures have no other interpolation"
    fields.check(f"{_SECTION}.interpolation", choices, "bilinear or bicubic", reason)
    fields.check(f"{_SECTION}.crop_mode", ["center"], "center", "pictures are cut out there")

    share = fields.number(f"{_SECTION}.crop_pct", 0.875)
    if not 0 < share <= 1:
        raise UserError(
            f"{fields.place}: expected {_SECTION}.crop_pct to be above 0 and at most 1: got {share}"
        )
    return {
        "resampling": fields.values.get(f"{_SECTION}.interpolation", "bicubic"),
        "shortest_side": int(height / share),
        "pixel_mean": _numbers(fields, "mean"),
        "pixel_std": _numbers(fields, "std"),
    }


def _numbers(fields: JsonFields, name: str) -> str:
    found: Any = fields.values.get(f"{_SECTION}.{name}")
    are_numbers = isinstance(found, list) and all(isinstance(each, int | float) for each in found)
    if not found or not are_numbers:
        raise UserError(
            f"{fields.place}: expected {_SECTION}.{name} to be a list of numbers: got {found!r:.80}"
        )
    return " ".join(map(str, found))


def _write(model: ConViTConfig) -> dict[str, Any]:
    side = model.shortest_side or model.height

    def per_channel(text: str) -> list[float]:
        numbers = [float(number) for number in text.split()]
        return numbers * model.channels if len(numbers) == 1 else numbers

    return {
        "architecture": "convit_tiny",
        "num_classes": model.num_classes,
        "num_features": model.d_model,
        "global_pool": "token",
        "model_args": {
            "img_size": model.height,
            "patch_size": model.patch_size,
            "in_chans": model.channels,
            "embed_dim": model.d_model // model.num_heads,
            "depth": model.num_layers,
            "num_heads": model.num_heads,
            "mlp_ratio": model.d_ff / model.d_model,
            "local_up_to_layer": model.num_local_layers,
        },
        f"{_SECTION}.input_size": [model.channels, model.height, model.width],
        f"{_SECTION}.fixed_input_size": True,
        f"{_SECTION}.interpolation": model.resampling,
        f"{_SECTION}.crop_pct": model.height / side,
        f"{_SECTION}.crop_mode": "center",
        f"{_SECTION}.mean": per_channel(model.pixel_mean),
        f"{_SECTION}.std": per_channel(model.pixel_std),
        f"{_SECTION}.num_classes": model.num_classes,
        f"{_SECTION}.first_conv": "patch_embed.proj",
        f"{_SECTION}.classifier": "head",
    }


def _tensors(model: ConViTConfig) -> Iterator[Tensor]:
    yield Tensor("cls_token", "11D", ("class_token",))
    yield Tensor("pos_embed", "1GD", ("positions",))
    yield from affine("patch_embed.proj", "DZYX", "patches")
    yield from layer_norm("norm", "encoder/norm")
    if model.num_classes:
        yield from affine("head", "ND", "classes")

    local = range(model.num_local_layers)
    for tensor in (*_layer_tensors("local/layers"), *_gated_tensors("local/layers")):
        yield tensor._replace(numbers=local)

    last = range(model.num_local_layers, model.num_layers)
    attention = "encoder/layers/self_attention"
    joined = tuple(f"{attention}/{name}" for name in ("query", "key", "value"))
    fused = Tensor(f"{_BLOCK}.attn.qkv.weight", "CD", joined, is_linear=True)
    for tensor in (*_layer_tensors("encoder/layers"), fused):
        yield tensor._replace(numbers=last)


def _layer_tensors(layers: str) -> Iterator[Tensor]:
    """Yields the tensors that blocks of both kinds have."""
    attention = f"{layers}/self_attention"
    network = f"{layers}/feed_forward"
    yield from layer_norm(f"{_BLOCK}.norm1", f"{attention}_residual/norm")
    yield from layer_norm(f"{_BLOCK}.norm2", f"{network}_residual/norm")
    yield from affine(f"{_BLOCK}.attn.proj", "DQ", f"{attention}/output")
    yield from affine(f"{_BLOCK}.mlp.fc1", "FD", f"{network}/inner")
    yield from affine(f"{_BLOCK}.mlp.fc2", "DF", f"{network}/outer")


def _gated_tensors(layers: str) -> Iterator[Tensor]:
    """Yields the other tensors of gated attention."""
    attention = f"{layers}/self_attention"
    joined = (f"{attention}/query", f"{attention}/key")
    yield Tensor(f"{_BLOCK}.attn.qk.weight", "BD", joined, is_linear=True)
    yield Tensor(f"{_BLOCK}.attn.v.weight", "QD", (f"{attention}/value",), is_linear=True)
    yield from affine(f"{_BLOCK}.attn.pos_proj", "HO", f"{attention}/position")
    yield Tensor(f"{_BLOCK}.attn.gating_param", "H", (f"{attention}/gate",))


CONVIT = Layout(
    model_type="convit",
    network="ConVit",
    section=ConViTConfig,
    sections=(_SECTION,),
    fields={},
    defaults={},
    only={"global_pool": "token"},
    ignored=f"architecture|num_classes|num_features|model_args|{_SECTION}[.].*",
    read=_read,
    write=_write,
    tensors=_tensors,
    sizes=lambda model: {"B": 2 * model.d_model, "G": model.num_patches, "O": 3},
    data=picture_data,
    example=lambda model: (
        _EXAMPLE.replace("CHANNELS", str(model.channels))
        .replace("HEIGHT", str(model.height))
        .replace("WIDTH", str(model.width))
    ),
    has_tokenizer=False,
    tasks=(),
    expressed={
        **EXPRESSED,
        **dict.fromkeys(_SIZES, ANY),
        "activation": ["gelu_exact"],
        "norm_epsilon": [1e-6],
    },
    fits=lambda model: model.height == model.width,
)
