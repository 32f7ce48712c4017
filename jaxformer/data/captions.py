"""Pictures with texts that a model learns to write."""

import dataclasses
from typing import Literal

from jaxformer.data.image_texts import ImageTextPairs
from jaxformer.fields import setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionsConfig(ImageTextPairs):
    """Pictures with texts, to train a model that writes the texts.

    Attributes:
      corpus: "captions"; selects the kind of the experiment.
      rows: Pictures of a global batch.
    """

    corpus: Literal["captions"] = "captions"
    rows: int = setting(64, "positive")
    length_field = None

    @property
    def batch(self) -> tuple[str, str]:
        return f"{self.rows:,} pictures", "data.rows"
