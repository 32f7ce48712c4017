"""Processors of pictures, read and written; test_huggingface.py has what is refused.

``BitImageProcessor().to_dict()`` and its relatives in transformers 5.24 printed the defaults on
2026-11-28.
"""

import json

import pytest

from jaxformer import ViTConfig
from jaxformer.interop.huggingface.preprocessor import FILE, read_preprocessor, write_preprocessor
from jaxformer.interop.json_fields import JsonFields

PLAIN = {
    "pixel_mean": "0.5",
    "pixel_std": "0.5",
    "resampling": "bilinear",
    "shortest_side": None,
}
IMAGENET = {
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
CLIP_MEAN = "0.48145466 0.4578275 0.40821073"
CLIP_STD = "0.26862954 0.26130258 0.27577711"


def read(folder, fields):
    (folder / "config.json").write_text("{}")
    (folder / FILE).write_text(json.dumps(fields))
    config = JsonFields(folder / "config.json", {})
    return read_preprocessor(config, channels=3, height=224, width=224)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"image_mean": 0.25}, {"pixel_mean": "0.25"}),
        ({"image_processor_type": "BeitImageProcessorFast"}, {"resampling": "bicubic"}),
        # As of microsoft/swin-tiny-patch4-window7-224.
        (
            {
                "feature_extractor_type": "ViTFeatureExtractor",
                "resample": 3,
                "size": 224,
                **IMAGENET,
            },
            {
                "pixel_mean": "0.485 0.456 0.406",
                "pixel_std": "0.229 0.224 0.225",
                "resampling": "bicubic",
            },
        ),
        # As of facebook/dinov2-base.
        (
            {
                "image_processor_type": "BitImageProcessor",
                "do_center_crop": True,
                "crop_size": {"height": 224, "width": 224},
                "size": {"shortest_edge": 256},
                "resample": 3,
                **IMAGENET,
            },
            {
                "pixel_mean": "0.485 0.456 0.406",
                "pixel_std": "0.229 0.224 0.225",
                "resampling": "bicubic",
                "shortest_side": 256,
            },
        ),
        (
            {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224},
            {
                "pixel_mean": CLIP_MEAN,
                "pixel_std": CLIP_STD,
                "resampling": "bicubic",
                "shortest_side": 224,
            },
        ),
    ],
)
def test_processors_are_read_and_written(fields, expected, tmp_path):
    found = read(tmp_path, fields)
    assert found == PLAIN | expected

    written = write_preprocessor(ViTConfig(**found))
    assert read(tmp_path, written) == found
