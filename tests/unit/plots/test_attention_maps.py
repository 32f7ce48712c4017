"""Maps of attention: weights, labels of any text, long sentences, and odd weights."""

import numpy as np
import pytest
from matplotlib.image import imread

from jaxformer.plots.attention_maps import attention_map


def softmax(*shape):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=shape)
    odds = np.exp(scores).astype(np.float32)
    return odds / odds.sum(axis=-1, keepdims=True)


def draw(weights, queries, keys, folder, pages, title="title", **settings):
    """Draws a map, and returns the axes of the heads, without the color bar."""
    attention_map(
        weights,
        queries,
        keys,
        path=folder / "map.png",
        title=title,
        **settings,
    )
    newest = pages[-1]
    return newest.axes[:-1]


def labels(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def test_each_head_shows_its_weights_on_one_scale(tmp_path, pages):
    weights = softmax(3, 4, 5)

    panels = draw(
        weights,
        list("abcd"),
        list("vwxyz"),
        folder=tmp_path,
        pages=pages,
    )

    titles = [axes.get_title(loc="left") for axes in panels]
    assert titles == ["head 1", "head 2", "head 3"]
    for axes, head in zip(panels, weights, strict=True):
        (image,) = axes.images
        np.testing.assert_array_equal(image.get_array(), head)
        assert image.get_clim() == (0.0, pytest.approx(weights.max()))
        assert image.origin == "upper"  # The first query is at the top.


def test_cells_have_their_weights_in_percent(tmp_path, pages):
    weights = np.array([[[0.25, 0.75], [1.0, np.nan]]], np.float32)
    [axes] = draw(weights, ["a", "b"], ["c", "d"], tmp_path, pages, annotate=True, panels=["mean"])

    assert axes.get_title(loc="left") == "mean"
    assert [text.get_text() for text in axes.texts] == ["25", "75", "100"]
    assert [text.get_position() for text in axes.texts] == [(0, 0), (1, 0), (0, 1)]
    # Letters contrast with dark cells, of large weights.
    assert [text.get_color() for text in axes.texts] == ["black", "white", "white"]


SCRIPTS = ["▁你好", "مرحبا", "שלום", "🙂", "👩\u200d👧", "❤\ufe0f", "e\u0301", "\u202eabc"]
MARKUP = ["$5$", "\\frac{", "_^%#&", "<0x0A>", "▁"]
DAMAGE = ["\ud800", "\0", "\t", "\n", "", "x" * 5000]
TITLES = ["".join(SCRIPTS), "".join(MARKUP), "".join(DAMAGE)]


def test_every_piece_can_be_a_label_and_a_title(tmp_path, pages):
    """Warnings are errors here, including warnings about missing glyphs."""
    pieces = SCRIPTS + MARKUP + DAMAGE
    size = len(pieces)
    weights = softmax(1, size, size)

    (panel,) = draw(weights, pieces, pieces, folder=tmp_path, pages=pages)
    shown = labels(panel.yaxis)
    assert len(shown) == size
    longest = max(shown, key=len)
    assert len(longest) <= 16

    weights = softmax(1, 1, 1)
    for title in TITLES:
        draw(
            weights,
            ["a"],
            ["b"],
            folder=tmp_path,
            pages=pages,
            title=title,
        )


def test_a_long_sentence_has_fewer_labels_than_cells(tmp_path, pages):
    names = [f"p{i}" for i in range(1000)]
    title = "word " * 500

    weights = softmax(1, len(names), 3)
    (panel,) = draw(
        weights,
        names,
        list("abc"),
        folder=tmp_path,
        pages=pages,
        title=title,
    )

    places = panel.yaxis.get_ticklocs()
    expected = [names[int(place)] for place in places]
    assert labels(panel.yaxis) == expected
    assert 0 < len(places) <= 100
    inches = pages[-1].get_size_inches()
    assert max(inches) < 20


def test_odd_weights_are_drawn_without_pyplot(tmp_path):
    """The figures of pyplot's global state would accumulate in a notebook."""
    import matplotlib.pyplot as plt

    weights = softmax(2, 3, 3)
    weights[0, 1] = [np.nan, np.inf, 0]
    only_nan = np.full((1, 1, 1), np.nan, np.float32)
    abc = list("abc")
    png = tmp_path / "map.png"
    svg = tmp_path / "map.svg"

    attention_map(weights, abc, abc, path=png, title="")
    attention_map(only_nan, ["a"], ["b"], path=svg, title="")

    assert imread(png).ndim == 3
    assert b"<svg " in svg.read_bytes()
    assert plt.get_fignums() == []
