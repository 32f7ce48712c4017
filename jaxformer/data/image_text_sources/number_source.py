"""Numbers of handwritten digits, and their English words: ``data.corpus=handwritten_numbers``."""

import numpy as np

from jaxformer.data.image_texts import ImageTexts, ImageTextSource
from jaxformer.data.numerals import spell_english
from jaxformer.errors import UserError

_NUMBERS = 1000
_HELD_OUT = 100
# Pictures of each number of the training split, each of other digits.
_PICTURES = 40


def _read(split: str) -> ImageTexts:
    """Returns pictures of the numbers of a split, composed of the digits of the split."""
    from jaxformer.data.number_strips import compose_strips  # which imports this package

    if split not in ("train", "test"):
        raise UserError(f"handwritten_numbers has the splits train and test: got {split!r:.80}")

    # Raw bits are the same in all versions of NumPy.
    order = np.random.PCG64(0).random_raw(_NUMBERS).argsort()
    numbers = order[:_HELD_OUT]
    if split == "train":
        numbers = np.repeat(order[_HELD_OUT:], _PICTURES)

    texts = [spell_english(number) for number in numbers.tolist()]
    return ImageTexts(compose_strips(numbers, split), texts)


NUMBERS = ImageTextSource("handwritten_numbers", 60, _read)
