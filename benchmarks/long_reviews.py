"""Makes long reviews of short ones, for ``configs/long_reviews.py``.

    python benchmarks/long_reviews.py long_reviews

writes ``train.txt`` and ``valid.txt`` in the folder, from the sentences of SST-2.
A review has 16 sentences in random order: ten with its label, and six with the other. A sentence is
in several reviews, and no sentence of ``valid.txt`` is in ``train.txt``.
"""

import pathlib
import sys
from collections.abc import Iterator

import numpy as np

from jaxformer.files import data_directory

LABELS = ("0", "1")
WITH_LABEL = 10
WITH_OTHER = 6
REVIEWS = {"train": 2000, "valid": 500}
FILES = {"train": "stsa.binary.train", "valid": "stsa.binary.dev"}


def read_sentences(path: pathlib.Path) -> dict[str, list[str]]:
    """Returns the sentences of each label."""
    sentences = {label: [] for label in LABELS}
    for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n"):
        label, text = line.split(" ", 1)
        sentences[label].append(text)
    return sentences


def reviews(
    sentences: dict[str, list[str]],
    number: int,
    random: np.random.Generator,
) -> Iterator[str]:
    """Yields lines with a label, a tab and a review; both labels are equally frequent."""
    for index in range(number):
        label, other = LABELS if index % 2 else LABELS[::-1]
        chosen = [
            *random.choice(sentences[label], WITH_LABEL, replace=False),
            *random.choice(sentences[other], WITH_OTHER, replace=False),
        ]
        random.shuffle(chosen)
        yield f"{label}\t{' '.join(chosen)}\n"


def main(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for split, number in REVIEWS.items():
        sentences = read_sentences(data_directory() / "sst2" / FILES[split])
        content = "".join(reviews(sentences, number, random))
        path = folder / f"{split}.txt"
        path.write_text(content, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main(pathlib.Path(*sys.argv[1:] or ["long_reviews"]))
