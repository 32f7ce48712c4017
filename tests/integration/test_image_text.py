"""Training on pictures with texts: resumed, on meshes, fine-tuned, refused; and the glyphs."""

import math
import unicodedata

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

from jaxformer import (
    CLIPConfig,
    Config,
    ImageTextConfig,
    ImageTextMatcher,
    TrainingConfig,
    load_config,
    train,
)
from jaxformer.data.glyphs import SIDE, held_out_pairs, is_held_out, known_glyphs
from jaxformer.data.image_texts import read_image_texts
from jaxformer.data.picture_files import PictureForm
from jaxformer.errors import UserError
from jaxformer.tasks.image_text.image_text_task import limit_log_scale, retrieval

from ..runs import changed, reports
from .equal_runs import check_other_mesh, check_resumed

# The channels of a color.
COLORS = {
    "red": [0],
    "green": [1],
    "blue": [2],
    "yellow": [0, 1],
    "pink": [0, 2],
    "white": [0, 1, 2],
}


def pairs(seed, count):
    """Lines of six colors on noise, with their names."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 60, (count, 6, 6, 3))
    texts = []
    for number, image in enumerate(images):
        color = list(COLORS)[number % 6]
        image[rng.integers(0, 6), :, COLORS[color]] += 180
        texts.append(f"a {color} line")
    return {"images": images.astype(np.uint8), "texts": np.array(texts)}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    np.savez(folder / "train.npz", **pairs(0, 90))
    np.savez(folder / "valid.npz", **pairs(1, 30))
    return Config(
        model=CLIPConfig(
            vocab_size=280,
            d_model=16,
            d_ff=32,
            num_heads=2,
            num_layers=1,
            max_length=16,
            height=6,
            width=6,
            patch_size=2,
            vision_d_model=16,
            vision_d_ff=32,
            vision_num_heads=2,
            vision_num_layers=1,
            embedding_dim=8,
            dropout_rate=0.05,
        ),
        data=ImageTextConfig(
            train=f"{folder}/train.npz",
            valid=f"{folder}/valid.npz",
            rows=20,
            shift=0.5,
        ),
        training=TrainingConfig(
            steps=120,
            warmup_steps=10,
            learning_rate=5e-3,
            log_every=40,
            eval_every=120,
            checkpoint_every=40,
            label_smoothing=0.0,
        ),
    )


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("bars") / "run"
    train(config, workdir)
    return workdir


def test_it_learns_to_match_and_reports_retrieval(run, config):
    last = reports(run)[-1]
    assert last["image_to_text"] > 0.8  # chance is one sixth
    assert last["text_to_image"] > 0.8

    matcher = ImageTextMatcher.load(run)
    images, texts = read_image_texts("files", config.data.valid)
    found = retrieval(matcher, images, texts)
    assert found["image_to_text"] == pytest.approx(last["image_to_text"])
    assert found["text_to_image"] == pytest.approx(last["text_to_image"])


def test_it_resumes_exactly_and_is_the_same_on_every_mesh(run, config, tmp_path):
    """Eight devices pad batches of 20 rows with 4 that must not count; four have none."""
    check_resumed(config, run, tmp_path, cut=50)

    found, expected = check_other_mesh(config, run, tmp_path)
    assert found["accuracy"] == pytest.approx(expected["accuracy"], rel=1e-2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"label_smoothing": 0.1}}, "training.label_smoothing is for classes"),
        ({"training": {"gradient_accumulation": 2}}, "training.gradient_accumulation must be 1"),
        ({"model": {"height": 8}}, r"must be \(6, 6, 3\), as in the pictures of"),
        ({"model": {"max_length": 4}}, r"texts:1: expected at most 4 tokens"),
        ({"data": {"train": ""}}, "data.train: expected pictures with texts, got none"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message, config, tmp_path):
    with pytest.raises(UserError, match=message):
        train(changed(config, **changes), tmp_path / "run")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((2, 6, 6, 3), np.uint8)}, "and texts, strings"),
        ({"texts": np.array([1, 2])}, r"expected texts, strings \[2\], got int64"),
        ({"texts": np.array(["a"])}, r"expected texts, strings \[2\], got <U1 \[1\]"),
        ({"texts": np.array(["a", " "])}, "expected a text for each picture, got none for 1"),
        ({"images": np.zeros((0, 6, 6, 3), np.uint8), "texts": np.array([], str)}, "got none"),
    ],
)
def test_files_that_are_not_pairs_are_refused(arrays, message, tmp_path):
    path = tmp_path / "pairs.npz"
    np.savez(path, **{"images": np.zeros((2, 6, 6, 3), np.uint8), **arrays})
    with pytest.raises(UserError, match=message):
        read_image_texts("files", str(path))


def test_the_scale_stays_below_100_and_can_fall_again():
    limit = math.log(100)
    value_and_gradient = jax.jit(
        jax.vmap(jax.value_and_grad(lambda x, sign: sign * limit_log_scale(x)))
    )
    scales = jnp.array([1.0, 1.0, limit + 0.1, limit + 0.1])
    signs = jnp.array([1.0, -1.0, 1.0, -1.0])

    values, gradients = value_and_gradient(scales, signs)

    np.testing.assert_allclose(values, np.array([1.0, -1.0, limit, -limit]), rtol=1e-6)
    # A loss that grows with the scale makes it smaller; one that falls cannot make it larger.
    np.testing.assert_array_equal(gradients, [1.0, -1.0, 1.0, 0.0])


def test_held_out_glyphs_combine_a_known_letter_and_a_known_accent():
    kept = [glyph for glyph in known_glyphs() if not is_held_out(glyph)]
    held_out = [glyph for glyph in known_glyphs() if is_held_out(glyph)]
    assert len(held_out) >= 80

    for glyph in held_out:
        assert unicodedata.lookup(glyph.name) == glyph.character
        # Neither the capital nor the small letter has this accent in training.
        assert not [
            each for each in kept if (each.letter, each.accent) == (glyph.letter, glyph.accent)
        ]
        assert len({each.accent for each in kept if each.letter == glyph.letter}) >= 3
        assert len({each.letter for each in kept if each.accent == glyph.accent}) >= 3
    assert len(held_out_pairs()) == len({(glyph.letter, glyph.accent) for glyph in held_out})


def test_glyphs_are_within_their_pictures():
    images, texts = read_image_texts("glyphs", "test")
    assert images.shape == (len(texts), SIDE, SIDE, 1)
    for edge in (images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]):
        assert not edge.any()

    with pytest.raises(UserError, match="the glyphs have the splits train, test, all: got 'valid'"):
        read_image_texts("glyphs", "valid")


@pytest.mark.nightly
def test_letters_and_accents_that_training_never_saw_together_are_named(tmp_path):
    """The figures of ``configs/glyphs.py``, here above ten times chance with a margin of four."""
    train(load_config("glyphs"), tmp_path / "run")

    chance = 1 / len({glyph.name for glyph in known_glyphs() if is_held_out(glyph)})
    last = reports(tmp_path / "run")[-1]
    assert last["image_to_text"] > 40 * chance
    assert last["text_to_image"] > 40 * chance


FORM = PictureForm(height=6, width=8, channels=3)


@pytest.fixture
def folder(tmp_path):
    """Two pictures of other sizes, one of them with two texts."""
    (tmp_path / "more").mkdir()
    for name, size in (("a.png", (12, 16)), ("more/b.png", (6, 8))):
        pixels = np.full((*size, 3), 7 * len(name), np.uint8)
        PIL.Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "captions.txt").write_text("a.png\ta cat\nmore/b.png\ta dog\na.png\tan animal\n")
    return tmp_path


def test_a_folder_has_a_text_for_each_line_of_its_captions(folder):
    images, texts = read_image_texts("files", str(folder), FORM)

    assert texts == ["a cat", "a dog", "an animal"]
    assert images.shape == (3, 6, 8, 3)
    assert images[:, 0, 0, 0].tolist() == [35, 70, 35]


@pytest.mark.parametrize(
    "line", ["a.png a cat", "no.png\ta cat", "../outside.png\ta cat", "\ta cat"]
)
def test_a_line_without_a_picture_of_the_folder_is_refused(line, folder):
    (folder.parent / "outside.png").write_bytes((folder / "a.png").read_bytes())
    (folder / "captions.txt").write_text(f"a.png\ta cat\n{line}\n")

    with pytest.raises(UserError, match=r"captions\.txt:2: expected a file in this folder, a tab"):
        read_image_texts("files", str(folder), FORM)


def test_a_folder_needs_the_size_of_a_model(folder):
    with pytest.raises(UserError, match=r"expected an \.npz file here, got a folder"):
        read_image_texts("files", str(folder))
