"""CLIP in transformers' layout: sections for the encoders of texts and of pictures."""

from collections.abc import Iterator
from typing import Any

from jaxformer.config import ImageTextConfig
from jaxformer.data.tokenizer import BOS, EOS
from jaxformer.errors import UserError
from jaxformer.interop.huggingface.foreign_layout import (
    ANY,
    ImportedTokenizer,
    Layout,
    Tensor,
    activation_name,
    affine,
    layer_norm,
)
from jaxformer.interop.huggingface.preprocessor import read_preprocessor, write_preprocessor
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.clip import CLIPConfig

# The last id that legacy files give the end token, whatever its id in the tokenizer.
_LEGACY_END = 2
_START_TOKEN = "<|startoftext|>"
_END_TOKEN = "<|endoftext|>"
_SIZES = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
}
# Fields with one value for both encoders.
_COMMON = {
    "hidden_act": "activation",
    "layer_norm_eps": "norm_epsilon",
    "attention_dropout": "attention_dropout_rate",
}
_EXAMPLE = """
from PIL import Image
from transformers import AutoProcessor, NETWORK

processor, model = AutoProcessor.from_pretrained("."), NETWORK.from_pretrained(".")
picture = Image.new("RGB", (64, 64))
inputs = processor(text=["a cat", "a dog"], images=picture, padding=True, return_tensors="pt")
print(model(**inputs).logits_per_image.softmax(dim=1))
"""


def _read(fields: JsonFields) -> dict[str, Any]:
    for name in _COMMON:
        value = fields.values.get(f"text_config.{name}")
        reason = "encoders of pictures and of texts have the same"
        fields.check(f"vision_config.{name}", [value], f"text_config.{name}={value!r}", reason)
    for section in ("text_config", "vision_config"):
        _check_repeated(fields, section)

    side = fields.integer("vision_config.image_size")
    channels = fields.integer("vision_config.num_channels")
    return {
        "height": side,
        "width": side,
        **read_preprocessor(fields, channels, side, width=side),
    }


def _check_repeated(fields: JsonFields, section: str) -> None:
    """Refuses another value in the second copy of a section, which transformers prefers."""
    name = f"{section}_dict"
    copy = fields.values.get(name)
    if copy is None:
        return

    values = copy.items() if isinstance(copy, dict) else [("", copy)]
    for field, value in values:
        if fields.values.get(f"{section}.{field}") != value:
            raise UserError(
                f"{fields.place}: expected {name} to repeat {section}: got {field}={value!r:.80}"
            )


def _check_end(fields: JsonFields, tokenizer: ImportedTokenizer) -> None:
    """Refuses a tokenizer whose texts do not end where the model of transformers reads them.

    It reads the output of the first token with the id of the config. Legacy configs have another
    id, 2, for which it reads the token with the largest id.
    """
    if tokenizer.encode_prompt("") != [BOS, EOS]:
        raise UserError(
            f"{fields.place}: expected a tokenizer with {_START_TOKEN} before a text and "
            f"{_END_TOKEN} after it"
        )

    end = tokenizer.special["eos"]
    allowed = [] if end == _LEGACY_END else [end]
    if end == len(tokenizer.our_ids) - 1:
        allowed.append(_LEGACY_END)
    fields.check(
        "text_config.eos_token_id",
        allowed,
        f"{end}, the id of {_END_TOKEN}, or {_LEGACY_END} if that is the largest id",
        "texts end with this token",
    )


def _write(model: CLIPConfig) -> dict[str, Any]:
    values: dict[str, Any] = {"vision_config.image_size": model.height}
    for name, ours in _COMMON.items():
        value = getattr(model, ours)
        values[f"vision_config.{name}"] = activation_name(value) if ours == "activation" else value
    return values


def _preprocessor(model: CLIPConfig) -> dict[str, Any]:
    fields = write_preprocessor(model)
    if model.shortest_side is not None:
        fields["image_processor_type"] = "CLIPImageProcessor"
    return fields


def _layer_tensors(place: str, ours: str, axes: str) -> Iterator[Tensor]:
    """Yields the tensors of the layers of an encoder, given its axes for D and F."""
    width, inner = axes
    theirs = f"{place}.encoder.layers.{{n}}"
    attention = f"{ours}/layers/self_attention"
    square = f"{width}{width}"
    for name, own in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
        yield from affine(f"{theirs}.self_attn.{name}", square, f"{attention}/{own}")
    yield from affine(f"{theirs}.self_attn.out_proj", square, f"{attention}/output")
    yield from layer_norm(f"{theirs}.layer_norm1", f"{attention}_residual/norm", width)

    network = f"{ours}/layers/feed_forward"
    yield from affine(f"{theirs}.mlp.fc1", f"{inner}{width}", f"{network}/inner")
    yield from affine(f"{theirs}.mlp.fc2", f"{width}{inner}", f"{network}/outer")
    yield from layer_norm(f"{theirs}.layer_norm2", f"{network}_residual/norm", width)


def vision_tower_tensors(place: str, num_layers: int, ours: str = "vision") -> Iterator[Tensor]:
    """Yields the tensors of a :class:`~jaxformer.models.clip.VisionTower`.

    Its axes are "d" and "f" for the width and the inner width of its layers.

    Args:
      place: Beginning of the names, such as "vision_model".
      num_layers: Number of its layers.
      ours: Path of the tower among our parameters.
    """
    embeddings = f"{place}.embeddings"
    yield Tensor(f"{embeddings}.class_embedding", "d", (f"{ours}/class_token",))
    yield from affine(f"{embeddings}.patch_embedding", "dZYX", f"{ours}/patches", bias=False)
    yield Tensor(f"{embeddings}.position_embedding.weight", "Sd", (f"{ours}/positions",))
    yield from layer_norm(f"{place}.pre_layrnorm", f"{ours}/norm", "d")

    for tensor in _layer_tensors(place, f"{ours}/encoder", "df"):
        yield tensor._replace(numbers=range(num_layers))


def _tensors(model: CLIPConfig) -> Iterator[Tensor]:
    yield from vision_tower_tensors("vision_model", model.vision_num_layers)
    yield from layer_norm("vision_model.post_layernorm", "vision_norm", "d")
    yield from affine("visual_projection", "ed", "vision_projection", bias=False)

    yield Tensor("text_model.embeddings.token_embedding.weight", "VD", ("embedding",))
    yield Tensor("text_model.embeddings.position_embedding.weight", "MD", ("positions",))
    yield from _layer_tensors("text_model", "text", "DF")
    yield from layer_norm("text_model.final_layer_norm", "text/norm")
    yield from affine("text_projection", "eD", "text_projection", bias=False)

    yield Tensor("logit_scale", "", ("log_scale",))


CLIP = Layout(
    model_type="clip",
    network="CLIPModel",
    section=CLIPConfig,
    sections=("text_config", "vision_config"),
    fields={
        **{f"text_config.{name}": ours for name, ours in (_SIZES | _COMMON).items()},
        **{f"vision_config.{name}": f"vision_{ours}" for name, ours in _SIZES.items()},
        "text_config.max_position_embeddings": "max_length",
        "vision_config.patch_size": "patch_size",
        "vision_config.num_channels": "channels",
        "projection_dim": "embedding_dim",
    },
    defaults={
        "text_config.vocab_size": 49_408,
        "text_config.hidden_size": 512,
        "text_config.intermediate_size": 2048,
        "text_config.num_attention_heads": 8,
        "text_config.num_hidden_layers": 12,
        "text_config.max_position_embeddings": 77,
        "text_config.hidden_act": "quick_gelu",
        "text_config.layer_norm_eps": 1e-5,
        "text_config.attention_dropout": 0.0,
        "text_config.eos_token_id": 49_407,
        "vision_config.hidden_size": 768,
        "vision_config.intermediate_size": 3072,
        "vision_config.num_attention_heads": 12,
        "vision_config.num_hidden_layers": 12,
        "vision_config.hidden_act": "quick_gelu",
        "vision_config.layer_norm_eps": 1e-5,
        "vision_config.attention_dropout": 0.0,
        "vision_config.image_size": 224,
        "vision_config.patch_size": 32,
        "vision_config.num_channels": 3,
        "projection_dim": 512,
    },
    only={},
    # Sizes that only models of one encoder have, the scale before training, and checked copies.
    ignored=(
        "(text|vision)_config[.](projection_dim|dropout)|logit_scale_init_value"
        "|(text|vision)_config_dict"
    ),
    read=_read,
    check_tokenizer=_check_end,
    write=_write,
    tensors=_tensors,
    sizes=lambda model: {
        "d": model.vision_d_model,
        "f": model.vision_d_ff,
        "e": model.embedding_dim,
    },
    data=lambda model: ImageTextConfig(train="unknown", valid="unknown"),
    special={},
    special_tokens={"pad": _END_TOKEN, "eos": _END_TOKEN, "bos": _START_TOKEN},
    written_ids={
        "pad": "text_config.pad_token_id",
        "eos": "text_config.eos_token_id",
        "bos": "text_config.bos_token_id",
    },
    vocab_fields=("text_config.vocab_size",),
    tokenizer_class="CLIPTokenizer",
    preprocessor=_preprocessor,
    example=_EXAMPLE,
    tasks=(),
    buffers=r"(text|vision)_model\.embeddings\.position_ids",
    expressed={
        "height": ANY,
        "width": ANY,
        "pixel_mean": ANY,
        "pixel_std": ANY,
        "resampling": ANY,
        "shortest_side": ANY,
    },
    fits=lambda model: model.height == model.width,
)
