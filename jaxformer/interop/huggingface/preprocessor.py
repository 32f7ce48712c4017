"""preprocessor_config.json: how pictures become the pixels that a model takes."""

from typing import Any, NamedTuple

from jaxformer.errors import UserError
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.pictures import PixelArchitecture

FILE = "preprocessor_config.json"
# Interpolations by PIL's numbers.
_RESAMPLING = {2: "bilinear", 3: "bicubic"}
_STEPS = {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
# Fields that change no pixel of a picture as our models take it: of pictures in grayscale, of steps
# that are off, the layout and the device of arrays, and names.
_IGNORED = (
    "do_resize|default_to_square|do_convert_rgb|pad_size"
    "|(input_)?data_format|device|disable_grouping|return_tensors|processor_class"
)
_HALF = (0.5, 0.5, 0.5)
_OF_CLIP = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}


class Processor(NamedTuple):
    """A class of transformers, and what it does if a file leaves a field out.

    Attributes:
      resample: PIL's number of the interpolation.
      crops: It resizes the shorter side, and cuts the center out.
      normalization: The mean and the standard deviation.
    """

    resample: int
    crops: bool = False
    normalization: dict[str, tuple[float, ...]] = {"image_mean": _HALF, "image_std": _HALF}  # noqa: RUF012


_PROCESSORS = {
    "ViT": Processor(resample=2),
    "Beit": Processor(resample=3),
    "DeiT": Processor(resample=3, crops=True),
    "Bit": Processor(resample=3, crops=True, normalization=_OF_CLIP),
    "CLIP": Processor(resample=3, crops=True, normalization=_OF_CLIP),
}
_NAMES = {
    "image_processor_type": ("ImageProcessor", "ImageProcessorFast", "ImageProcessorPil"),
    "feature_extractor_type": ("FeatureExtractor",),
}


def read_preprocessor(config: JsonFields, channels: int, height: int, width: int) -> dict[str, Any]:
    """Returns our fields of the pixels that a model takes, given its config.json and its pictures.

    Raises:
      UserError: The processor does something that our models do not.
    """
    fields = JsonFields(config.place.with_name(FILE), {})
    processor = _processor(fields)
    crop = crop_size(config)
    if crop not in (None, (height, width)):
        raise UserError(
            f"{fields.place}: expected crop_size to be the size of the model's pictures, {height} "
            f"and {width}: got {crop}"
        )

    for name, value in _STEPS.items():
        fields.check(name, [value], repr(value), "models take normalized pixels")
    for name in ("reduce_labels", "do_reduce_labels"):
        fields.check(name, [False, None], "False", "models have no segments of pictures")
    known = " or ".join(f"{number}, {name}" for number, name in _RESAMPLING.items())
    fields.check("resample", [*_RESAMPLING], known, "exports have one of these")

    values = {
        **_read_normalization(fields, processor, channels),
        "resampling": _RESAMPLING[fields.values.get("resample", processor.resample)],
        "shortest_side": _shortest_side(fields, processor),
    }
    fields.check_known(
        {
            *_STEPS,
            *_NAMES,
            "reduce_labels",
            "do_reduce_labels",
            "resample",
            "image_mean",
            "image_std",
            "size",
            "crop_size",
            "do_center_crop",
        },
        _IGNORED,
    )
    return values


def crop_size(config: JsonFields) -> tuple[int, int] | None:
    """Returns height and width of what a processor cuts out; None for one that does not crop."""
    fields = JsonFields(config.place.with_name(FILE), {})
    processor = _processor(fields)
    if not _crops(fields, processor):
        return None

    # A number is the size of a square.
    crop = fields.values.get("crop_size", 224)
    sides = {"height": crop, "width": crop}
    if isinstance(crop, dict):
        sides = crop

    height = sides.get("height")
    width = sides.get("width")
    if not isinstance(height, int) or not isinstance(width, int):
        raise UserError(f"{fields.place}: expected crop_size to be whole numbers: got {crop!r:.80}")
    return height, width


def write_preprocessor(model: PixelArchitecture) -> dict[str, Any]:
    """Returns the fields of a processor with which pixels are as our model takes them."""
    numbers = {number for number, name in _RESAMPLING.items() if name == model.resampling}
    sides = {"height": model.height, "width": model.width}
    fields: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": sides,
        **_STEPS,
        **write_normalization(model),
    }

    # Without the field, the processor's interpolation is bilinear.
    if model.resampling != "bilinear":
        [fields["resample"]] = numbers
    if model.shortest_side is not None:
        fields["image_processor_type"] = "BitImageProcessor"
        fields["size"] = {"shortest_edge": model.shortest_side}
        fields["do_center_crop"] = True
        fields["crop_size"] = sides
        fields["do_convert_rgb"] = model.channels == 3
        [fields["resample"]] = numbers
    return fields


def read_normalization(fields: JsonFields, channels: int) -> dict[str, str]:
    """Returns our fields of the mean and the standard deviation, CLIP's by default."""
    return _read_normalization(fields, _PROCESSORS["CLIP"], channels)


def _read_normalization(
    fields: JsonFields,
    processor: Processor,
    channels: int,
) -> dict[str, str]:
    return {
        "pixel_mean": _numbers(fields, "image_mean", processor, channels),
        "pixel_std": _numbers(fields, "image_std", processor, channels),
    }


def write_normalization(model: PixelArchitecture) -> dict[str, list[float]]:
    """Returns the fields of the mean and the standard deviation."""
    return {
        "image_mean": _per_channel(model.pixel_mean, model.channels),
        "image_std": _per_channel(model.pixel_std, model.channels),
    }


def _processor(fields: JsonFields) -> Processor:
    """Returns the class that a file names, ViT's if it names none."""
    found = _PROCESSORS["ViT"]
    for field, ends in _NAMES.items():
        classes = {}
        for beginning, processor in _PROCESSORS.items():
            classes |= {f"{beginning}{end}": processor for end in ends}

        expected = " or ".join(classes)
        fields.check(field, [*classes], expected, "pictures have no other processor")
        name = fields.values.get(field)
        if name is not None:
            found = classes[name]
    return found


def _numbers(fields: JsonFields, name: str, processor: Processor, channels: int) -> str:
    """Returns a number for each channel, or one if they are equal, as our fields have them."""
    found = fields.values.get(name)
    if found is None:
        found = list(processor.normalization[name])

    # Another number would be refused by our section.
    is_list = isinstance(found, list)
    numbers = found if is_list else [found]
    are_numbers = all(type(number) in (int, float) for number in numbers)
    if not are_numbers or (is_list and len(numbers) != channels):
        raise UserError(
            f"{fields.place}: expected {name} to be {channels} numbers, one for each channel: got "
            f"{found!r:.80}"
        )

    words = [repr(float(number)) for number in numbers]
    if len(set(words)) == 1:
        return words[0]
    return " ".join(words)


def _per_channel(numbers: str, channels: int) -> list[float]:
    found = [float(word) for word in numbers.split()]
    if len(found) == channels:
        return found
    return found * channels


def _shortest_side(
    fields: JsonFields,
    processor: Processor,
) -> int | None:
    """Returns the pixels of the shorter side, if the center is then cut out."""
    if not _crops(fields, processor):
        return None

    size = fields.values.get("size", 224)
    shortest = size
    if isinstance(size, dict):
        shortest = size.get("shortest_edge")
    if not isinstance(shortest, int) or not processor.crops:
        raise UserError(
            f"{fields.place}: expected do_center_crop with a size of shortest_edge, in a "
            f"BitImageProcessor or a CLIPImageProcessor: got size={size!r:.80}"
        )
    return shortest


def _crops(fields: JsonFields, processor: Processor) -> bool:
    # A picture that is resized to what is then cut out stays whole.
    size = fields.values.get("size")
    is_whole = isinstance(size, dict) and size == fields.values.get("crop_size")
    if is_whole:
        return False

    crops = fields.values.get("do_center_crop")
    if crops is None:
        return processor.crops
    return bool(crops)
