"""PNG and JPEG files: sizes, modes, orientations, and files that are no pictures."""

import io

import numpy as np
import pytest

from jaxformer.data.images import ImagesConfig, class_names, read_images
from jaxformer.data.picture_files import PictureForm, find_pictures, read_picture_files
from jaxformer.errors import UserError

Image = pytest.importorskip("PIL.Image")

RNG = np.random.default_rng(0)
COLORS = RNG.integers(0, 256, (6, 8, 3), np.uint8)
GRAY = COLORS[..., 0]
COLOR = PictureForm(6, 8, 3)


def save(folder, name, pixels, **options):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if hasattr(pixels, "save") else Image.fromarray(pixels)
    image.save(path, **options)
    return path


def read(path, form=COLOR):
    [pixels] = read_picture_files([path], form)
    return pixels


def test_pictures_of_the_models_size_keep_their_pixels(tmp_path):
    np.testing.assert_array_equal(read(save(tmp_path, "a.png", COLORS)), COLORS)
    gray = read(save(tmp_path, "b.png", GRAY), PictureForm(6, 8, 1))
    np.testing.assert_array_equal(gray[..., 0], GRAY)


def test_gray_pictures_have_three_equal_channels_for_a_model_of_colors(tmp_path):
    expected = np.repeat(GRAY[..., None], 3, axis=2)
    np.testing.assert_array_equal(read(save(tmp_path, "gray.png", GRAY)), expected)


def test_16_bits_are_rounded_and_not_cut_off(tmp_path):
    deep = GRAY.astype(np.uint16) * 257
    gray = read(save(tmp_path, "deep.png", deep), PictureForm(6, 8, 1))
    np.testing.assert_array_equal(gray[..., 0], GRAY)


def test_alpha_is_dropped_and_palettes_are_looked_up(tmp_path):
    alpha = np.concatenate([COLORS, np.zeros((6, 8, 1), np.uint8)], axis=2)
    np.testing.assert_array_equal(read(save(tmp_path, "alpha.png", alpha)), COLORS)

    two_colors = np.where(GRAY[..., None] > 99, [[[250, 10, 30]]], [[[0, 90, 200]]]).astype(
        np.uint8
    )
    palette = Image.fromarray(two_colors).quantize(2)
    np.testing.assert_array_equal(read(save(tmp_path, "palette.png", palette)), two_colors)


def test_the_orientation_that_a_camera_records_is_applied(tmp_path):
    """6: the right side of the picture was up, so that it is turned by 90 degrees."""
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save(tmp_path, "turned.png", COLORS, exif=exif)
    np.testing.assert_array_equal(read(path, PictureForm(8, 6, 3)), np.rot90(COLORS, -1))


def test_sizes_change_as_the_mean_of_neighbors(tmp_path):
    """Half the size of blocks of one color is exact; bilinear weights of 4 pixels are 1 3 3 1."""
    large = COLORS.repeat(32, axis=0).repeat(32, axis=1)
    found = read(save(tmp_path, "large.png", large), PictureForm(12, 16, 3))
    blocks = COLORS.repeat(2, axis=0).repeat(2, axis=1)
    assert np.abs(found.astype(int) - blocks).mean() < np.abs(blocks - blocks.mean()).mean() / 4

    row = np.array([[0, 80, 160, 240]], np.uint8)
    pixel = read(save(tmp_path, "row.png", row), PictureForm(1, 1, 1))
    assert pixel.item() == round((0 + 3 * 80 + 3 * 160 + 240) / 8)


def test_the_center_is_cut_out_after_the_shorter_side_is_resized(tmp_path):
    form = PictureForm(2, 2, 3, "bilinear", shortest_side=6)
    path = save(tmp_path, "wide.png", COLORS)
    np.testing.assert_array_equal(read(path, form), COLORS[2:4, 3:5])


def broken(folder):
    """Yields files that are no pictures, and what is wrong with each."""
    png = io.BytesIO()
    Image.fromarray(COLORS).save(png, "PNG")
    whole = png.getvalue()
    for name, content in {
        "empty.png": b"",
        "text.png": b"a picture",
        "half.png": whole[: len(whole) // 2],
        "gif.png": b"GIF89a" + bytes(30),
    }.items():
        path = folder / name
        path.write_bytes(content)
        yield path

    yield save(folder, "huge.png", Image.new("1", (40_000, 40_000)))


def test_files_that_are_no_pictures_are_named(tmp_path):
    for path in broken(tmp_path):
        with pytest.raises(UserError, match=rf"{path.name}: expected a PNG or JPEG file: "):
            read(path)
    with pytest.raises(UserError, match=r"channels must be 1 or 3 .*: got 4"):
        read(save(tmp_path, "a.png", COLORS), PictureForm(6, 8, 4))


@pytest.fixture
def folder(tmp_path):
    """Three classes, one of a JPEG in a folder of its own; hidden files and a text beside."""
    for number in range(4):
        save(tmp_path, f"train/cat/{number}.png", np.full((6, 8, 3), number, np.uint8))
        save(tmp_path, f"train/dog/{number}.PNG", np.full((6, 8, 3), 50 + number, np.uint8))
    save(tmp_path, "train/a bird/more/0.jpeg", np.full((6, 8, 3), 100, np.uint8))
    save(tmp_path, "train/.thumbnails/0.png", GRAY)
    save(tmp_path, "train/cat/.0.png", GRAY)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("cats")
    (tmp_path / "train" / "README").write_text("animals")

    save(tmp_path, "valid/dog/9.png", np.full((6, 8, 3), 59, np.uint8))
    return tmp_path


def test_a_folder_has_a_class_for_each_folder_in_it(folder):
    data = ImagesConfig(corpus="folder", train=f"{folder}/train", valid=f"{folder}/valid")
    assert class_names(data) == ("a bird", "cat", "dog")

    images, labels = read_images(data, data.train, COLOR)
    assert images.shape == (9, 6, 8, 3)
    values = images[:, 0, 0, 0] // 50  # of a cat 0, of a dog 1, of the bird 2
    np.testing.assert_array_equal(labels, np.array([1, 2, 0])[values])

    images, labels = read_images(data, data.valid, COLOR)
    assert (images[0, 0, 0, 0], labels.tolist()) == (59, [2])


def test_ranges_of_a_folder_have_all_pictures_once(folder):
    data = ImagesConfig(corpus="folder", train=f"{folder}/train", valid=f"{folder}/valid")
    parts = [read_images(data, f"{data.train}[{part}]", COLOR) for part in (":30%", "30%:")]
    whole = read_images(data, data.train, COLOR)
    for part, expected in zip(zip(*parts, strict=True), whole, strict=True):
        np.testing.assert_array_equal(np.concatenate(part), expected)


def test_what_is_no_folder_of_classes_is_refused(folder):
    data = ImagesConfig(corpus="folder", train=f"{folder}/train", valid=f"{folder}/valid")
    with pytest.raises(UserError, match="resized for a model; give its form"):
        read_images(data, data.train)

    save(folder, "valid/horse/0.png", GRAY)
    with pytest.raises(
        UserError, match=r"expected folders of the classes .* a bird, cat, dog: got h"
    ):
        read_images(data, data.valid, COLOR)

    (folder / "train" / "wolf").mkdir()
    with pytest.raises(UserError, match=r"wolf: expected \.png, \.jpg, \.jpeg files, got none"):
        read_images(data, data.train, COLOR)

    flat = ImagesConfig(corpus="folder", train=f"{folder}/train/dog", valid="none")
    with pytest.raises(UserError, match="dog: expected a folder with a folder of PNG and JPEG"):
        read_images(flat, flat.train, COLOR)
    with pytest.raises(UserError, match="none: expected a folder"):
        read_images(data, f"{folder}/none", COLOR)
    with pytest.raises(UserError, match=r"data.corpus must be one of 'images', 'folder', 'digits'"):
        ImagesConfig(corpus="folders")


def test_pictures_are_found_in_the_order_of_their_names(folder):
    found = find_pictures(folder / "train" / "cat")
    assert [path.name for path in found] == ["0.png", "1.png", "2.png", "3.png"]
