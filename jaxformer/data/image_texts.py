"""Pictures with texts that describe them, and their sources."""

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import UInt8

from jaxformer.data import image_text_sources
from jaxformer.data.corpus import DataSection
from jaxformer.data.images import Augmentation
from jaxformer.data.picture_files import PictureForm
from jaxformer.errors import UserError
from jaxformer.fields import check_one_of, check_values, setting
from jaxformer.registry import find_entries


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageTextPairs(Augmentation, DataSection):
    """Pairs of a picture and its text: the base of sections that name a source of them.

    Attributes:
      source: "files" reads ``.npz`` files with the arrays ``images``, uint8, [N, height, width,
        channels] or [N, height, width], and ``texts``, of strings, or folders of PNG and JPEG files
        with a ``captions.txt``, whose lines are a file, a tab and a text; "glyphs" draws Latin
        letters in the fonts of matplotlib, whose texts are their names in Unicode;
        "handwritten_numbers" has the numbers from 0 to 999 in English, and their pictures: digits
        of scikit-learn, three side by side.
      train: Training split: a file, a folder, or the name of a split. "glyphs" has "train", "test",
        with pairs of a letter and an accent that "train" lacks, and "all"; "handwritten_numbers"
        has "train" and "test", with other digits and other numbers.
      valid: Validation split, in the same form.
      tokenizer: As in :class:`~jaxformer.data.corpus.DataConfig`.
      rows: Rows of a global batch.
    """

    source: str = "files"
    train: str = setting("", may_change=True)
    valid: str = setting("", may_change=True)
    rows: int = setting(128, "positive")

    def __post_init__(self) -> None:
        check_values(self, "data")
        check_one_of("data.source", self.source, known_image_texts())
        self.check_paths("train", "valid", "tokenizer")

    def check_named(self) -> None:
        for name in ("train", "valid"):
            if not getattr(self, name):
                raise UserError(
                    f"data.{name}: expected pictures with texts, got none; give "
                    f"--config.data.{name}=FILE.npz, with the arrays images and texts"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageTextConfig(ImageTextPairs):
    """Pictures with texts, to train the encoders of both.

    Attributes:
      corpus: "image_text"; selects the kind of the experiment.
      rows: Pairs of a global batch. Each picture is compared with all texts of its batch.
    """

    corpus: Literal["image_text"] = "image_text"
    length_field = None

    @property
    def batch(self) -> tuple[str, str]:
        return f"{self.rows:,} pairs", "data.rows"


class ImageTexts(NamedTuple):
    """Pictures, all of one size, and a text for each."""

    images: UInt8[np.ndarray, "N Y X C"]
    texts: list[str]


class ImageTextSource(NamedTuple):
    """A source of pictures with texts.

    Attributes:
      name: The value of ``data.source`` that selects it.
      place: Number that sorts the sources in messages.
      read: Returns the pairs of a split, given its name, and the form of the pictures that a model
        takes, or None; a folder of files needs it, all else ignores it.
    """

    name: str
    place: int
    read: Callable[[str, PictureForm | None], ImageTexts]


def known_image_texts() -> dict[str, ImageTextSource]:
    """Returns all sources of pictures with texts by name."""
    return find_entries(image_text_sources, ImageTextSource)


def read_image_texts(source: str, split: str, form: PictureForm | None = None) -> ImageTexts:
    """Reads a split of a source, given its name; pictures of a folder are converted to ``form``.

    Raises:
      UserError: There is no such split, it has no pairs, or a text is blank.
    """
    found = known_image_texts()[source].read(split, form)
    if not found.texts:
        raise UserError(f"{split}: expected pictures with texts, got none")

    for number, text in enumerate(found.texts):
        if not text.strip():
            raise UserError(f"{split}: expected a text for each picture, got none for {number}")
    return found
