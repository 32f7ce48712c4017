"""Glyphs of Latin letters with accents, and their names in Unicode, from matplotlib's fonts."""

import functools
import pathlib
import re
import unicodedata
from collections import Counter
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from jaxformer.errors import needs_package

SIDE = 32  # pixels of a picture
_FONT_SIZE = 20
_BASELINE = 24  # pixels from the top, with space for two accents above
_FONTS = ("DejaVuSans", "DejaVuSansMono", "DejaVuSerif")
_NAME = re.compile(r"LATIN (CAPITAL|SMALL) LETTER (\S+)(?: WITH (.+))?")
# Every n-th pair is held out, in the order of their hashes.
_HELD_OUT = 6
_FEWEST = 3  # pairs with the same letter, and with the same accent, that training keeps


class Glyph(NamedTuple):
    """A letter of Unicode.

    Attributes:
      character: The letter.
      name: Its name, such as "LATIN CAPITAL LETTER A WITH ACUTE".
      letter: Its letter in the name, "A".
      accent: What it is with, "ACUTE"; "" for none.
    """

    character: str
    name: str
    letter: str
    accent: str


def font_files() -> list[pathlib.Path]:
    """Returns the fonts: three families, each upright and slanted, regular and bold."""
    with needs_package("matplotlib", "whose fonts have the glyphs", extra="plots"):
        import matplotlib

    folder = pathlib.Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    found = sorted(folder.glob("DejaVu*.ttf"))
    return [path for path in found if path.stem.partition("-")[0] in _FONTS]


@functools.cache
def known_glyphs() -> tuple[Glyph, ...]:
    """Returns the letters that all fonts have, in the order of their numbers."""
    from matplotlib.ft2font import FT2Font

    charmaps = [set(FT2Font(str(path)).get_charmap()) for path in font_files()]
    glyphs = []
    for number in sorted(set.intersection(*charmaps)):
        name = unicodedata.name(chr(number), "")
        match = _NAME.fullmatch(name)
        if match:
            _, letter, accent = match.groups()
            glyphs.append(Glyph(chr(number), name, letter, accent or ""))
    return tuple(glyphs)


@functools.cache
def held_out_pairs() -> frozenset[tuple[str, str]]:
    """Returns pairs of a letter and an accent; other pairs have the letter, others the accent.

    A pair is held out with its capital and its small letter.
    """
    pairs = sorted({(glyph.letter, glyph.accent) for glyph in known_glyphs() if glyph.accent})
    letters = Counter(letter for letter, _ in pairs)
    accents = Counter(accent for _, accent in pairs)

    order = np.random.default_rng(0).permutation(len(pairs))
    most = len(pairs) // _HELD_OUT
    found: set[tuple[str, str]] = set()
    for number in order:
        letter, accent = pairs[number]
        has_others = letters[letter] > _FEWEST and accents[accent] > _FEWEST
        if has_others and len(found) < most:
            found.add((letter, accent))
            letters[letter] -= 1
            accents[accent] -= 1
    return frozenset(found)


def is_held_out(glyph: Glyph) -> bool:
    return (glyph.letter, glyph.accent) in held_out_pairs()


def draw_glyph(character: str, path: pathlib.Path) -> UInt8[np.ndarray, "Y X 1"]:
    """Returns a picture of a letter, white on black, with its baseline at a fixed height."""
    with needs_package("Pillow", "which draws the glyphs", extra="plots"):
        from PIL import Image, ImageDraw

    picture = Image.new("L", (SIDE, SIDE))
    middle = SIDE / 2
    ImageDraw.Draw(picture).text(
        (middle, _BASELINE),
        character,
        fill=255,
        font=_load_font(path),
        anchor="ms",  # the middle of the baseline
    )
    return np.asarray(picture)[..., None]


@functools.cache
def _load_font(path: pathlib.Path):
    from PIL import ImageFont

    return ImageFont.truetype(str(path), _FONT_SIZE)
