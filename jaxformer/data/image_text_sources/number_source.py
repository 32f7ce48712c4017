"""Numbers of handwritten digits, and their English words: ``data.corpus=handwritten_numbers``."""

import numpy as np
from jaxtyping import Int, UInt8

from jaxformer.data.image_texts import ImageTexts, ImageTextSource
from jaxformer.data.images import Images, ImagesConfig, read_images
from jaxformer.data.numerals import spell_english
from jaxformer.errors import UserError

_SPLITS = ("train", "test")
_NUMBERS = 1000
_HELD_OUT = 100
_PLACES = (100, 10, 1)
# Pictures of each number of the training split, each of other digits.
_PICTURES = 40


def _read(split: str) -> ImageTexts:
    """Returns pictures of the numbers of a split, composed of the digits of the split."""
    if split not in _SPLITS:
        raise UserError(f"handwritten_numbers has the splits train and test: got {split!r:.80}")

    order = np.random.default_rng(0).permutation(_NUMBERS)
    numbers = order[:_HELD_OUT]
    if split == "train":
        numbers = np.repeat(order[_HELD_OUT:], _PICTURES)

    digits = read_images(ImagesConfig(corpus="digits"), split)
    images = _compose(numbers, digits, seed=_SPLITS.index(split))
    return ImageTexts(images, [spell_english(number) for number in numbers.tolist()])


def _compose(
    numbers: Int[np.ndarray, " N"],
    digits: Images,
    seed: int,
) -> UInt8[np.ndarray, "N Y X C"]:
    """Returns pictures of numbers, with a random one of the digits in each place."""
    rng = np.random.default_rng(seed)
    images, labels = digits
    columns = []
    for place in _PLACES:
        chosen = np.zeros_like(numbers)
        digit_of_number = numbers // place % 10
        for digit in range(10):
            is_digit = digit_of_number == digit
            candidates = np.flatnonzero(labels == digit)
            chosen[is_digit] = rng.choice(candidates, is_digit.sum())
        columns.append(images[chosen])
    return np.concatenate(columns, axis=2)


NUMBERS = ImageTextSource("handwritten_numbers", 40, lambda split, form: _read(split))
