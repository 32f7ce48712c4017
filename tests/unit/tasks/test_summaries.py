"""The log shows the first example of each split, whatever the kind of the data."""

import json
import pathlib

import numpy as np
import pytest

from jaxformer.config import (
    Config,
    DataConfig,
    EncoderConfig,
    ImagesConfig,
    LabeledConfig,
    ModelConfig,
    StreamConfig,
)
from jaxformer.experiment import make_task
from jaxformer.models.vit import ViTConfig
from jaxformer.runs.workdir import Workdir

SIZES = {"d_model": 8, "d_ff": 8, "num_heads": 1, "num_layers": 1}
MODEL = ModelConfig(vocab_size=280, target_vocab_size=280, embeddings="separate", **SIZES)
ENCODER = EncoderConfig(vocab_size=290, num_classes=2, **SIZES)
LANGUAGES = {"source_language": "fr", "target_language": "is"}


def write(name, *lines):
    text = "".join(f"{line}\n" for line in lines)
    pathlib.Path(name).write_text(text, encoding="utf-8")


def write_files():
    for split, word in (("train", "un"), ("valid", "deux")):
        row = {"fr": f"{word} chien", "is": "hundur", "en": "dog"}
        write(f"{split}.jsonl", json.dumps(row))
        write(f"{split}.trees", f"(S (NN {word}) (VBZ dort))")
        write(f"{split}.labels", f"good\t{word} film", "bad\tun chien")
        write(f"{split}.txt", "", f"{word}\tfilm", *["et un autre chien, un chat"] * 9)

        pixels = np.zeros((2, 4, 4, 3), np.uint8)
        label = len(word) - 2  # 0 in train, and 2 in valid
        np.savez(f"{split}.npz", images=pixels, labels=[label, 1])


PAIRS = DataConfig(corpus="jsonl", train="train.jsonl", valid="valid.jsonl", **LANGUAGES)
TREES = DataConfig(corpus="trees", train="train.trees", valid="valid.trees")
LABELED = LabeledConfig(train="train.labels", valid="valid.labels")
MASKED = LabeledConfig(corpus="masked", train="train.txt", valid="valid.txt", mask_rate=0.15)
STREAM = StreamConfig(file="train.txt", valid="valid.txt", length=16)
IMAGES = ImagesConfig(train="train.npz[:]", valid="valid.npz")
VIT = ViTConfig(height=4, width=4, patch_size=2, num_classes=3, **SIZES)
KINDS = {
    "jsonl": (PAIRS, MODEL, '{file}: fr "{word} chien" -> is "hundur"'),
    "trees": (TREES, MODEL, '{file}: tree "(S (NN {word}) (VBZ dort))"'),
    "labeled": (LABELED, ENCODER, '{file}: text "{word} film" -> label "good"'),
    "masked": (MASKED, ENCODER, '{file}: text "{word}\\tfilm"'),
    "stream": (STREAM, ModelConfig(vocab_size=22, **SIZES), '{file}: "{word}\\tfilm"'),
    "images": (IMAGES, VIT, '{file}: picture "4 x 4 x 3" -> label "{label}"'),
}


@pytest.mark.parametrize(("data", "model", "line"), KINDS.values(), ids=KINDS)
def test_the_first_example_of_each_split_is_shown(data, model, line, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_files()

    task = make_task(Config(model=model, data=data), Workdir(tmp_path / "run"))
    rows = task.summary().split("\n")
    shown = [row for row in rows if row.startswith("data: ")]

    train = data.file if data.corpus == "stream" else data.train
    assert shown == [
        "data: " + line.format(file=train, word="un", label=0),
        "data: " + line.format(file=data.valid, word="deux", label=2),
    ]
