"""Strips of three handwritten digits, and the numbers that they show in English words.

Training strips have other digits of scikit-learn, and other numbers, than test strips. Write the
words as a text for a language model, and the test strips, and two training strips as examples, to
files for ``jaxformer describe``:

    python -m jaxformer.data.number_strips --directory=DIR
"""

import argparse
import io
import pathlib
import sys

import numpy as np
from jaxtyping import Int, UInt8

from jaxformer.data.image_texts import ImageTexts
from jaxformer.data.images import ImagesConfig, read_images
from jaxformer.data.numerals import numbers_in, spell_english
from jaxformer.errors import UserError, exit_code
from jaxformer.files import local_path, write_file

SEPARATOR = "%%"  # the line between two numbers in the text for a language model
MARK = "#"  # stands for the strip before the words
_LARGEST = 1000
_EXAMPLES = 2
# Numbers of numerals.py, and strips of each.
_SPLITS = {"train": ("train", 20), "test": ("held_out", 10)}


def read_strips(split: str) -> ImageTexts:
    """Returns the strips of a split, [N, 8, 24, 1], the same every time, and their words."""
    if split not in _SPLITS:
        raise UserError(f"number strips have the splits {', '.join(_SPLITS)}: got {split!r:.80}")

    _, strips_per_number = _SPLITS[split]
    numbers = np.repeat(_numbers(split), strips_per_number)
    images = compose_strips(numbers, split)
    return ImageTexts(images, [spell_english(int(number)) for number in numbers])


def language_model_text() -> str:
    """Returns the words of the training numbers, each as a document of one line."""
    documents = [f"{MARK}{spell_english(number)}\n{SEPARATOR}\n" for number in _numbers("train")]
    return "".join(documents)


def _numbers(split: str) -> list[int]:
    name, _ = _SPLITS[split]
    return [number for number in numbers_in(name) if number < _LARGEST]


def compose_strips(
    numbers: Int[np.ndarray, " N"],
    split: str,
) -> UInt8[np.ndarray, "N Y W C"]:
    """Returns a strip for each number, with a random one of the digits of a split in each place."""
    images, labels = read_images(ImagesConfig(corpus="digits"), split)
    rng = np.random.PCG64(_LARGEST)  # whose raw bits are the same in all versions of NumPy
    places = []
    for divisor in (100, 10, 1):
        wanted = numbers // divisor % 10
        draws = rng.random_raw(len(numbers))
        chosen = np.zeros(len(numbers), np.int64)
        for digit in range(10):
            [candidates] = np.nonzero(labels == digit)
            rows = wanted == digit
            chosen[rows] = candidates[draws[rows] % len(candidates)]
        places.append(images[chosen])
    return np.concatenate(places, axis=2)


def _npz(pairs: ImageTexts) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, images=pairs.images, texts=np.array(pairs.texts))
    return content.getvalue()


def main() -> None:
    """Writes numbers.txt, test.npz and examples.npz."""
    parser = argparse.ArgumentParser(description="Write strips of digits, and number words.")
    parser.add_argument("--directory", type=local_path, default=pathlib.Path())
    options = parser.parse_args()

    training = read_strips("train")
    _, strips_per_number = _SPLITS["train"]
    first = slice(0, _EXAMPLES * strips_per_number, strips_per_number)  # of other numbers
    examples = ImageTexts(training.images[first], training.texts[first])
    files = {
        "numbers.txt": language_model_text().encode(),
        "test.npz": _npz(read_strips("test")),
        "examples.npz": _npz(examples),
    }
    for name, data in files.items():
        path = options.directory / name
        write_file(path, data)
        print(path)


if __name__ == "__main__":
    if code := exit_code(main):
        sys.exit(code)
