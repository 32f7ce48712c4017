"""Rollout by enumerating all paths through the layers, and the panels of a drawing."""

import itertools

import numpy as np

from jaxformer.plots.image_attention import attention_rollout, draw_maps, patch_weights

RNG = np.random.default_rng(0)
WEIGHTS = RNG.dirichlet(np.ones(4), (3, 2, 4))  # [layers, heads, queries, keys]


def test_rollout_sums_over_all_paths():
    # The mean of the heads and the residual connection count half each.
    layers = []
    for layer in WEIGHTS:
        with_residual = layer.mean(0) + np.eye(4)
        layers.append(with_residual / 2)

    expected = np.zeros((4, 4))
    for path in itertools.product(range(4), repeat=4):  # from outputs to inputs
        probability = 1.0
        steps = itertools.pairwise(path)
        for layer, step in zip(reversed(layers), steps, strict=True):
            probability *= layer[step]
        start = path[0]
        end = path[-1]
        expected[start, end] += probability

    np.testing.assert_allclose(attention_rollout(WEIGHTS), expected)


def test_weights_of_patches_are_the_class_tokens_or_the_mean():
    # A grid of three patches leaves one token, the first, for the class.
    with_token = patch_weights(WEIGHTS, grid=(1, 3))
    np.testing.assert_array_equal(with_token, WEIGHTS[:, :, :1, 1:])

    without = patch_weights(WEIGHTS, grid=(2, 2))
    np.testing.assert_allclose(without.reshape(3, 2, 4), WEIGHTS.mean(axis=2))


def test_each_map_has_a_panel_with_its_name(tmp_path, pages):
    images = np.zeros((2, 4, 6, 1), np.uint8)
    maps = [np.ones((1, 2, 3)), np.ones((2, 2, 3))]
    names = [["a"], ["b", "c$"]]
    path = tmp_path / "x.png"

    draw_maps(images, maps, names, path=path, titles=["first", "second"])

    panels = []
    for axes in pages[0].axes:
        title = axes.get_title("left")
        panels.append((title, len(axes.images)))
    assert panels == [
        ("first", 1),
        ("a", 2),
        ("", 0),
        ("second", 1),
        ("b", 2),
        ("c$", 2),
    ]


def test_maps_without_weight_are_drawn(tmp_path):
    image = np.zeros((1, 4, 4, 3), np.uint8)
    no_weight = np.zeros((1, 2, 2))
    path = tmp_path / "x.svg"

    draw_maps(image, [no_weight], [["a"]], path=path, titles=[""])

    assert path.read_text().startswith("<?xml")
