"""Attention to the patches of pictures, drawn over them."""

import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.colors import ListedColormap

from jaxformer.plots import figure

_PANEL = 1.1  # inches, the height


def attention_rollout(weights: Float[np.ndarray, "L H T T"]) -> Float[np.ndarray, "T T"]:
    """Returns attention through all layers (Abnar and Zuidema 2020), with residual connections."""
    tokens = weights.shape[-1]
    identity = np.eye(tokens)
    total = identity
    for layer in weights:
        # The residual connection passes on as much as attention, averaged over the heads.
        attention = layer.mean(axis=0)
        with_residual = (attention + identity) / 2
        total = with_residual @ total
    return total


def patch_weights(
    weights: Float[np.ndarray, "*rows T T"],
    grid: tuple[int, int],
) -> Float[np.ndarray, "*rows I J"]:
    """Returns the attention to each patch: the class token's if there is one, else the mean."""
    down, across = grid
    first_patch = weights.shape[-1] - down * across
    if first_patch:
        rows = weights[..., 0, first_patch:]
    else:
        rows = weights.mean(axis=-2)
    return rows.reshape(*rows.shape[:-1], *grid)


def draw_heads(
    images: UInt8[np.ndarray, "N Y X C"],
    weights: Float[np.ndarray, "N L H T T"],
    grid: tuple[int, int],
    path: pathlib.Path,
    titles: Sequence[str],
) -> None:
    """Draws each picture with the attention of each head of the last layer, and the rollout."""
    heads = weights.shape[2]
    names = [f"head {number + 1}" for number in range(heads)]
    names.append("rollout")

    maps = []
    for layers in weights:
        rollout = attention_rollout(layers)
        shown = np.stack([*layers[-1], rollout])
        maps.append(patch_weights(shown, grid))
    draw_maps(
        images,
        maps,
        names=[names] * len(images),
        path=path,
        titles=titles,
    )


def draw_maps(
    images: UInt8[np.ndarray, "N Y X C"],
    maps: Sequence[Float[np.ndarray, "_ I J"]],
    names: Sequence[Sequence[str]],
    path: pathlib.Path,
    titles: Sequence[str],
) -> None:
    """Draws each picture, alone and below its maps of patches with their names, as PNG or SVG."""
    count, height, width, channels = images.shape
    columns = 1 + max(map(len, names))
    panel_width = _PANEL * width / height
    page_width = panel_width * columns + 0.3
    page_height = (_PANEL + 0.2) * count + 0.2

    # A map covers the whole picture, whose pixels have integer centers.
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    color = ListedColormap([figure.ORANGE])

    with figure.open_figure(path, page_width, page_height) as page:
        panels = page.subplots(count, columns, squeeze=False)
        places = np.ndindex(panels.shape)
        for axes, (row, column) in zip(panels.flat, places, strict=True):
            axes.set_axis_off()
            if column > len(names[row]):
                continue

            image = images[row, ..., 0] if channels == 1 else images[row]
            axes.imshow(image, "gray_r", vmin=0, vmax=255)

            labels = [titles[row], *names[row]]
            title = figure.replace_missing_glyphs(labels[column])
            axes.set_title(title, parse_math=False)

            if column:
                # The more attention, the less transparent.
                shown = maps[row][column - 1]
                largest = shown.max() or 1
                alpha = 0.8 * shown / largest
                axes.imshow(
                    np.zeros_like(shown),
                    color,
                    alpha=alpha,
                    extent=extent,
                )
