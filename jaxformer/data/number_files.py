"""Files of handwritten numbers: their words as a text for a language model, and pictures.

The text has the numbers of the training pictures. For ``jaxformer caption``, there are the test
pictures, of other numbers, and two training pictures as examples:

    python -m jaxformer.data.number_files --directory=DIR
"""

import argparse
import io
import pathlib
import sys

import numpy as np

from jaxformer.data.image_texts import ImageTexts, read_image_texts
from jaxformer.errors import exit_code
from jaxformer.files import local_path, write_file

SEPARATOR = "%%"  # the line between two numbers in the text
MARK = "#"  # stands for the picture before the words
_SOURCE = "handwritten_numbers"
_EXAMPLES = 2


def number_text(texts: list[str]) -> str:
    """Returns each different text as a document of one line."""
    documents = [f"{MARK}{text}\n{SEPARATOR}\n" for text in dict.fromkeys(texts)]
    return "".join(documents)


def _first_numbers(pairs: ImageTexts, count: int) -> ImageTexts:
    """Returns one picture of each of the first different numbers."""
    first = [pairs.texts.index(text) for text in [*dict.fromkeys(pairs.texts)][:count]]
    return ImageTexts(pairs.images[first], [pairs.texts[number] for number in first])


def _npz(pairs: ImageTexts) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, images=pairs.images, texts=np.array(pairs.texts))
    return content.getvalue()


def main() -> None:
    """Writes numbers.txt, test.npz and examples.npz."""
    parser = argparse.ArgumentParser(description="Write files of handwritten numbers.")
    parser.add_argument("--directory", type=local_path, default=pathlib.Path())
    options = parser.parse_args()

    train = read_image_texts(_SOURCE, "train")
    files = {
        "numbers.txt": number_text(train.texts).encode(),
        "test.npz": _npz(read_image_texts(_SOURCE, "test")),
        "examples.npz": _npz(_first_numbers(train, _EXAMPLES)),
    }
    for name, data in files.items():
        path = options.directory / name
        write_file(path, data)
        print(path)


if __name__ == "__main__":
    if code := exit_code(main):
        sys.exit(code)
