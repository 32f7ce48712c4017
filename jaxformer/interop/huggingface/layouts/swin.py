"""Swin in transformers' layout."""

from collections.abc import Iterator
from typing import Any

from jaxformer.errors import UserError
from jaxformer.interop.huggingface.foreign_layout import ANY, Layout, Tensor, affine, layer_norm
from jaxformer.interop.huggingface.layouts.bert import ENCODER_FIELDS
from jaxformer.interop.huggingface.layouts.pictures import (
    EXPRESSED,
    HEAD,
    picture_data,
    picture_example,
    read_image_size,
    read_pictures,
    write_image_size,
    write_labels,
)
from jaxformer.interop.huggingface.preprocessor import write_preprocessor
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.swin import SwinConfig

_OF_ALL_STAGES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
_FIELDS = {name: ours for name, ours in ENCODER_FIELDS.items() if name not in _OF_ALL_STAGES}


def _read(fields: JsonFields) -> dict[str, Any]:
    """Returns the fields that no table has; widths and heads double from stage to stage."""
    depths = _integers(fields, "depths")
    heads = _integers(fields, "num_heads")
    doubled = [heads[0] * 2**stage for stage in range(len(depths))]
    if heads != doubled:
        raise UserError(
            f"{fields.place}: expected num_heads to double from stage to stage, {doubled}: got "
            f"{heads}"
        )

    d_model = fields.integer("embed_dim")
    d_ff = fields.number("mlp_ratio") * d_model
    if not d_ff.is_integer():
        raise UserError(
            f"{fields.place}: expected mlp_ratio times embed_dim={d_model} to be a whole number: "
            f"got {d_ff}"
        )

    height, width = read_image_size(fields)
    return {
        "depths": " ".join(map(str, depths)),
        "num_heads": heads[0],
        "d_ff": int(d_ff),
        **read_pictures(fields, height, width),
    }


def _integers(fields: JsonFields, name: str) -> list[int]:
    found = fields.values[name]
    are_integers = isinstance(found, list) and all(type(number) is int for number in found)
    if not found or not are_integers:
        raise UserError(
            f"{fields.place}: expected {name} to be whole numbers, one for each stage: got "
            f"{found!r:.80}"
        )
    return found


def _write(model: SwinConfig) -> dict[str, Any]:
    stages = model.stages
    return {
        **write_image_size(model.height, model.width),
        "depths": [stage.num_layers for stage in stages],
        "num_heads": [stage.num_heads for stage in stages],
        "mlp_ratio": model.d_ff / model.d_model,
        **write_labels(model),
    }


def _axis(letter: str, stage: int) -> str:
    """Returns another letter for each stage: the sizes of their axes differ."""
    return chr(ord(letter) + 0x100 * (stage + 1))


def _sizes(model: SwinConfig) -> dict[str, int]:
    """Returns the sizes of B, the rows of a table of offsets, and of the axes of each stage."""
    sizes = {"B": (2 * model.window_size - 1) ** 2}
    for number, stage in enumerate(model.stages):
        sizes[_axis("D", number)] = stage.d_model
        sizes[_axis("F", number)] = stage.d_ff
        sizes[_axis("H", number)] = stage.num_heads
        sizes[_axis("M", number)] = 4 * stage.d_model  # of four neighbors
    return sizes


def _tensors(model: SwinConfig) -> Iterator[Tensor]:
    first = _axis("D", 0)
    yield from affine("embeddings.patch_embeddings.projection", f"{first}ZYX", "patches")
    yield from layer_norm("embeddings.norm", "embedding_norm", first)

    last = len(model.stages) - 1
    for number, stage in enumerate(model.stages):
        # Our layers are pairs of a block and one with shifted windows.
        for first_block, name in enumerate(("plain", "shifted")):
            blocks = range(first_block, stage.num_layers, 2)
            for tensor in _block(number, f"stages_{number}/layers/{name}"):
                yield tensor._replace(numbers=blocks)
        if number < last:
            merge = f"encoder.layers.{number}.downsample"
            merged = _axis("M", number)
            yield from layer_norm(f"{merge}.norm", f"merges_{number}/norm", merged)
            axes = f"{_axis('D', number + 1)}{merged}"
            yield from affine(f"{merge}.reduction", axes, f"merges_{number}/reduction", bias=False)

    yield from layer_norm("layernorm", "norm", _axis("D", last))
    if model.num_classes:
        yield from affine("classifier", f"N{_axis('D', last)}", "classes")


def _block(stage: int, ours: str) -> Iterator[Tensor]:
    """Yields the tensors of the blocks of a stage, given the path of our parameters."""
    theirs = f"encoder.layers.{stage}.blocks.{{n}}"
    width = _axis("D", stage)
    inner = _axis("F", stage)
    heads = _axis("H", stage)

    attention = f"{ours}/self_attention"
    for name in ("query", "key", "value"):
        own = f"{theirs}.attention.self.{name}"
        yield from affine(own, f"{width}{width}", f"{attention}/{name}")
    yield from affine(f"{theirs}.attention.output.dense", f"{width}{width}", f"{attention}/output")
    table = f"{theirs}.attention.self.relative_position_bias_table"
    yield Tensor(table, f"B{heads}", (f"{attention}/bias/table",))

    network = f"{ours}/feed_forward"
    yield from affine(f"{theirs}.intermediate.dense", f"{inner}{width}", f"{network}/inner")
    yield from affine(f"{theirs}.output.dense", f"{width}{inner}", f"{network}/outer")
    yield from layer_norm(f"{theirs}.layernorm_before", f"{attention}_residual/norm", width)
    yield from layer_norm(f"{theirs}.layernorm_after", f"{network}_residual/norm", width)


SWIN = Layout(
    model_type="swin",
    network=lambda model: f"Swin{HEAD if model.num_classes else 'Model'}",
    section=SwinConfig,
    fields={
        **_FIELDS,
        "embed_dim": "d_model",
        "window_size": "window_size",
        "patch_size": "patch_size",
        "num_channels": "channels",
    },
    defaults={
        "image_size": 224,
        "patch_size": 4,
        "num_channels": 3,
        "embed_dim": 96,
        "depths": [2, 2, 6, 2],
        "num_heads": [3, 6, 12, 24],
        "window_size": 7,
        "mlp_ratio": 4.0,
        "layer_norm_eps": 1e-5,
    },
    only={"qkv_bias": True, "use_absolute_embeddings": False},
    # Fields that follow from others, of other heads, of programs that read feature maps, and of old
    # files.
    ignored="hidden_size|num_layers|encoder_stride|drop_path_rate|path_norm|stage_names"
    "|out_(features|indices)",
    lacks={"drop_path_rate": ""},
    read=_read,
    write=_write,
    tensors=_tensors,
    sizes=_sizes,
    data=picture_data,
    preprocessor=write_preprocessor,
    example=picture_example,
    has_tokenizer=False,
    prefix="swin.",
    tasks=(HEAD,),
    heads=("classifier.",),
    buffers=r".*relative_position_index",
    expressed={
        **EXPRESSED,
        "num_classes": range(2**20),
        "depths": ANY,
        "d_ff": ANY,
        "num_heads": ANY,
    },
)
