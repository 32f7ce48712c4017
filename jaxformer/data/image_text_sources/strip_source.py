"""Strips of handwritten digits and their numbers in words: ``number_strips``."""

from jaxformer.data.image_texts import ImageTexts, ImageTextSource


def _read(split: str) -> ImageTexts:
    from jaxformer.data.number_strips import read_strips  # which imports this package

    return read_strips(split)


STRIPS = ImageTextSource("number_strips", 30, lambda split, form: _read(split))
