"""Rollout by enumerating all paths through the layers, and the panels of a drawing."""

import itertools

import numpy as np

from jaxformer.plots.image_attention import attention_rollout, draw_maps, patch_weights

WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(4), (3, 2, 4))  # layers, heads, queries


def test_rollout_sums_over_all_paths():
    layers = [(layer.mean(0) + np.eye(4)) / 2 for layer in WEIGHTS]
    expected = np.zeros((4, 4))
    for first, *path, last in itertools.product(range(4), repeat=4):  # from outputs to inputs
        nodes = (first, *path, last)
        steps = zip(layers[::-1], itertools.pairwise(nodes), strict=True)
        expected[first, last] += np.prod([layer[pair] for layer, pair in steps])
    np.testing.assert_allclose(attention_rollout(WEIGHTS), expected)


def test_weights_of_patches_are_the_class_tokens_or_the_mean():
    with_token, without = patch_weights(WEIGHTS, (1, 3)), patch_weights(WEIGHTS, (2, 2))
    np.testing.assert_array_equal(with_token, WEIGHTS[:, :, :1, 1:])
    np.testing.assert_allclose(without.reshape(3, 2, 4), WEIGHTS.mean(axis=2))


def test_each_map_has_a_panel_with_its_name(tmp_path, pages):
    images = np.zeros((2, 4, 6, 1), np.uint8)
    maps = [np.ones((1, 2, 3)), np.ones((2, 2, 3))]
    draw_maps(images, maps, [["a"], ["b", "c$"]], tmp_path / "x.png", ["first", "second"])
    titles = [[axes.get_title("left"), len(axes.images)] for axes in pages[0].axes]
    assert titles == [["first", 1], ["a", 2], ["", 0], ["second", 1], ["b", 2], ["c$", 2]]


def test_maps_without_weight_are_drawn(tmp_path):
    image, path = np.zeros((1, 4, 4, 3), np.uint8), tmp_path / "x.svg"
    draw_maps(image, [np.zeros((1, 2, 2))], [["a"]], path, [""])
    assert path.read_text().startswith("<?xml")
