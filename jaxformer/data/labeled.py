"""Files of texts, with or without labels, as corpora of pairs."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Literal

from jaxformer.data.corpus import DataConfig
from jaxformer.data.file_corpora import FileCorpus
from jaxformer.data.text_files import read_file
from jaxformer.errors import UserError
from jaxformer.fields import check_fraction


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabeledConfig(DataConfig):
    """Source of texts, as :class:`~jaxformer.data.corpus.DataConfig` for sentence pairs.

    Attributes:
      corpus: "labeled": each line is a label, a space and a text. "masked": each line is a text
        with some tokens masked, to pretrain an encoder for classification.
      train: Training files, comma-separated.
      valid: Validation files.
      mask_rate: Fraction of the tokens that are masked. For "masked", they are predicted, 0.15 in
        BERT; for "labeled", they are masked only in training.
    """

    corpus: Literal["labeled", "masked"] = "labeled"
    mask_rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self, "data", "mask_rate")
        if self.corpus == "masked" and not self.mask_rate:
            raise UserError("data.mask_rate must be above 0 with data.corpus=masked, such as 0.15")
        for name, expected in (("batching", "buckets"), ("pretokenizer", "none")):
            if (found := getattr(self, name)) != expected:
                raise UserError(f"data.{name} must be {expected} for single texts: got {found}")


class LabeledCorpus(FileCorpus):
    """Files with a text on each line, after its label if it ``has_labels``."""

    target_symbols = True

    def __init__(self, has_labels: bool = True) -> None:
        super().__init__()
        self.has_labels = has_labels
        self.kind = f"labeled {has_labels}"

    def rows(self, path: pathlib.Path) -> Iterator[tuple[str, str]]:
        for number, line in enumerate(read_file(path), 1):
            label, space, text = line.partition(" ")
            if not self.has_labels:
                yield line, "0"  # The only target of texts without labels.
            elif space and label:
                yield text, label
            else:
                raise UserError(
                    f"{path}:{number}: expected a label, a space and a text, got {line[:50]!r}"
                )
