"""Texts with or without labels: their files, and their batches."""

import dataclasses
import hashlib
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int32

from jaxformer.data.batch import Shape, TokenPair
from jaxformer.data.characters import unusual_kinds
from jaxformer.data.corpus import DataConfig
from jaxformer.data.file_corpora import FileCorpus, find_files
from jaxformer.data.text_files import fingerprint_files, read_file
from jaxformer.data.tokenizer import EOS, PAD, UNK
from jaxformer.errors import UserError
from jaxformer.fields import setting

# Id of the first label in a tokenizer: special tokens precede the labels.
FIRST_LABEL = UNK + 1
# The label of all texts without labels: a tokenizer that is learned from them has this symbol.
_NO_LABEL = "0"
_NO_CLASS = -1
# Signs that separate columns in other files: a label with one of them is probably half a line.
_OTHER_SEPARATORS = re.compile(r'[,;|"]')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabeledConfig(DataConfig):
    """Source of texts, as :class:`~jaxformer.data.corpus.DataConfig` for sentence pairs.

    Attributes:
      corpus: "labeled": each line is a label, a tab or a space, and a text. "masked": each line is
        a text with some tokens masked, to pretrain an encoder for classification.
      train: Training files, comma-separated.
      valid: Validation files.
      mask_rate: Fraction of the tokens that are masked. For "masked", they are predicted, 0.15 in
        BERT; for "labeled", they are masked only in training.
    """

    corpus: Literal["labeled", "masked"] = "labeled"
    mask_rate: float = setting(0.0, "fraction")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corpus == "masked" and not self.mask_rate:
            raise UserError("data.mask_rate must be above 0 with data.corpus=masked, such as 0.15")

        needed = {"batching": "buckets", "pretokenizer": "none"}
        for name, expected in needed.items():
            found = getattr(self, name)
            if found != expected:
                raise UserError(f"data.{name} must be {expected} for single texts: got {found}")

    def check_corpus(self) -> None:
        """Checks nothing, since the type of ``corpus`` already allows only its two names."""


class LabeledBatch(NamedTuple):
    """Texts and their classes, int32.

    Attributes:
      tokens: Tokens of each text and EOS, padded with 0.
      classes: Class of each text, from 0; -1 for a row without a text.
    """

    tokens: Int32[Any, "B T"]
    classes: Int32[Any, " B"]


def make_labeled_batch(
    rows: Sequence[Sequence[TokenPair]],
    shape: Shape,
) -> LabeledBatch:
    """Arranges examples, one in each row: the ids of a text, and the id of its label.

    ``shape`` begins with the number of rows and the length of texts.
    >>> batch = make_labeled_batch([[([7, 8], [5])]], (2, 4, 4))
    >>> batch.tokens.tolist(), batch.classes.tolist()
    ([[7, 8, 1, 0], [0, 0, 0, 0]], [1, -1])
    """
    num_rows, _, _ = shape
    classes = np.full(num_rows, _NO_CLASS, np.int32)
    for row, [(_, label)] in enumerate(rows):
        classes[row] = int(label[0]) - FIRST_LABEL

    return LabeledBatch(pad_texts(rows, shape), classes)


def pad_texts(
    rows: Sequence[Sequence[TokenPair]],
    shape: Shape,
) -> Int32[np.ndarray, "B T"]:
    """Arranges the texts of examples, with EOS, one in each row, without their labels."""
    num_rows, length, _ = shape
    tokens = np.full((num_rows, length), PAD, np.int32)
    for row, [(text, _)] in enumerate(rows):
        end = len(text)
        tokens[row, :end] = text
        tokens[row, end] = EOS
    return tokens


class LabeledCorpus(FileCorpus):
    """Files with a text on each line, after its label if it ``has_labels``.

    A tab or a space separates label and text: the first line of a file decides which.
    """

    target_symbols = True

    def __init__(self, has_labels: bool = True) -> None:
        super().__init__()
        self.has_labels = has_labels

    def rows(self, path: pathlib.Path) -> Iterator[tuple[str, str]]:
        if not self.has_labels:
            for line in read_file(path):
                yield line, _NO_LABEL
            return

        split = _split_at_tab if _has_tabs(path) else _split_at_space
        for number, line in enumerate(read_file(path), 1):
            label, text = split(line, f"{path}:{number}")
            yield text, label

    def fingerprint(self, split: str) -> str:
        """Returns a hash of the form of the lines, and of the files' uncompressed bytes."""
        paths = find_files(split)

        # Older versions knew only spaces, and read other pairs from files with tabs.
        has_tabs = self.has_labels and any(map(_has_tabs, paths))
        form = f"{self.has_labels}"
        if has_tabs:
            form += " tabs"

        content = fingerprint_files(paths)
        identity = f"labeled {form} {content}"
        return hashlib.sha256(identity.encode()).hexdigest()


def _has_tabs(path: pathlib.Path) -> bool:
    first_line = next(read_file(path), "")
    return "\t" in first_line


def _split_at_tab(line: str, place: str) -> tuple[str, str]:
    """Returns the label and the text of a line of a file whose first line has a tab."""
    label, *others = line.split("\t")
    if len(others) != 1:
        raise UserError(
            f"{place}: expected a label, one tab and a text, as in all lines of a file whose first "
            f"line has a tab, got {len(others)} tabs; separate all labels by one tab, or select "
            "two columns, for example with cut -f 1,2"
        )

    has_blanks = " " in label or unusual_kinds(label)
    if not label or has_blanks:
        raise UserError(
            f"{place}: expected a label without blanks before the tab, got {label[:50]!r}; write "
            "the label first and the text last, and a label of several words like_this"
        )

    [text] = others
    return label, text


def _split_at_space(line: str, place: str) -> tuple[str, str]:
    """Returns the label and the text of a line of a file whose first line has no tab."""
    label, space, text = line.partition(" ")
    if not (label and space) or unusual_kinds(label):
        raise UserError(f"{place}: expected a label, a space and a text, got {line[:50]!r}")

    if "\t" in text:
        raise UserError(
            f"{place}: expected a label, a space and a text without tabs, as in the first line of "
            f"the file, got {line[:50]!r}; separate all labels by tabs, or replace the tabs"
        )

    found = _OTHER_SEPARATORS.search(label)
    if found:
        raise UserError(
            f"{place}: expected a label, a tab or a space, and a text, got {found[0]!r} in the "
            f"label {label[:50]!r}; put a tab between label and text"
        )

    return label, text
