import pathlib

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from jaxformer.plots import figure
from jaxformer.plots.attention_maps import attention_map


def softmax(shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    weights = np.exp(np.random.default_rng(seed).normal(size=shape)).astype(np.float32)
    return weights / weights.sum(axis=-1, keepdims=True)


def draw(weights, queries, keys, path: pathlib.Path, pages: list[Figure], title: str = "title"):
    """Draws a map, and returns the axes of the heads and, last, of the color bar."""
    attention_map(weights, queries, keys, path / "map.png", title)
    assert imread(path / "map.png").ndim == 3
    return pages[-1].axes[:-1]


def labels(axis) -> list[str]:
    return [text.get_text() for text in axis.get_ticklabels()]


def test_each_head_shows_its_weights_on_one_scale(tmp_path: pathlib.Path, pages: list[Figure]):
    weights = softmax((3, 4, 5))
    panels = draw(weights, list("abcd"), list("vwxyz"), tmp_path, pages)
    assert [axes.get_title(loc="left") for axes in panels] == ["head 1", "head 2", "head 3"]
    for axes, head in zip(panels, weights, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), head)
        assert axes.images[0].get_clim() == (0.0, pytest.approx(weights.max()))
        assert axes.images[0].origin == "upper"  # The first query is at the top.


def test_only_outer_panels_have_labels(tmp_path: pathlib.Path, pages: list[Figure]):
    queries, keys = ["·der", "Hund"], ["·the", "·dog", "s"]
    panels = draw(softmax((6, 2, 3)), ["▁der", "Hund"], ["▁the", "▁dog", "s"], tmp_path, pages)
    assert [labels(axes.yaxis) for axes in panels] == [queries, [], [], [], queries, []]
    # With four panels per row, heads 3 and 4 have no panels below them.
    assert [labels(axes.xaxis) for axes in panels] == [[], [], keys, keys, keys, keys]


@pytest.mark.parametrize("count", [30, 60, 200, 1000])
def test_labels_of_long_sentences_align_with_their_cells(
    count: int, tmp_path: pathlib.Path, pages: list[Figure]
):
    names = [f"p{i}" for i in range(count)]
    (panel,) = draw(softmax((1, count, 3)), names, ["a", "b", "c"], tmp_path, pages)
    places = panel.yaxis.get_ticklocs()
    assert labels(panel.yaxis) == [names[int(place)] for place in places]
    assert 0 < len(places) <= 100
    assert max(pages[-1].get_size_inches()) < 20


PIECES = [
    *("▁你好", "مرحبا", "שלום", "🙂", "👩\u200d👧", "❤\ufe0f", "e\u0301", "\u202eabc"),  # scripts
    *("$5$", "\\frac{", "_^%#&", "<0x0A>", "▁"),  # markup
    *("\ud800", "\0", "\t", "\n", "", "x" * 5000),  # damage
]


@pytest.mark.parametrize("piece", PIECES)
def test_every_piece_can_be_a_label(piece: str, tmp_path: pathlib.Path, pages: list[Figure]):
    """Warnings are errors here, including warnings about missing glyphs."""
    panels = draw(softmax((2, 2, 2)), [piece, "a"], ["b", piece], tmp_path, pages, title=piece)
    assert len(labels(panels[0].yaxis)[0]) <= 16


def test_titles_are_wrapped_and_not_parsed(tmp_path: pathlib.Path, pages: list[Figure]):
    title = "It costs $5 and not $6.\ncross attention, layer 1 of 1"
    draw(softmax((4, 3, 3)), list("abc"), list("abc"), tmp_path, pages, title=title)
    assert pages[-1].get_suptitle() == title
    draw(softmax((1, 3, 3)), list("abc"), list("abc"), tmp_path, pages, title="word " * 500)
    assert pages[-1].get_suptitle().count("\n") == 2
    assert pages[-1].get_suptitle().endswith("…")


def test_a_character_without_a_glyph_becomes_a_box():
    assert figure.drawable("a你\U0001f9e9é\nב") == "a□□é\nב"


def test_fonts_of_the_user_fill_gaps(monkeypatch: pytest.MonkeyPatch):
    """STIX, which comes with matplotlib, has mathematical letters that DejaVu Sans lacks."""
    script_a = "\U0001d49c"
    assert figure.drawable(script_a) == "□"
    monkeypatch.setattr(figure, "_MORE_FONTS", ("No Such Font", "STIXGeneral"))
    figure._fonts.cache_clear()
    figure._faces.cache_clear()
    try:
        assert figure._fonts() == ["DejaVu Sans", "STIXGeneral"]
        assert figure.drawable(script_a) == script_a
    finally:
        figure._fonts.cache_clear()
        figure._faces.cache_clear()


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_odd_weights_are_drawn(value: float, tmp_path: pathlib.Path, pages: list[Figure]):
    draw(np.full((1, 1, 1), value, np.float32), ["a"], ["b"], tmp_path, pages)
    some = softmax((2, 3, 3))
    some[0, 1] = value
    draw(some, list("abc"), list("abc"), tmp_path, pages)


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ((2, 3, 2), r"\[heads, 2 queries, 3 keys\].*got \[2, 3, 2\]"),
        ((2, 2, 4), r"\[heads, 2 queries, 3 keys\].*got \[2, 2, 4\]"),
        ((0, 2, 3), r"at least one of each: got \[0, 2, 3\]"),
    ],
)
def test_labels_of_another_number_are_refused(shape, match: str, tmp_path: pathlib.Path):
    with pytest.raises(ValueError, match=match):
        attention_map(np.zeros(shape, np.float32), ["a", "b"], ["x", "y", "z"], tmp_path / "m", "")
    assert list(tmp_path.iterdir()) == []


def test_pyplot_is_not_used(tmp_path: pathlib.Path):
    """The figures of pyplot's global state would accumulate in a notebook."""
    import matplotlib.pyplot as plt

    attention_map(softmax((1, 2, 2)), ["a", "b"], ["c", "d"], tmp_path / "map.png", "")
    assert plt.get_fignums() == []


def test_chosen_heads_keep_their_numbers(tmp_path: pathlib.Path, pages: list[Figure]):
    weights = softmax((2, 2, 2))
    attention_map(weights, ["a", "b"], ["c", "d"], tmp_path / "map.svg", "", names=[3, 7])
    assert [axes.get_title(loc="left") for axes in pages[-1].axes[:-1]] == ["head 3", "head 7"]
    assert b"<svg " in (tmp_path / "map.svg").read_bytes()
