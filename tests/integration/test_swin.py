"""A Swin trained on pictures: resumed exactly, in int8, and exported."""

import jax
import numpy as np
import pytest

from jaxformer import Config, ImageClassifier, ImagesConfig, SwinConfig, TrainingConfig, train
from jaxformer.inference.conversions import quantize
from jaxformer.inference.weights import TrainedModel, load_model
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface

from ..runs import reports
from .equal_runs import check_resumed


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    labels = np.arange(24) % 2
    images = rng.integers(0, 90, (24, 8, 8))
    images[labels == 1, 2:6] += 150
    np.savez(folder / "train.npz", images=images.astype(np.uint8), labels=labels)
    return Config(
        model=SwinConfig(
            height=8,
            width=8,
            channels=1,
            patch_size=1,
            window_size=4,
            depths="2 2",
            num_classes=2,
            d_model=8,
            d_ff=16,
            num_heads=2,
            dropout_rate=0.1,
            attention_dropout_rate=0.1,
        ),
        data=ImagesConfig(
            train=f"{folder}/train.npz",
            valid=f"{folder}/train.npz",
            rows=8,
            shift=0.5,
        ),
        training=TrainingConfig(
            steps=24,
            warmup_steps=4,
            learning_rate=1e-2,
            log_every=12,
            eval_every=24,
            checkpoint_every=12,
        ),
    )


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("bars") / "run"
    train(config, workdir)
    return workdir


def test_it_learns_and_resumes_exactly(run, config, tmp_path):
    assert reports(run)[-1]["accuracy"] == 1.0
    check_resumed(config, run, tmp_path, cut=17)


def test_it_has_an_int8_copy_and_an_export(run, config, tmp_path):
    images = np.load(config.data.train)["images"][..., None]
    expected = ImageClassifier.load(run).probabilities(images)

    quantize(run, tmp_path / "int8")
    found = ImageClassifier.load(tmp_path / "int8").probabilities(images)
    np.testing.assert_allclose(found, expected, atol=0.05)

    export_model("safetensors", run, tmp_path / "out")
    import_huggingface(tmp_path / "out", tmp_path / "again")
    again = TrainedModel.load(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, again.params, load_model(run)[1])
