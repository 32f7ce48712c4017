"""Texts with pictures in them, to train a language model that reads both."""

import dataclasses
from typing import Literal

from jaxformer.data.image_texts import ImageTextPairs
from jaxformer.fields import setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class InterleavedConfig(ImageTextPairs):
    """Texts with several pictures in each, made of pairs of a picture and its text.

    Attributes:
      corpus: "interleaved"; selects the kind of the experiment.
      end: Text after the text of a pair, before the end-of-text token.
      pictures: Number of pairs in a row; all but the last are examples for the last.
      length: Tokens of a row.
    """

    corpus: Literal["interleaved"] = "interleaved"
    end: str = "\n"
    pictures: int = setting(3, "positive")
    length: int = setting(128, "positive")
    rows: int = setting(32, "positive")
    length_field = "length"

    @property
    def batch(self) -> tuple[str, str]:
        return f"{self.rows:,} rows of {self.pictures} pictures", "data.rows or data.pictures"
