import xml.etree.ElementTree

import numpy as np
import pytest
from matplotlib.collections import LineCollection

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
    heads = []
    for collection in axes.collections:
        if not isinstance(collection, LineCollection):
            continue
        segments = collection.get_segments()
        if len(segments) == 0:
            continue

        lines = []
        colors = collection.get_edgecolors()
        for (start, end), color in zip(segments, colors, strict=True):
            query = round(start[0])
            key = round(end[0])
            opacity = color[3]
            lines.append((query, key, opacity))
        heads.append(lines)
    return heads


def test_lines_of_all_queries_and_of_one(tmp_path, pages):
    panels = [
        PaperFigure(0, [0], None),
        PaperFigure(0, [0, 1], 0),
    ]

    attention_lines(
        WEIGHTS,
        TOKENS,
        panels,
        path=tmp_path / "a.png",
        title="title",
    )

    above, below = pages[-1].axes
    expected = []
    for query, key in np.ndindex(3, 3):
        weight = float(WEIGHTS[0, query, key])
        if weight >= 0.01:
            expected.append((query, key, pytest.approx(weight)))
    assert drawn(above) == [expected]

    # The lines of one query are darker: the root of the weight.
    one, two = drawn(below)
    assert one == [
        (0, 1, pytest.approx(0.745**0.5)),
        (0, 2, pytest.approx(0.5)),
    ]
    assert two == [(0, 2, pytest.approx(1.0))]
    legend = below.get_legend().get_texts()
    assert [text.get_text() for text in legend] == ["head 1", "head 2"]


def test_an_svg_needs_no_font_and_is_the_same_each_time(tmp_path):
    panels = [PaperFigure(0, [0], None)]
    for name in ("a.svg", "b.SVG"):
        attention_lines(
            WEIGHTS,
            TOKENS,
            panels,
            path=tmp_path / name,
            title="title",
        )

    content = (tmp_path / "a.svg").read_bytes()
    assert content == (tmp_path / "b.SVG").read_bytes()
    root = xml.etree.ElementTree.fromstring(content)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not list(root.iter("{http://www.w3.org/2000/svg}text"))
