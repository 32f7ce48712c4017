"""Numbers of handwritten digits, and their English words: ``data.source=handwritten_numbers``."""

import numpy as np
from jaxtyping import Int, UInt8

from jaxformer.data.image_texts import ImageTexts, ImageTextSource
from jaxformer.data.images import ImagesConfig, read_images
from jaxformer.data.numerals import spell_english
from jaxformer.errors import UserError

_NUMBERS = 1000
_HELD_OUT = 100
_PLACES = (100, 10, 1)
# Pictures of each number of the training split, each of other digits.
_PICTURES = 40


def _read(split: str) -> ImageTexts:
    """Returns pictures of the numbers of a split, composed of the digits of the split."""
    if split not in ("train", "test"):
        raise UserError(f"handwritten_numbers has the splits train and test: got {split!r:.80}")

    # Raw bits are the same in all versions of NumPy.
    order = np.random.PCG64(0).random_raw(_NUMBERS).argsort()
    numbers = order[:_HELD_OUT]
    if split == "train":
        numbers = np.repeat(order[_HELD_OUT:], _PICTURES)

    texts = [spell_english(number) for number in numbers.tolist()]
    return ImageTexts(_compose(numbers, split), texts)


def _compose(numbers: Int[np.ndarray, " N"], split: str) -> UInt8[np.ndarray, "N Y X C"]:
    """Returns a strip for each number, with a random one of the digits of a split in each place."""
    images, labels = read_images(ImagesConfig(corpus="digits"), split)
    rng = np.random.PCG64(_NUMBERS)
    places = []
    for place in _PLACES:
        wanted = numbers // place % 10
        draws = rng.random_raw(len(numbers))
        chosen = np.zeros(len(numbers), np.int64)
        for digit in range(10):
            [candidates] = np.nonzero(labels == digit)
            rows = wanted == digit
            chosen[rows] = candidates[draws[rows] % len(candidates)]
        places.append(images[chosen])
    return np.concatenate(places, axis=2)


NUMBERS = ImageTextSource("handwritten_numbers", 30, lambda split, form: _read(split))
