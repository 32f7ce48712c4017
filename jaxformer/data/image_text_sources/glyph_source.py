"""Glyphs and their names: ``data.source=glyphs``."""

import numpy as np

from jaxformer.data.glyphs import draw_glyph, font_files, is_held_out, known_glyphs
from jaxformer.data.image_texts import ImageTexts, ImageTextSource
from jaxformer.errors import UserError

_SPLITS = ("train", "test", "all")


def _read(split: str) -> ImageTexts:
    """Returns each letter of a split in every font."""
    if split not in _SPLITS:
        raise UserError(f"the glyphs have the splits {', '.join(_SPLITS)}: got {split!r:.80}")

    images = []
    texts = []
    for glyph in known_glyphs():
        if split in ("all", "test" if is_held_out(glyph) else "train"):
            for path in font_files():
                images.append(draw_glyph(glyph.character, path))
                texts.append(glyph.name)
    return ImageTexts(np.stack(images), texts)


GLYPHS = ImageTextSource("glyphs", 20, lambda split, form: _read(split))
