"""What all figures share: one style, the fonts, and files that are written whole or not at all."""

import contextlib
import functools
import io
import pathlib

import matplotlib.style
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from jaxformer.files import write_file

# Told apart with any color vision (Okabe and Ito).
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
GRAY = "#595959"

# DejaVu Sans comes with matplotlib; it has the scripts of Europe, Arabic and Hebrew. The others
# are tried in turn for what it lacks, if they are installed.
_FONT = "DejaVu Sans"
_MORE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Arial Unicode MS",
    "Hiragino Sans",
    "Microsoft YaHei",
    "WenQuanYi Micro Hei",
)

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


def style() -> contextlib.AbstractContextManager[None]:
    """The look of all figures, whatever the user's own matplotlib settings are."""
    return matplotlib.style.context(["default", _STYLE, {"font.family": _fonts()}])


def drawable(text: str) -> str:
    """The text with a box for every character that no font at hand can draw.

    Characters without a shape of their own, such as controls and joiners, are left out.

    >>> drawable("größer\u200d \U0001f9e9")
    'größer □'
    """
    return "".join(
        c if c == "\n" or any(font.get_char_index(ord(c)) for font in _faces()) else "□"
        for c in text
        if c == "\n" or c.isprintable()
    )


def save(figure: Figure, path: pathlib.Path) -> None:
    """Writes the figure for print, whole or not at all: SVG if the name says so, else PNG.

    A PNG has 200 dots per inch. The letters of an SVG are outlines, so that it looks the same
    everywhere, and the same figure gives the same file.

    Raises:
      OSError: The file cannot be written; an older one stays as it was.
    """
    content = io.BytesIO()
    if path.suffix.lower() == ".svg":
        with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "jaxformer"}):
            figure.savefig(content, format="svg", metadata={"Date": None})
    else:
        figure.savefig(content, format="png", dpi=200)
    write_file(path, content.getvalue())


@functools.cache
def _fonts() -> list[str]:
    installed = set(font_manager.get_font_names())
    return [_FONT, *(name for name in _MORE_FONTS if name in installed)]


@functools.cache
def _faces() -> list[FT2Font]:
    return [font_manager.get_font(font_manager.findfont(name)) for name in _fonts()]
