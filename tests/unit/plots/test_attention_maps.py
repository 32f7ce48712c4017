import numpy as np
import pytest
from matplotlib.image import imread

from jaxformer.plots.attention_maps import attention_map


def softmax(*shape):
    weights = np.exp(np.random.default_rng(0).normal(size=shape)).astype(np.float32)
    return weights / weights.sum(axis=-1, keepdims=True)


def draw(weights, queries, keys, folder, pages, title="title", **settings):
    """Draws a map, and returns the axes of the heads, without the color bar."""
    attention_map(weights, queries, keys, folder / "map.png", title, **settings)
    return pages[-1].axes[:-1]


def labels(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def test_each_head_shows_its_weights_on_one_scale(tmp_path, pages):
    weights = softmax(3, 4, 5)
    panels = draw(weights, list("abcd"), list("vwxyz"), tmp_path, pages)
    assert [axes.get_title(loc="left") for axes in panels] == ["head 1", "head 2", "head 3"]
    for axes, head in zip(panels, weights, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), head)
        assert axes.images[0].get_clim() == (0.0, pytest.approx(weights.max()))
        assert axes.images[0].origin == "upper"  # The first query is at the top.


SCRIPTS = ["▁你好", "مرحبا", "שלום", "🙂", "👩\u200d👧", "❤\ufe0f", "e\u0301", "\u202eabc"]
MARKUP = ["$5$", "\\frac{", "_^%#&", "<0x0A>", "▁"]
DAMAGE = ["\ud800", "\0", "\t", "\n", "", "x" * 5000]


def test_every_piece_can_be_a_label_and_a_title(tmp_path, pages):
    """Warnings are errors here, including warnings about missing glyphs."""
    pieces = SCRIPTS + MARKUP + DAMAGE
    panels = draw(softmax(1, len(pieces), len(pieces)), pieces, pieces, tmp_path, pages)
    assert len(labels(panels[0].yaxis)) == len(pieces)
    assert all(len(label) <= 16 for label in labels(panels[0].yaxis))
    for title in (SCRIPTS, MARKUP, DAMAGE):
        draw(softmax(1, 1, 1), ["a"], ["b"], tmp_path, pages, title="".join(title))
    count = 1000  # A long sentence has fewer labels than cells.
    names = [f"p{i}" for i in range(count)]
    (panel,) = draw(softmax(1, count, 3), names, list("abc"), tmp_path, pages, title="word " * 500)
    places = panel.yaxis.get_ticklocs()
    assert labels(panel.yaxis) == [names[int(place)] for place in places]
    assert 0 < len(places) <= 100
    assert max(pages[-1].get_size_inches()) < 20


def test_odd_weights_are_drawn_without_pyplot(tmp_path):
    """The figures of pyplot's global state would accumulate in a notebook."""
    import matplotlib.pyplot as plt

    weights = softmax(2, 3, 3)
    weights[0, 1] = np.nan, np.inf, 0
    attention_map(weights, list("abc"), list("abc"), tmp_path / "map.png", "")
    attention_map(weights[:1, 1:2, :1], ["a"], ["b"], tmp_path / "map.svg", "")
    assert imread(tmp_path / "map.png").ndim == 3
    assert b"<svg " in (tmp_path / "map.svg").read_bytes()
    assert plt.get_fignums() == []
