"""Fonts of figures: the one to install, and characters of an installed one."""

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager

from jaxformer.errors import UserError
from jaxformer.plots import figure


@pytest.fixture
def fonts(monkeypatch):
    """Makes only DejaVu Sans available; returns a function that installs another font."""

    def forget():
        figure._fonts.cache_clear()
        figure._faces.cache_clear()

    installed = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", installed)
    forget()

    def install(path):
        font_manager.fontManager.addfont(path)
        forget()

    yield install
    forget()


def write_font(path, characters):
    """Writes a font with a square for each character, under the name of the one to install."""
    pen = TTGlyphPen(None)
    for move, point in (("moveTo", (0, 0)), ("lineTo", (500, 0)), ("lineTo", (500, 500))):
        getattr(pen, move)(point)
    pen.closePath()
    names = [".notdef", *(f"uni{ord(character):04X}" for character in characters)]

    font = FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder(names)
    font.setupCharacterMap(dict(zip(map(ord, characters), names[1:], strict=True)))
    font.setupGlyf(dict.fromkeys(names, pen.glyph()))
    font.setupHorizontalMetrics(dict.fromkeys(names, (600, 0)))
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "Noto Sans CJK SC", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(path)


def test_letters_without_a_font_are_refused(fonts):
    figure.check_fonts(["größer", "\U0001f9e9", "\0", ""])  # a box stands for what no font has
    message = "expected a font with 猫, which an image needs, got none; install Noto Sans CJK SC, "
    with pytest.raises(UserError, match=message):
        figure.check_fonts(["the", "▁猫"])
    with pytest.raises(UserError, match="install Noto Sans Thai"):
        figure.check_fonts(["ไทย"])


def test_letters_of_an_installed_font_are_drawn(fonts, tmp_path):
    write_font(tmp_path / "font.ttf", "猫坐")
    fonts(tmp_path / "font.ttf")
    figure.check_fonts(["猫坐"])
    assert figure.replace_missing_glyphs("猫坐垫") == "猫坐□"
