"""Files of texts with labels, or without, as corpora of pairs."""

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Literal

from jaxformer.data.corpus import DataConfig
from jaxformer.data.text_files import find_file, fingerprint_files, read_file
from jaxformer.errors import UserError
from jaxformer.fields import check_fraction
from jaxformer.files import local_path

# The only target of texts without labels.
_NO_LABEL = "0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabeledConfig(DataConfig):
    """Source of texts, as :class:`~jaxformer.data.corpus.DataConfig` for sentence pairs.

    Attributes:
      corpus: "labeled": each line is a label, a space and a text. "masked": each line is a text,
        some of whose tokens are masked, to train an encoder for later classification.
      train: Training files, comma-separated.
      valid: Validation files.
      mask_rate: Fraction of the tokens that are masked: to be predicted for "masked", 0.15 in BERT;
        for "labeled" in training only.
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


class LabeledCorpus:
    """Corpus of files with a text on each line, after its label.

    Attributes:
      has_labels: Whether lines have labels.
    """

    target_symbols = True

    def __init__(self, has_labels: bool = True) -> None:
        self.has_labels = has_labels

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields the text and the label of each line.

        Raises:
          UserError: A file is missing, damaged or not UTF-8 text, or a line has no label.
        """
        for name in split.split(","):
            for number, line in enumerate(read_file(find_file(local_path(name))), 1):
                label, space, text = line.partition(" ")
                if not self.has_labels:
                    yield line, _NO_LABEL
                elif space and label:
                    yield text, label
                else:
                    raise UserError(
                        f"{name}:{number}: expected a label, a space and a text, got {line[:50]!r}"
                    )

    def place(self, split: str, number: int, side: int) -> str:
        """Returns file and line of a text; see :class:`~jaxformer.Corpus`."""
        for name in split.split(","):
            lines = sum(1 for _ in read_file(find_file(local_path(name))))
            if number < lines:
                return f"{name}:{number + 1}"
            number -= lines
        raise IndexError(number)

    def fingerprint(self, split: str) -> str:
        """Returns the SHA-256 of the files' uncompressed bytes."""
        files = fingerprint_files(find_file(local_path(name)) for name in split.split(","))
        return hashlib.sha256(f"labeled {self.has_labels} {files}".encode()).hexdigest()
