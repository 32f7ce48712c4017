"""Pictures with texts that a model learns to write."""

import dataclasses
from typing import Literal

from jaxformer.data.image_texts import ImageTextConfig
from jaxformer.fields import setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionsConfig(ImageTextConfig):
    """Pictures with texts, to train a model that writes the texts.

    Attributes:
      corpus: "captions" reads files as "image_text" does; "handwritten_numbers" has the numbers
        from 0 to 999 in English, and their pictures: digits of scikit-learn, three side by side.
      train: Training split: a file, or the name of a split. "handwritten_numbers" has "train" and
        "test", with other digits and other numbers.
      valid: Validation split, in the same form.
      rows: Pictures of a global batch.
    """

    corpus: Literal["captions", "handwritten_numbers"] = "captions"
    rows: int = setting(64, "positive")

    @property
    def batch(self) -> tuple[str, str]:
        return f"{self.rows:,} pictures", "data.rows"
