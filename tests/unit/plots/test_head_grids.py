"""Grids of heads: a number in each cell that has a value, legible on its color."""

import numpy as np

from jaxformer.plots.head_grids import draw_head_grids


def test_cells_have_their_values_and_share_a_scale(tmp_path, pages):
    values = {
        "encoder": np.array([[0.25, -1.0], [0.125, np.nan]]),
        "cross": np.array([[0.7, 0.5]]),
    }
    draw_head_grids(values, tmp_path / "heads.png", label="loss")

    *panels, _ = pages[-1].axes
    encoder, cross = panels
    assert [axes.images[0].get_clim() for axes in panels] == [(-1, 1)] * 2
    assert [text.get_text() for text in encoder.texts] == ["0.250", "-1.000", "0.125"]
    assert [text.get_position() for text in encoder.texts] == [(0, 0), (1, 0), (0, 1)]
    assert [text.get_color() for text in encoder.texts] == ["black", "white", "black"]
    assert [text.get_color() for text in cross.texts] == ["white", "black"]


def test_the_label_of_the_color_bar_fits_beside_a_single_layer(tmp_path, pages):
    label = "loss gained without the head, nats"
    draw_head_grids({"encoder": np.array([[-0.0001]])}, tmp_path / "heads.png", label=label)
    page = pages[-1]
    [cell], bar = page.axes[0].texts, page.axes[-1]
    assert cell.get_text() == "0.000"
    shown = bar.yaxis.label.get_window_extent()
    assert shown.y0 >= 0
    assert shown.y1 <= page.bbox.height
