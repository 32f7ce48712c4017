import xml.etree.ElementTree

import numpy as np
import pytest

from jaxformer.plots.attention_lines import attention_lines
from jaxformer.plots.paper_figures import PaperFigure

WEIGHTS = np.array(
    [
        [[0.005, 0.745, 0.25], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]],
        [[0.0, 0.0, 1.0], [0.0, 0.009, 0.991], [0.2, 0.3, 0.5]],
    ],
    np.float32,
)
TOKENS = ["▁a", "b", "</s>"]


def drawn(axes):
    """Returns query, key and opacity of the lines of each head."""
    lines = [c for c in axes.collections if hasattr(c, "get_segments") and len(c.get_segments())]
    return [
        [
            (round(start[0]), round(end[0]), color[3])
            for (start, end), color in zip(c.get_segments(), c.get_edgecolors(), strict=True)
        ]
        for c in lines
    ]


def test_lines_of_all_queries_and_of_one(tmp_path, pages):
    panels = [PaperFigure(0, [0], None), PaperFigure(0, [0, 1], 0)]
    attention_lines(WEIGHTS, TOKENS, panels, tmp_path / "a.png", "title")
    above, below = pages[-1].axes
    (head,) = drawn(above)
    expected = [(q, k, WEIGHTS[0, q, k]) for q in range(3) for k in range(3)]
    assert head == [(q, k, pytest.approx(float(w))) for q, k, w in expected if w >= 0.01]
    one, two = drawn(below)
    assert one == [(0, 1, pytest.approx(0.745**0.5)), (0, 2, pytest.approx(0.5))]
    assert two == [(0, 2, pytest.approx(1.0))]
    assert [text.get_text() for text in below.get_legend().get_texts()] == ["head 1", "head 2"]


def test_an_svg_needs_no_font_and_is_the_same_each_time(tmp_path):
    for name in ("a.svg", "b.SVG"):
        panels = [PaperFigure(0, [0], None)]
        attention_lines(WEIGHTS, TOKENS, panels, tmp_path / name, "title")
    content = (tmp_path / "a.svg").read_bytes()
    assert content == (tmp_path / "b.SVG").read_bytes()
    root = xml.etree.ElementTree.fromstring(content)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not list(root.iter("{http://www.w3.org/2000/svg}text"))
