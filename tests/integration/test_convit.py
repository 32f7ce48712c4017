"""ConViT: models of timm, imported and exported; runs, resumed and on a mesh.

The fixtures are made by ``tests/fixtures/make_convit.py``.
"""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import (
    Config,
    ConViTConfig,
    ImageClassifier,
    ImagesConfig,
    TrainingConfig,
    load_model,
    train,
)
from jaxformer.errors import UserError
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.models.convit import gates_of

from ..fixtures.random_weights import read_arrays
from .equal_runs import check_other_mesh, check_resumed
from .families import imported, relative_difference, write_model
from .test_images import pictures

NAMES = ["convit", "convit_nine_heads"]


def logits_of(model, params, pixels):
    return jax.jit(lambda params, pixels: model.apply({"params": params}, pixels))(params, pixels)


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_timm(name):
    family = imported(name)
    model: Any
    model, params = load_model(family.workdir)
    pixels = family.outputs["pixels"].transpose(0, 2, 3, 1)
    found = logits_of(model, params, pixels)
    assert relative_difference(np.asarray(found), family.outputs["logits"]) < 1e-5


def test_pixels_are_normalized_and_cut_as_timm_does():
    config = imported("convit").trained.config.model
    assert config.form == (8, 8, 3, "bicubic", 9)  # of a side that is 8 / 0.875
    white = np.asarray(config.scale_pixels(np.full((1, 1, 1, 3), 255)))
    np.testing.assert_allclose(white[0, 0, 0], [2.2489083, 2.42857143, 2.64], rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_the_import_bit_for_bit(name, tmp_path):
    family = imported(name)
    export_model("safetensors", family.workdir, tmp_path / "out")
    found = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    expected = read_arrays(family.folder)
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        np.testing.assert_array_equal(found[tensor], array, strict=True, err_msg=tensor)

    theirs = json.loads((family.folder / "config.json").read_text())
    ours = json.loads((tmp_path / "out" / "config.json").read_text())
    arguments = theirs.pop("model_args")
    for field in ("num_classes",):
        arguments.pop(field)
    assert arguments.items() <= ours["model_args"].items()
    settings = theirs.pop("pretrained_cfg")
    for name in ("tag", "custom_load", "pool_size", "crop_pct"):
        settings.pop(name)
    assert settings.items() <= ours["pretrained_cfg"].items()
    assert theirs.items() <= ours.items()

    import_huggingface(tmp_path / "out", tmp_path / "again")
    again: Any
    again, params = load_model(tmp_path / "again")
    assert again.config == family.trained.config.model
    jax.tree.map(np.testing.assert_array_equal, params, family.trained.params)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architecture": "convnext_tiny"}, "expected model_type to be .*: got 'convnext'"),
        ({"global_pool": "avg"}, "expected global_pool to be 'token': got 'avg'"),
        ({"crop_mode": "border"}, "crop_mode to be center: got 'border'"),
        ({"interpolation": "lanczos"}, "interpolation to be bilinear or bicubic: got 'lanczos'"),
        ({"input_size": [3, 8]}, r"input_size to be channels, height and width: got \[3, 8\]"),
        ({"mean": "half"}, "mean to be a list of numbers: got 'half'"),
        ({"crop_pct": 0}, "crop_pct to be above 0 and at most 1: got 0"),
    ],
)
def test_other_values_are_refused_by_name(fields, message, tmp_path):
    folder = write_model("convit", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for name, value in fields.items():
        section = config if name in config else config["pretrained_cfg"]
        section[name] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        import_huggingface(folder, tmp_path / "run")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Bars on noise, 6 by 6 pixels, for a model with the sizes of a run of seconds."""
    folder = tmp_path_factory.mktemp("pictures")
    for name, seed in (("train", 0), ("valid", 1)):
        arrays = pictures(seed, 90)
        squares = arrays["images"][:, :, 1:7]
        np.savez(folder / f"{name}.npz", images=squares, labels=arrays["labels"])

    return Config(
        model=ConViTConfig(
            height=6,
            width=6,
            channels=1,
            patch_size=1,
            num_classes=2,
            d_model=16,
            d_ff=16,
            num_layers=2,
            num_local_layers=1,
            dropout_rate=0.1,
        ),
        data=ImagesConfig(train=f"{folder}/train.npz", valid=f"{folder}/valid.npz", rows=24),
        training=TrainingConfig(
            steps=6,
            warmup_steps=2,
            learning_rate=5e-3,
            checkpoint_every=3,
            eval_every=6,
            log_every=3,
        ),
    )


@pytest.mark.ci
def test_a_run_resumes_exactly_and_is_the_same_on_a_mesh(config, tmp_path):
    whole = jax.device_get(train(config, tmp_path / "whole").params)
    check_resumed(config, tmp_path / "whole", tmp_path, cut=4)

    check_other_mesh(config, tmp_path / "whole", tmp_path)
    _, found = load_model(tmp_path / "mesh")
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)

    gates = np.asarray(gates_of(whole))
    assert gates.shape == (1, 4)
    assert (gates != jax.nn.sigmoid(1.0)).all()  # They have learned.

    classifier = ImageClassifier.load(tmp_path / "whole")
    with pytest.raises(UserError, match=r"such as vit: got model\.architecture=convit"):
        classifier.attention(np.zeros((1, 6, 6, 1), np.uint8))


def test_all_parameters_learn_except_the_bias_that_changes_nothing():
    family = imported("convit")
    model: Any
    model, params = load_model(family.workdir)
    pixels = jnp.asarray(family.outputs["pixels"].transpose(0, 2, 3, 1))

    def loss(params):
        return jnp.square(model.apply({"params": params}, pixels)).sum()

    gradients = jax.device_get(jax.jit(jax.grad(loss))(params))
    for path, leaf in jax.tree.leaves_with_path(gradients):
        name = jax.tree_util.keystr(path)
        assert np.isfinite(leaf).all(), name
        assert "position_bias" in name or np.abs(leaf).max() > 1e-4, name
    bias = gradients["local"]["layers"]["self_attention"]["position_bias"]
    assert (bias == 0).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_heads": 2}, "number of heads that is a square.*: got 2"),
        ({"num_local_layers": 2}, "num_local_layers must be less than model.num_layers.*: got 2"),
        ({"patch_size": 4}, "patch_size must divide model.height"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields, message, config):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(config.model, **fields)
