"""A classifier of pictures, from files to the command; resumed, on meshes and fine-tuned."""

import shutil

import jax
import numpy as np
import PIL.Image
import pytest

from jaxformer import (
    Config,
    ImageClassifier,
    ImagesConfig,
    TrainingConfig,
    ViTConfig,
    load_config,
    train,
)
from jaxformer.cli import main
from jaxformer.data.images import read_images, read_npz
from jaxformer.errors import UserError
from jaxformer.inference.conversions import quantize
from jaxformer.inference.weights import load_model
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.memory import step_memory

from ..runs import changed, reports
from . import pages
from .equal_runs import check_other_mesh, check_resumed


def pictures(seed, count):
    """Bars on noise: the class is their direction."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 90, (count, 6, 8))
    labels = np.arange(count) % 2
    places = rng.integers(1, 5, count)
    for image, label, place in zip(images, labels, places, strict=True):
        lines = image if label else image.T
        lines[place] += 150
    return {"images": images.astype(np.uint8), "labels": labels}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    np.savez(folder / "train.npz", **pictures(0, 90))
    np.savez(folder / "valid.npz", **pictures(1, 30))
    return Config(
        model=ViTConfig(
            height=6,
            width=8,
            channels=1,
            patch_size=2,
            num_classes=2,
            d_model=16,
            d_ff=32,
            num_heads=2,
            num_layers=2,
            dropout_rate=0.1,
        ),
        data=ImagesConfig(
            train=f"{folder}/train.npz",
            valid=f"{folder}/valid.npz[:90%]",
            rows=20,
            shift=0.5,
            rotation=5.0,
        ),
        training=TrainingConfig(
            steps=80,
            warmup_steps=10,
            learning_rate=5e-3,
            log_every=40,
            eval_every=80,
            checkpoint_every=40,
            label_smoothing=0.1,
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

    pictures_of_split = tmp_path / "in.npz"
    attention = tmp_path / "a.png"
    np.savez(pictures_of_split, images=images, labels=labels)
    words = ["classify", "--workdir", str(run), "--images", str(pictures_of_split)]
    assert main([*words, "--attention", str(attention)]) == 0

    out, err = capsys.readouterr()
    assert [int(line) for line in out.split()] == labels.tolist()
    assert "accuracy 100.00%, 27 of 27" in err
    assert attention.read_bytes().startswith(b"\x89PNG")


def save_files(folder, arrays, names):
    """Writes pictures as files of twice their size, in a folder for each class."""
    for number, (image, label) in enumerate(zip(*arrays.values(), strict=True)):
        path = folder / names[label] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(image).resize((16, 12)).save(path)


def test_folders_of_files_give_names_to_classes(config, capsys, tmp_path):
    """Files are resized; the names stay with the run, its int8 copy, exports and imports."""
    names = ["down the page", "to the right"]
    save_files(tmp_path / "train", pictures(0, 90), names)
    save_files(tmp_path / "valid", pictures(1, 30), names)
    folders = {"train": f"{tmp_path}/train", "valid": f"{tmp_path}/valid"}
    files = changed(config, data={"corpus": "folder", **folders})
    run = tmp_path / "run"
    train(files, run)
    assert reports(run)[-1]["accuracy"] == 1.0
    capsys.readouterr()

    quantize(run, tmp_path / "int8")
    export_model("safetensors", run, tmp_path / "out")
    import_huggingface(tmp_path / "out", tmp_path / "again")
    for workdir in (run, tmp_path / "int8", tmp_path / "again"):
        assert ImageClassifier.load(workdir).labels == names

        words = ["--workdir", str(workdir), "--images", folders["valid"], "--probabilities"]
        assert main(["classify", *words]) == 0
        out, err = capsys.readouterr()
        assert "accuracy 100.00%, 30 of 30" in err
        for line in out.splitlines():
            probability, name, path = line.split("\t")
            assert float(probability) > 0.5
            assert path.startswith(f"{tmp_path}/valid/{name}/")

    [one] = (tmp_path / "valid" / names[0]).glob("0.png")
    assert main(["classify", "--workdir", str(run), "--images", str(one)]) == 0
    assert capsys.readouterr().out == f"{names[0]}\t{one}\n"

    with pytest.raises(UserError, match=r"num_classes must be 2, .* down the page, to the"):
        train(changed(files, model={"num_classes": 3}), tmp_path / "other")


def test_it_has_an_int8_copy_and_attention(run, config, tmp_path):
    images, _ = read_images(config.data, config.data.valid)
    given = ImageClassifier.load(run)

    quantize(run, tmp_path / "int8")
    quantized = ImageClassifier.load(tmp_path / "int8")
    found = quantized.probabilities(images)
    np.testing.assert_allclose(found, given.probabilities(images), atol=0.05)

    weights = given.attention(images[:3])
    assert weights.shape == (3, 2, 2, 13, 13)  # 12 patches and the class
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_it_is_averaged_and_exported_except_to_formats_of_text(run, config, capsys, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    assert main(["average", "--workdir", str(copy), "--last", "2"]) == 0
    model, _ = load_model(copy)
    assert model.config == config.model

    workdir = ["--workdir", str(run)]
    assert main(["export", "safetensors", *workdir, "--output", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["export", "stablehlo", *workdir, "--output", str(tmp_path / "no")]) == 2
    assert "expected a model that translates text, got a classifier of p" in capsys.readouterr().err


def test_it_resumes_exactly_and_is_the_same_on_one_device(run, config, tmp_path):
    check_resumed(config, run, tmp_path, cut=50)
    check_other_mesh(config, run, tmp_path)


def test_memory_and_fine_tuning(run, config, tmp_path):
    _, before = load_model(run)
    leaves = jax.tree.leaves(before)
    size = sum(leaf.size for leaf in leaves)

    # Four bytes for each parameter and its two moments, and for six numbers. Each row of the batch
    # has its pixels, a label of four bytes, and whether it is real.
    memory = step_memory(config, jax.devices()[:1])
    of_state = 4 * (3 * size + 6)
    of_row = 6 * 8 + 5
    assert memory.state == of_state + 20 * of_row

    one = {"steps": 1, "init_from": str(run), "schedule": "constant"}
    three_classes = changed(config, model={"num_classes": 3}, training=one)
    tuned = train(three_classes, tmp_path / "tuned")
    moved = np.asarray(tuned.params["patches"]) - before["patches"]
    assert np.abs(moved).max() < 1e-3
    assert tuned.params["classes"].shape == (16, 3)


def test_the_page_runs_as_printed(run, config, capsys, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "runs" / "pictures")
    np.savez(tmp_path / "pictures.npz", **pictures(2, 20))
    monkeypatch.chdir(tmp_path)
    names = pages.execute("vision.md", "Pictures of your own")
    assert capsys.readouterr().out == "1.0\n"
    assert names["weights"].shape == (8, 2, 2, 13, 13)


PICTURES = "images, uint8 \\[N, height, width, channels\\]"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("classes", {"labels": [0, 1, 2, 0]}, "below model.num_classes=2, got 0 to 2"),
        ("below", {"labels": [0, 1, -1, 0]}, "from 0 and below model.num_classes=2, got -1 to 1"),
        ("one", {"labels": [1] * 4}, r"one\.npz: expected .* at least two classes .* got 4 "),
        ("floats", {"images": np.zeros((4, 6, 8))}, r"expected images, uint8 \[N.* got float64"),
        ("size", {"images": np.zeros((4, 8, 6), np.uint8)}, r"must be \(8, 6, 1\), as in the"),
        ("count", {"labels": [0, 1]}, r"expected labels, integers \[4\], got int64 \[2\]"),
        ("object", {"labels": np.array([0, None] * 2)}, "expected an .npz file of arrays: Object"),
    ],
)
def test_pictures_that_cannot_be_trained_are_refused(config, tmp_path, name, changes, message):
    path = tmp_path / f"{name}.npz"
    np.savez(path, **pictures(0, 4) | changes)
    with_pictures = changed(config, data={"train": str(path)})
    with pytest.raises(UserError, match=message):
        train(with_pictures, tmp_path / "run")


def test_files_that_hold_no_pictures_are_refused(config, tmp_path):
    other = tmp_path / "other.npz"
    np.savez(other, images=pictures(0, 4)["images"], x=np.zeros(4))
    with pytest.raises(UserError, match=rf"{PICTURES} and labels, integers \[N\]; got images, x"):
        read_npz(str(other))

    empty = tmp_path / "empty.npz"
    np.savez(empty)
    with pytest.raises(UserError, match=rf"expected the arrays {PICTURES}; got none"):
        read_npz(str(empty), needs_labels=False)

    (tmp_path / "text.npz").write_text("no arrays")
    for split, message in (
        (f"{tmp_path}/text.npz", "text.npz: expected an .npz file of arrays: it is not a z"),
        (f"{tmp_path}/missing.npz", "missing.npz"),
        (f"{config.data.train}[90%:20%]", r"\[90%:20%\]: expected pictures, got none"),
    ):
        with pytest.raises(UserError, match=message):
            read_images(config.data, split)


@pytest.mark.parametrize("share", ["5%", "0.05"])
def test_a_share_for_validation_is_a_split(share):
    with pytest.raises(UserError, match=rf'with data.valid="a\.npz\[80%:\]": got {share}'):
        ImagesConfig(train="a.npz", valid=share)


def test_a_classifier_refuses_pictures_of_another_size(run):
    classifier = ImageClassifier.load(run)
    turned = np.zeros((1, 8, 6, 1), np.uint8)
    with pytest.raises(UserError, match=r"expected pictures, uint8 \[N, 6, 8, 1\], got uint8"):
        classifier.probabilities(turned)


def test_digits_are_split_as_scikit_learn_does():
    datasets = pytest.importorskip("sklearn.datasets", reason="jaxformer[vision] is not installed")
    from sklearn.model_selection import train_test_split

    x, y = datasets.load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(x, y, random_state=0)
    data = ImagesConfig(corpus="digits")
    for split, pixels, labels in (
        ("train", train_x, train_y),
        ("test", test_x, test_y),
    ):
        found = read_images(data, split)
        rows = found.images.reshape(-1, 64)
        from_0_to_16 = np.rint(rows * (16 / 255))
        np.testing.assert_array_equal(from_0_to_16, pixels)
        np.testing.assert_array_equal(found.labels, labels)

    first = read_images(data, "all[:50%]").labels
    second = read_images(data, "all[50%:]").labels
    half = len(y) // 2
    np.testing.assert_array_equal(first, y[:half])
    both = np.concatenate([first, second])
    np.testing.assert_array_equal(both, y)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["digits", "digits:convit", "digits:swin"])
def test_the_digits_are_learned(name, tmp_path):
    """The lowest accuracy of five seeds of these models, in ``docs/vision.md``, is 98.67 %."""
    pytest.importorskip("sklearn.datasets", reason="jaxformer[vision] is not installed")
    train(load_config(name), tmp_path / "run")
    assert reports(tmp_path / "run")[-1]["accuracy"] > 0.985
