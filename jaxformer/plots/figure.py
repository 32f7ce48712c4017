"""Style, fonts and atomic file writing for all figures."""

import contextlib
import functools
import io
import pathlib
import unicodedata
from collections.abc import Iterable, Iterator

import matplotlib.style
import numpy as np
from jaxtyping import Float
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from jaxformer.errors import UserError
from jaxformer.files import write_file

# Distinct for color-blind readers (Okabe and Ito).
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
YELLOW = "#E69F00"
GRAY = "#595959"

# DejaVu Sans comes with matplotlib. For other scripts, the fonts below are tried if installed.
_FONT = "DejaVu Sans"
_CJK = "Noto Sans CJK SC"
_MORE_FONTS = (
    _CJK,
    "Noto Sans CJK JP",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Arial Unicode MS",
    "Hiragino Sans",
    "Microsoft YaHei",
    "WenQuanYi Micro Hei",
)
# The font to install for a script, by the first word of its characters' names in Unicode.
_FONT_OF_SCRIPT = {
    "CJK": _CJK,
    "HIRAGANA": _CJK,
    "KATAKANA": _CJK,
    "HANGUL": _CJK,
    "DEVANAGARI": "Noto Sans Devanagari",
    "THAI": "Noto Sans Thai",
}

_STYLE = {
    "axes.edgecolor": GRAY,
    "axes.labelcolor": GRAY,
    "axes.linewidth": 0.6,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "figure.titlesize": 9,
    "font.size": 8,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "xtick.color": GRAY,
    "xtick.major.width": 0.6,
    "ytick.color": GRAY,
    "ytick.major.width": 0.6,
}


@contextlib.contextmanager
def open_figure(path: pathlib.Path, width: float, height: float) -> Iterator[Figure]:
    """Yields a figure with a size in inches and our style, and then saves it as PNG or SVG."""
    style = {**_STYLE, "font.family": _fonts()}
    with matplotlib.style.context(["default", style]):
        page = Figure(figsize=(width, height), layout="constrained")
        yield page
        save_figure(page, path)


def write_values(
    axes: Axes,
    values: Float[np.ndarray, "T S"],
    form: str,
    *,
    dark_above: float,
    points: float,
) -> None:
    """Writes each value into its cell of an image, in a color that contrasts with the cell.

    Args:
      axes: Axes with the image.
      values: The numbers; those that are not finite are left out.
      form: Format of a number, such as "{:.3f}".
      dark_above: Cells of numbers with a larger magnitude are dark.
      points: Font size.
    """
    for (row, column), value in np.ndenumerate(values):
        if not np.isfinite(value):
            continue
        axes.text(
            column,
            row,
            form.format(value),
            ha="center",
            va="center",
            fontsize=points,
            color="white" if abs(value) > dark_above else "black",
        )


def replace_missing_glyphs(text: str) -> str:
    """Replaces every character that no installed font contains with a box.

    Unprintable characters, such as controls and joiners, are removed.

    >>> replace_missing_glyphs("größer\u200d \U0001f9e9")
    'größer □'
    """
    drawable = []
    for character in text:
        if character == "\n":
            drawable.append(character)
        elif character.isprintable():
            drawable.append(character if _has_glyph(character) else "□")
    return "".join(drawable)


def check_fonts(texts: Iterable[str]) -> None:
    """Refuses letters of a script whose font is not installed, and names the font.

    Other characters that no font contains, such as emoji, are drawn as boxes.
    """
    for text in texts:
        for character in text:
            script, *_ = unicodedata.name(character, "none").split()
            font = _FONT_OF_SCRIPT.get(script)
            if font is not None and not _has_glyph(character):
                raise UserError(
                    f"expected a font with {character}, which an image needs, got none; install "
                    f"{font}, delete matplotlib's list of fonts in {matplotlib.get_cachedir()}, "
                    "and try again, or give a name that ends in .html"
                )


def _has_glyph(character: str) -> bool:
    return any(font.get_char_index(ord(character)) for font in _faces())


def save_figure(figure: Figure, path: pathlib.Path) -> None:
    """Writes an SVG, with outlines instead of letters, if the name ends in ``.svg``, else a PNG."""
    content = io.BytesIO()
    if path.suffix.lower() == ".svg":
        # The salt and the missing date make equal figures equal files.
        with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "jaxformer"}):
            figure.savefig(content, format="svg", metadata={"Date": None})
    else:
        figure.savefig(content, format="png", dpi=200)
    write_file(path, content.getvalue())


@functools.cache
def _fonts() -> list[str]:
    installed = set(font_manager.get_font_names())
    more = [name for name in _MORE_FONTS if name in installed]
    return [_FONT, *more]


@functools.cache
def _faces() -> list[FT2Font]:
    paths = [font_manager.findfont(name) for name in _fonts()]
    return [font_manager.get_font(path) for path in paths]
