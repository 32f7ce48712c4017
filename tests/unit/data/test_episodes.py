"""Gato's tokens by the paper's formulas, by round trips and by brute force."""

import math

import numpy as np
import pytest

from jaxformer.data import episodes, mu_law
from jaxformer.data.episodes import ACTION, Items, TokenIds
from jaxformer.errors import UserError

IDS = TokenIds(32_000)
SHAPE = (4, 4, 1)


def picture(seed, shape=SHAPE):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def test_mu_law_is_the_paper_s_formula():
    for x in (-1000.0, -256.0, -3.0, -0.01, 0.0, 1e-6, 0.5, 1.0, 255.0, 257.0):
        expected = math.copysign(math.log(100 * abs(x) + 1) / math.log(100 * 256 + 1), x)
        expected = min(1.0, max(-1.0, expected))
        assert mu_law.mu_law(np.array(x)) == pytest.approx(expected, abs=1e-12)


def test_mu_law_is_inverted():
    x = np.linspace(-256, 256, 1001)
    compressed = mu_law.mu_law(x)
    expanded = np.sign(compressed) * (25_601.0 ** np.abs(compressed) - 1) / 100
    np.testing.assert_allclose(expanded, x, rtol=1e-9, atol=1e-12)


def test_bins_are_the_1024_intervals_of_equal_width():
    edges = np.linspace(-1, 1, 1025)
    x = np.random.default_rng(0).uniform(-1, 1, 500)
    for value, number in zip(x, mu_law.to_bins(x), strict=True):
        assert edges[number] <= value < edges[number + 1]

    centers = (edges[1:] + edges[:-1]) / 2
    np.testing.assert_array_equal(mu_law.to_bins(centers), np.arange(1024))
    assert mu_law.to_bins(np.array([-1.0, 1.0])).tolist() == [0, 1023]


def test_ids_are_the_paper_s():
    assert IDS.first_bin == 32_000
    assert IDS.separator == 33_024
    assert IDS.count == 33_025
    assert IDS.of_observation(np.array([[-300.0], [300.0]])).tolist() == [32_000, 33_023]
    assert IDS.of_observation(np.array([3, 0])).tolist() == [3, 0]
    assert IDS.of_actions(np.array([1023])).tolist() == [1023]

    # Actions are not compressed: 0.5 is three quarters of the way from -1 to 1.
    assert IDS.of_actions(np.array([0.5])).tolist() == [32_000 + 768]
    assert IDS.of_observation(np.array([0.5])).tolist() == [
        32_000 + math.floor((math.log(51) / math.log(25_601) + 1) / 2 * 1024)
    ]

    # Bins never share ids with discrete numbers.
    assert TokenIds(50).first_bin == 1024


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: IDS.of_actions(np.array([0.0, -1.5])), "actions from -1 to 1, got -1.5"),
        (lambda: IDS.of_actions(np.array([np.nan])), "actions from -1 to 1, got nan"),
        (lambda: IDS.of_actions(np.array([1024])), "numbers from 0 to 1023, got 1024"),
        (lambda: IDS.of_observation(np.array([-1])), "numbers from 0 to 1023, got -1"),
    ],
)
def test_numbers_without_a_token_are_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_a_timestep_is_text_pictures_tensors_by_key_separator_and_actions():
    found = episodes.timestep(
        IDS,
        texts=[[7, 8]],
        pictures=[picture(0), picture(1)],
        tensors={"b": np.array([5]), "a": np.array([[1, 2], [3, 4]])},
        actions=np.array([9, 6]),
        patch_size=2,
    )
    # Two pictures of four patches each, which are numbered through.
    assert found.tokens.tolist() == [7, 8, *range(8), 1, 2, 3, 4, 5, 33_024, 9, 6]
    assert found.positions.tolist() == [*range(15), ACTION, ACTION, ACTION]
    assert found.is_patch.tolist() == [False] * 2 + [True] * 8 + [False] * 8
    assert found.is_predicted.tolist() == [True] * 2 + [False] * 14 + [True] * 2
    assert len(found.pictures) == 2


def test_an_episode_is_its_timesteps():
    rng = np.random.default_rng(0)
    tensors = {"b": rng.normal(size=(5, 2, 2)), "a": rng.integers(0, 9, (5, 3))}
    actions = rng.uniform(-1, 1, (5, 2))
    found = episodes.episode(IDS, tensors, actions)

    steps = []
    for number, action in enumerate(actions):
        own = {name: values[number] for name, values in tensors.items()}
        steps.append(episodes.timestep(IDS, tensors=own, actions=action))
    expected = episodes.join(steps)
    for name in ("tokens", "positions", "is_patch", "is_predicted"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_a_caption_follows_its_picture():
    found = episodes.caption(picture(0), [5, 1], 2)
    assert found.tokens.tolist() == [0, 1, 2, 3, 2, 5, 1]
    assert found.positions.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert found.is_predicted.tolist() == [False] * 5 + [True] * 2


def test_rows_hold_sequences_one_after_another():
    text = episodes.tokens_of([5, 6, 1], is_predicted=True)
    first = episodes.caption(picture(0), [7, 1], 2)
    second = episodes.caption(picture(1), [8, 1], 2)
    rows = episodes.make_rows(
        [[first, text, second], []],
        20,
        max_pictures=3,
        image_shape=SHAPE,
    )

    tokens = [0, 1, 2, 3, 2, 7, 1, 5, 6, 1, 4, 5, 6, 7, 2, 8, 1, 0, 0, 0]
    assert rows.tokens.tolist() == [tokens, [0] * 20]
    assert rows.segments[0].tolist() == [1] * 7 + [2] * 3 + [3] * 7 + [0] * 3
    targets = np.flatnonzero(rows.is_target[0])
    assert targets.tolist() == [5, 6, 8, 9, 15, 16]  # nothing precedes the first token of the text
    np.testing.assert_array_equal(rows.pictures[0, 1], picture(1))
    assert not rows.pictures[0, 2].any()
    assert not rows.segments[1].any()


def numbered_episode(number, steps):
    """An episode whose timesteps have two items: its number, and the timestep."""
    tokens = np.stack([np.full(steps, number), np.arange(steps)], axis=1).reshape(-1)
    filled = np.ones(2 * steps, bool)
    return Items(tokens.astype(np.int32), tokens, ~filled, filled)


def test_prompts_are_of_earlier_episodes_and_half_of_them_are_ends():
    steps = 6
    all_episodes = [numbered_episode(number, 20 + number) for number in range(5)]
    prompted = 0
    at_end = 0
    for seed in range(2000):
        generator = np.random.default_rng(seed)
        row = episodes.draw_row(all_episodes, 2, generator, steps=steps, prompt_share=0.25)
        numbers, times = row.tokens.reshape(-1, 2).T
        assert len(numbers) == steps

        halves = [numbers[:3], numbers[3:]]
        if len(set(numbers)) == 1:
            assert (np.diff(times) == 1).all()
            continue
        prompted += 1
        prompt, own = (half[0] for half in halves)
        assert prompt < own
        assert all(len(set(half)) == 1 for half in halves)
        at_end += times[2] == 19 + prompt

    # Four of five episodes have an earlier one: the share is 0.2. Half of the prompts and a few
    # of the others are ends.
    assert prompted / 2000 == pytest.approx(0.2, abs=0.03)
    assert at_end / prompted == pytest.approx(0.5 + 0.5 / 19, abs=0.09)


def test_a_short_episode_is_taken_as_a_whole():
    generator = np.random.default_rng(0)
    row = episodes.draw_row([numbered_episode(0, 3)], 2, generator, steps=8, prompt_share=1.0)
    assert row.tokens.tolist() == [0, 0, 0, 1, 0, 2]


def test_pixels_are_divided_by_the_root_of_the_patch_size():
    pixels = picture(0)
    expected = (pixels.astype(float) / 255 * 2 - 1) / 4
    np.testing.assert_allclose(episodes.scale_patches(pixels, 16), expected, atol=1e-12)
