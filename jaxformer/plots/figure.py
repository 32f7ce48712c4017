"""Style, fonts and atomic file writing for all figures."""

import contextlib
import functools
import io
import pathlib
from collections.abc import Iterator

import matplotlib.style
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from jaxformer.files import write_file

# Distinct for color-blind readers (Okabe and Ito).
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
GRAY = "#595959"

# DejaVu Sans comes with matplotlib. For other scripts, the fonts below are tried if installed.
_FONT = "DejaVu Sans"
_MORE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Devanagari", "Noto Sans Thai"),
    *("Arial Unicode MS", "Hiragino Sans", "Microsoft YaHei", "WenQuanYi Micro Hei"),
)

_GRAY_PARTS = ("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
_THIN_PARTS = ("axes.linewidth", "grid.linewidth", "xtick.major.width", "ytick.major.width")
_STYLE = {
    **dict.fromkeys(_GRAY_PARTS, GRAY),
    **dict.fromkeys(_THIN_PARTS, 0.6),
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "figure.titlesize": 9,
    "font.size": 8,
    "grid.color": "#E6E6E6",
    "legend.frameon": False,
    "lines.linewidth": 1.4,
}


@contextlib.contextmanager
def open_figure(path: pathlib.Path, width: float, height: float) -> Iterator[Figure]:
    """Yields a figure with a size in inches and our style, and then saves it as PNG or SVG."""
    with matplotlib.style.context(["default", _STYLE, {"font.family": _fonts()}]):
        page = Figure(figsize=(width, height), layout="constrained")
        yield page
        save_figure(page, path)


def replace_missing_glyphs(text: str) -> str:
    """Replaces every character that no installed font contains with a box.

    Unprintable characters, such as controls and joiners, are removed.

    >>> replace_missing_glyphs("größer\u200d \U0001f9e9")
    'größer □'
    """
    return "".join(
        c if c == "\n" or any(font.get_char_index(ord(c)) for font in _faces()) else "□"
        for c in text
        if c == "\n" or c.isprintable()
    )


def save_figure(figure: Figure, path: pathlib.Path) -> None:
    """Writes an SVG, with outlines instead of letters, if the name ends in ``.svg``, else a PNG."""
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
