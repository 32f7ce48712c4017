"""Texts with pictures in them, to train a language model that reads both."""

import dataclasses
from typing import Literal

from jaxformer.data.corpus import DataSection
from jaxformer.data.image_texts import known_image_texts
from jaxformer.data.images import Augmentation
from jaxformer.errors import UserError
from jaxformer.fields import check_one_of, check_values, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class InterleavedConfig(Augmentation, DataSection):
    """Texts with several pictures in each, made of pairs of a picture and its text.

    Attributes:
      corpus: "interleaved"; selects the kind of the experiment.
      source: Source of the pairs, as in :class:`~jaxformer.data.image_texts.ImageTextConfig`.
      train: Training split: a file, or the name of a split.
      valid: Validation split, in the same form.
      end: Text after the text of a pair, before the end-of-text token.
      tokenizer: As in :class:`~jaxformer.data.corpus.DataConfig`.
      pictures: Number of pairs in a row; all but the last are examples for the last.
      length: Tokens of a row.
      rows: Rows of a global batch.
    """

    corpus: Literal["interleaved"] = "interleaved"
    source: str = "files"
    train: str = setting("", may_change=True)
    valid: str = setting("", may_change=True)
    end: str = "\n"
    pictures: int = setting(3, "positive")
    length: int = setting(128, "positive")
    rows: int = setting(32, "positive")
    length_field = "length"

    def __post_init__(self) -> None:
        check_values(self, "data")
        check_one_of("data.source", self.source, known_image_texts())
        self.check_paths("train", "valid", "tokenizer")

    @property
    def batch(self) -> tuple[str, str]:
        return f"{self.rows:,} rows of {self.pictures} pictures", "data.rows or data.pictures"

    def check_named(self) -> None:
        for name in ("train", "valid"):
            if not getattr(self, name):
                raise UserError(
                    f"data.{name}: expected pictures with texts, got none; give "
                    f"--config.data.{name}=FILE.npz, with the arrays images and texts"
                )
