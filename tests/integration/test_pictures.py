"""Imported models of pictures against transformers.

The fixtures are made by ``tests/fixtures/make_pictures.py``.
"""

import dataclasses
import json
import re
import shutil

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import Config, ImageClassifier, ImagesConfig, MeshConfig, TrainingConfig, train
from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.inference.conversions import quantize
from jaxformer.inference.weights import TrainedModel, load_model
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface, known_layouts

from ..profiles import by_profile
from . import pages
from .families import imported, relative_difference, write_model

CLASSIFIERS = [
    "beit",
    "beit_absolute",
    "beit_shared",
    "deit",
    "dinov2",
    "dinov2_gated",
    "dinov2_larger",
    "swin",
    "swin_wide",
    "vit_without_biases",
]
PLAIN = ["beit_plain", "beit_plain_token", "dinov2_smaller", "swin_plain"]
NAMES = CLASSIFIERS + PLAIN
SOME = ["beit", "dinov2_gated", "dinov2_smaller", "swin"]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_equal_transformers(name):
    family = imported(name)
    model, params = load_model(family.workdir)

    @jax.jit
    def run(params, images):
        pixels = model.config.scale_pixels(images)

        def call(module):
            return {"features": module.features(pixels), "logits": module(pixels)}

        return model.apply({"params": params}, method=call)

    found = jax.device_get(run(params, family.outputs["images"]))
    if "pooled" in family.outputs:
        # DINOv2's classifier also gets the mean over the patches, after the class token.
        expected = family.outputs["pooled"]
        found["pooled"] = found.pop("logits")[:, : expected.shape[1]]

    assert family.outputs.keys() == {"images", *found}
    for output, values in found.items():
        assert relative_difference(values, family.outputs[output]) < 1e-5, output


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_the_import_bit_for_bit(name, tmp_path):
    family = imported(name)
    export_model("safetensors", family.workdir, tmp_path / "out")

    theirs = json.loads((family.folder / "config.json").read_text())
    ours = json.loads((tmp_path / "out" / "config.json").read_text())
    layout = known_layouts()[theirs["model_type"]]
    notes = "initializer_range|label2id|transformers_version|vocab_size"
    for field, value in theirs.items():
        if not re.fullmatch(f"{notes}|{layout.ignored}", field):
            is_plain = name in PLAIN and field == "id2label"
            assert is_plain or ours.get(field) == value, field

    expected = safetensors.numpy.load_file(family.folder / "model.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    for tensor in layout.unread(family.trained.config.model):
        expected.pop(f"{layout.prefix}{tensor}", None)
        expected.pop(tensor, None)
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        np.testing.assert_array_equal(found[tensor], array, err_msg=tensor)

    import_huggingface(tmp_path / "out", tmp_path / "again")
    again = TrainedModel.load(tmp_path / "again")
    assert again.config.model == family.trained.config.model


@pytest.mark.parametrize("name", by_profile(["beit", "swin"], nightly=CLASSIFIERS))
def test_int8_and_bfloat16_are_close(name, tmp_path):
    family = imported(name)
    quantize(family.workdir, tmp_path / "int8")

    for workdir, dtype in ((tmp_path / "int8", None), (family.workdir, "bfloat16")):
        trained = TrainedModel.load(workdir, compute_dtype=dtype)
        section = trained.config.model
        pixels = section.scale_pixels(family.outputs["images"])
        model = trained.config.kind.build(section)
        found = jax.jit(model.apply)({"params": trained.params}, pixels)
        expected = family.outputs["logits"]
        assert relative_difference(np.asarray(found, np.float32), expected) < 0.3


@pytest.mark.parametrize("name", by_profile(SOME, nightly=NAMES))
def test_all_parameters_learn(name):
    """Gradients are finite, and zero only where they are in truth: of the biases of keys."""
    family = imported(name)
    model, params = load_model(family.workdir)
    images = family.outputs["images"]

    def loss(params):
        pixels = model.config.scale_pixels(images)
        return jnp.square(model.apply({"params": params}, pixels) - 1).mean()

    loss_and_gradient = jax.jit(jax.value_and_grad(loss))
    before, gradient = jax.device_get(loss_and_gradient(params))
    leaves = jax.tree.leaves(gradient)
    norm = np.sqrt(sum(np.square(leaf).sum() for leaf in leaves))
    stepped = jax.tree.map(lambda leaf, change: leaf - 1e-2 * change / norm, params, gradient)
    after, _ = loss_and_gradient(stepped)
    assert after < before

    for path, leaf in flax.traverse_util.flatten_dict(gradient, sep="/").items():
        assert np.isfinite(leaf).all()
        assert path.endswith("key_bias") or np.abs(leaf).max() > 1e-6, path


def test_the_command_classifies_pictures_and_draws_their_attention(tmp_path, capsys):
    family = imported("beit")
    np.savez(tmp_path / "in.npz", images=family.outputs["images"])
    words = ["classify", "--workdir", str(family.workdir), "--images", str(tmp_path / "in.npz")]
    assert main([*words, "--attention", str(tmp_path / "a.png")]) == 0

    printed = [int(line) for line in capsys.readouterr().out.split()]
    assert printed == family.outputs["logits"].argmax(axis=1).tolist()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_resizes_files_as_the_processor_does(tmp_path, capsys):
    """The processor of this model enlarges 6 pixels to 9, and cuts out 8, all by Pillow."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    family = imported("dinov2")
    (tmp_path / "photos").mkdir()
    resized = []
    for number, pixels in enumerate(family.outputs["images"]):
        small = image.fromarray(pixels[:6, :6])
        small.save(tmp_path / "photos" / f"{number}.png")
        enlarged = np.asarray(small.resize((9, 9), image.Resampling.BICUBIC))
        resized.append(enlarged[:8, :8])

    words = ["classify", "--workdir", str(family.workdir), "--images", str(tmp_path / "photos")]
    assert main([*words, "--probabilities"]) == 0

    printed = [float(line.split()[0]) for line in capsys.readouterr().out.splitlines()]
    classifier = ImageClassifier.load(family.workdir)
    expected = classifier.probabilities(np.stack(resized)).max(axis=1)
    np.testing.assert_allclose(printed, expected, atol=1e-4)


def test_a_model_of_windows_has_no_maps_of_attention(tmp_path, capsys):
    family = imported("swin")
    np.savez(tmp_path / "in.npz", images=family.outputs["images"])
    words = ["classify", "--workdir", str(family.workdir), "--images", str(tmp_path / "in.npz")]
    assert main([*words, "--attention", str(tmp_path / "a.png")]) == 2
    assert "in all layers, such as vit: got model.architecture=swin" in capsys.readouterr().err

    assert main(words) == 0
    printed = [int(line) for line in capsys.readouterr().out.split()]
    assert printed == family.outputs["logits"].argmax(axis=1).tolist()


def test_a_model_without_classes_does_not_classify():
    family = imported("dinov2_smaller")
    classifier = ImageClassifier.load(family.workdir)
    with pytest.raises(UserError, match=r"expected a model with classes, got model\.num_classes=0"):
        classifier.probabilities(family.outputs["images"])


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(["swin_wide"], nightly=NAMES))
def test_a_classifier_is_fine_tuned_on_every_mesh(name, tmp_path):
    family = imported(name)
    section = family.trained.config.model
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, *section.image_shape)).astype(np.uint8)
    np.savez(tmp_path / "train.npz", images=images, labels=np.arange(8) % 2)
    split = str(tmp_path / "train.npz")
    config = Config(
        model=dataclasses.replace(section, num_classes=2),
        data=ImagesConfig(train=split, valid=split, rows=8),
        training=TrainingConfig(
            init_from=str(family.workdir),
            steps=1,
            learning_rate=1e-3,
            eval_every=1,
            checkpoint_every=1,
        ),
    )

    def train_on(mesh, run):
        state = train(dataclasses.replace(config, mesh=mesh), run)
        return jax.device_get(state.params)

    params = train_on(MeshConfig(data=2, fsdp=2, tensor=2), tmp_path / "run")
    same = train_on(MeshConfig(data=8), tmp_path / "other")
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(same), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)

    difference = np.abs(params["patches"] - family.trained.params["patches"]).max()
    assert 0 < difference < 1.1e-3
    assert params["classes"].shape == (section.pooled_size, 2)

    export_model("safetensors", tmp_path / "run", tmp_path / "out")
    exported = json.loads((tmp_path / "out" / "config.json").read_text())
    assert exported["architectures"][0].endswith("ForImageClassification")


def test_the_features_of_the_page(tmp_path, monkeypatch):
    family = imported("dinov2_smaller")
    shutil.copytree(family.workdir, tmp_path / "runs" / "dinov2")
    monkeypatch.chdir(tmp_path)

    found = pages.execute("vision.md", "DeiT, BEiT and DINOv2", images=family.outputs["images"])

    assert relative_difference(found["tokens"], family.outputs["features"]) < 1e-5
    patches = family.outputs["features"][:, 1:].mean(axis=1)
    expected = np.concatenate([family.outputs["pooled"], patches], axis=1)
    assert relative_difference(found["pooled"], expected) < 1e-5


def changed_model(name, folder, tensors=None, without=(), **fields):
    """Writes a model of the fixtures with other fields, further tensors, or fewer."""
    write_model(name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))

    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    kept = {tensor: array for tensor, array in arrays.items() if tensor not in without}
    safetensors.numpy.save_file({**kept, **(tensors or {})}, folder / "model.safetensors")
    return folder


POSITIONS = "use_absolute_position_embeddings"
REFUSED = [
    ("beit", {POSITIONS: True}, f"one of {POSITIONS}, .* to be true: got True, True, False"),
    ("beit", {"use_relative_position_bias": False}, "to be true: got False, False, False"),
    ("beit", {"image_size": [8, 12]}, "expected image_size to be one number.*: got 8 and 12"),
    ("beit", {"patch_size": [2, 2]}, r"expected patch_size to be a whole .*: got \[2, 2\]"),
    ("beit", {"use_mean_pooling": False}, "expected an array layernorm.weight of shape"),
    (
        "beit",
        {"architectures": ["BeitForSemanticSegmentation"]},
        "a head that jaxformer has, ForImageClassification: got BeitForSemanticSegmentation",
    ),
    ("dinov2", {"image_size": [8, 12]}, "expected image_size to be one number.*: got 8 and 12"),
    ("dinov2", {"mlp_ratio": 2.5}, "expected mlp_ratio to be a whole number.*: got 2.5"),
    ("dinov2", {"num_register_tokens": 4}, "does not know num_register_tokens=4"),
    ("dinov2", {"qkv_bias": False}, "no place for .*attention.key.bias and"),
    ("swin", {"num_heads": [1, 2, 2]}, r"num_heads to double .*, \[1, 2, 4\]: got \[1, 2, 2\]"),
    ("swin", {"num_heads": [1, 2]}, r"to double from stage to stage, \[1, 2, 4\]: got \[1, 2\]"),
    ("swin", {"depths": [2, 3, 2]}, "model.depths must be even numbers of blocks, .*: got '2 3 2'"),
    ("swin", {"depths": "2 2"}, "expected depths to be whole numbers, .*: got '2 2'"),
    ("swin", {"window_size": 5}, "window_size=5 must divide .*: got 16 x 16 in stage 1"),
    ("swin", {"image_size": 24}, "window_size=4 must divide .*: got 6 x 6 in stage 3"),
    ("swin", {"image_size": [16, 20]}, "window_size=4 must divide .*: got 8 x 10 in stage 2"),
    ("swin", {"mlp_ratio": 2.3}, "mlp_ratio times embed_dim=4 to be a whole number: got 9.2"),
    ("swin", {"qkv_bias": False}, "expected qkv_bias to be True: got False"),
    ("swin", {"use_absolute_embeddings": True}, "use_absolute_embeddings to be False: got True"),
    ("swin", {"model_type": "swinv2"}, "expected model_type to be .* or .*: got 'swinv2'"),
    ("vit_without_biases", {"qkv_bias": 1}, "expected qkv_bias to be true or false: got 1"),
]


@pytest.mark.parametrize(("name", "fields", "message"), REFUSED)
def test_other_models_are_refused_by_name(name, fields, message, tmp_path):
    folder = changed_model(name, tmp_path / "model", **fields)
    with pytest.raises(UserError, match=message):
        import_huggingface(folder, tmp_path / "run")


def test_a_vit_has_features_without_a_classifier_and_no_pooler(tmp_path):
    heads = {"without": ("classifier.weight", "classifier.bias"), "architectures": ["ViTModel"]}
    folder = changed_model("vit_without_biases", tmp_path / "model", **heads)
    import_huggingface(folder, tmp_path / "run")
    section = TrainedModel.load(tmp_path / "run").config.model
    assert section.num_classes == 0

    pooler = {"pooler.dense.weight": np.ones((16, 16)), "pooler.dense.bias": np.ones(16)}
    folder = changed_model("vit_without_biases", tmp_path / "pooled", tensors=pooler, **heads)
    with pytest.raises(UserError, match=r"has no place for pooler\.dense\.bias and 1 more"):
        import_huggingface(folder, tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("beit", "beit.encoder.layer.0.attention.attention.{}"),
        ("swin", "swin.encoder.layers.0.blocks.0.attention.self.{}"),
    ],
)
def test_indices_of_old_files_are_ignored(name, tensor, tmp_path):
    owner = "relative_position_bias." if name == "beit" else ""
    index = {tensor.format(f"{owner}relative_position_index"): np.ones((16, 16), np.int64)}
    folder = changed_model(name, tmp_path / "old", tensors=index)
    import_huggingface(folder, tmp_path / "run")

    found = TrainedModel.load(tmp_path / "run").params
    jax.tree.map(np.testing.assert_array_equal, found, imported(name).trained.params)


def test_a_classifier_without_its_head_is_refused(tmp_path):
    heads = ("classifier.weight", "classifier.bias")
    folder = changed_model("beit", tmp_path / "model", without=heads)
    with pytest.raises(UserError, match=r"expected classifier\.weight, the head ForImageClassi"):
        import_huggingface(folder, tmp_path / "run")


def test_the_rate_of_dropped_layers_is_named(tmp_path):
    folder = changed_model("beit", tmp_path / "model", drop_path_rate=0.2)
    summary = import_huggingface(folder, tmp_path / "run")
    assert summary.splitlines()[1].endswith("as in config.json, but not drop_path_rate=0.2")
