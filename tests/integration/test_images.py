"""A classifier of pictures, from files to the command; resumed, on meshes and fine-tuned."""

import shutil

import jax
import numpy as np
import pytest

from jaxformer import Config, ImageClassifier, ImagesConfig, TrainingConfig, ViTConfig, every, train
from jaxformer.cli import main
from jaxformer.data.images import read_images, read_npz
from jaxformer.errors import UserError
from jaxformer.inference.conversions import quantize
from jaxformer.inference.weights import load_model
from jaxformer.memory import step_memory

from ..runs import changed, reports
from . import pages


def pictures(seed, count):
    """Bars on noise: the class is their direction."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 90, (count, 6, 8))
    labels = np.arange(count) % 2
    for image, label, place in zip(images, labels, rng.integers(1, 5, count), strict=True):
        (image if label else image.T)[place] += 150
    return {"images": images.astype(np.uint8), "labels": labels}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    np.savez(folder / "train.npz", **pictures(0, 90))
    np.savez(folder / "valid.npz", **pictures(1, 30))
    return Config(
        model=ViTConfig(
            **{"height": 6, "width": 8, "channels": 1, "patch_size": 2, "num_classes": 2},
            **{"d_model": 16, "d_ff": 32, "num_heads": 2, "num_layers": 2, "dropout_rate": 0.1},
        ),
        data=ImagesConfig(
            **{"train": f"{folder}/train.npz", "valid": f"{folder}/valid.npz[:90%]"},
            **{"rows": 20, "shift": 0.5, "rotation": 5.0},
        ),
        training=TrainingConfig(
            **{"steps": 80, "warmup_steps": 10, "learning_rate": 5e-3, "log_every": 40},
            **{"eval_every": 80, "checkpoint_every": 40, "label_smoothing": 0.1},
        ),
    )


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("bars") / "run"
    train(config, workdir)
    return workdir


def test_it_learns_directions_and_the_command_classifies(run, config, capsys, tmp_path):
    assert reports(run)[-1]["accuracy"] == 1.0
    assert not (run / "tokenizer.model").exists()
    images, labels = read_images(config.data, config.data.valid)
    assert len(labels) == 27
    np.savez(tmp_path / "in.npz", images=images, labels=labels)
    words = ["classify", "--workdir", str(run), "--images", str(tmp_path / "in.npz")]
    assert main([*words, "--attention", str(tmp_path / "a.png")]) == 0
    out, err = capsys.readouterr()
    assert [int(line) for line in out.split()] == labels.tolist()
    assert "accuracy 100.00%, 27 of 27" in err
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    quantize(run, tmp_path / "int8")
    given = ImageClassifier.load(run)
    found = ImageClassifier.load(tmp_path / "int8").probabilities(images)
    np.testing.assert_allclose(found, given.probabilities(images), atol=0.05)
    weights = given.attention(images[:3])
    assert weights.shape == (3, 2, 2, 13, 13)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    export = ["export", "safetensors", "--workdir", str(run)]
    copy = shutil.copytree(run, tmp_path / "copy")
    assert main(["average", "--workdir", str(copy), "--last", "2"]) == 0
    assert main([*export, "--output", str(tmp_path / "out")]) == 0
    assert main(["export", "stablehlo", *export[2:], "--output", str(tmp_path / "no")]) == 2
    assert "expected a model that translates text, got a classifier of p" in capsys.readouterr().err
    assert load_model(copy)[0].config == config.model


def test_it_resumes_exactly_and_is_the_same_on_one_device(run, config, tmp_path):
    with pytest.raises(ZeroDivisionError):
        train(config, tmp_path / "cut", hooks=[every(50, lambda *_: 1 / 0)])
    resumed, whole = train(config, tmp_path / "cut"), load_model(run)[1]
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole)
    mesh = {"data": 2, "fsdp": 2, "tensor": 2}  # instead of data=8
    train(changed(config, mesh=mesh), tmp_path / "mesh")
    (first, *_), (second, *_) = reports(run), reports(tmp_path / "mesh")
    assert first["step"] == second["step"] == 40
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-3)


def test_memory_and_fine_tuning(run, config, tmp_path):
    memory = step_memory(config, jax.devices()[:1])
    size = sum(leaf.size for leaf in jax.tree.leaves(load_model(run)[1]))
    assert memory.state == 4 * (3 * size + 6) + 20 * (6 * 8 + 5)
    one = {"steps": 1, "init_from": str(run), "schedule": "constant"}
    tuned = train(changed(config, model={"num_classes": 3}, training=one), tmp_path / "tuned")
    before = load_model(run)[1]
    assert np.abs(np.asarray(tuned.params["patches"]) - before["patches"]).max() < 1e-3
    assert tuned.params["classes"].shape == (16, 3)


def test_the_page_runs_as_printed(run, config, capsys, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "runs" / "pictures")
    np.savez(tmp_path / "pictures.npz", **pictures(2, 20))
    monkeypatch.chdir(tmp_path)
    names = pages.execute("vision.md")
    assert capsys.readouterr().out == "1.0\n"
    assert names["weights"].shape == (8, 2, 2, 13, 13)


def test_mistakes_are_refused_in_one_line(run, config, tmp_path):
    good = pictures(0, 4)
    for name, changes, message in (
        ("classes", {"labels": [0, 1, 2, 0]}, "below model.num_classes=2, got 0 to 2"),
        ("below", {"labels": [0, 1, -1, 0]}, "from 0 and below model.num_classes=2, got -1 to 1"),
        (
            "one",
            {"labels": [1] * 4},
            r"one\.npz: expected .* at least two classes .* got 4 ",
        ),
        ("floats", {"images": np.zeros((4, 6, 8))}, r"expected images, uint8 \[N.* got float64"),
        ("size", {"images": np.zeros((4, 8, 6), np.uint8)}, r"must be \(8, 6, 1\), as in the"),
        ("count", {"labels": [0, 1]}, r"expected labels, integers \[4\], got int64 \[2\]"),
        ("object", {"labels": np.array([0, None] * 2)}, "expected an .npz file of arrays: Object"),
    ):
        np.savez(tmp_path / f"{name}.npz", **good | changes)
        with pytest.raises(UserError, match=message):
            train(changed(config, data={"train": f"{tmp_path}/{name}.npz"}), tmp_path / "run")
    (tmp_path / "text.npz").write_text("no arrays")
    np.savez(tmp_path / "other.npz", images=good["images"], x=np.zeros(4))
    needed = r"images, uint8 \[N, height, width, channels\]"
    with pytest.raises(UserError, match=rf"{needed} and labels, integers \[N\]; got images, x"):
        read_npz(f"{tmp_path}/other.npz")
    np.savez(tmp_path / "none.npz")
    with pytest.raises(UserError, match=rf"expected the arrays {needed}; got none"):
        read_npz(f"{tmp_path}/none.npz", needs_labels=False)
    (tmp_path / "none.npz").unlink()
    for split, message in (
        (f"{tmp_path}/text.npz", "text.npz: expected an .npz file of arrays: it is not a z"),
        (f"{tmp_path}/none.npz", "none.npz"),
        (f"{config.data.train}[90%:20%]", r"\[90%:20%\]: expected pictures, got none"),
    ):
        with pytest.raises(UserError, match=message):
            read_images(config.data, split)
    for share in ("5%", "0.05"):
        with pytest.raises(UserError, match=rf'with data.valid="a\.npz\[80%:\]": got {share}'):
            ImagesConfig(train="a.npz", valid=share)
    with pytest.raises(UserError, match=r"expected pictures, uint8 \[N, 6, 8, 1\], got uint8"):
        ImageClassifier.load(run).probabilities(np.zeros((1, 8, 6, 1), np.uint8))


def test_digits_are_split_as_scikit_learn_does():
    datasets = pytest.importorskip("sklearn.datasets", reason="jaxformer[vision] is not installed")
    from sklearn.model_selection import train_test_split

    x, y = datasets.load_digits(return_X_y=True)
    expected = train_test_split(x, y, random_state=0)
    data = ImagesConfig(corpus="digits")
    for pixels, labels, split in ((*expected[::2], "train"), (*expected[1::2], "test")):
        found = read_images(data, split)
        np.testing.assert_array_equal(np.rint(found.images.reshape(-1, 64) * (16 / 255)), pixels)
        np.testing.assert_array_equal(found.labels, labels)
    halves = [read_images(data, split).labels for split in ("all[:50%]", "all[50%:]")]
    np.testing.assert_array_equal(halves[0], y[: len(y) // 2])
    np.testing.assert_array_equal(np.concatenate(halves), y)
