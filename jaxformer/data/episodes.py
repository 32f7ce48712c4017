"""Sequences of texts, pictures, observations and actions, as Gato reads them (Reed et al. 2022).

An :class:`Items` is one sequence: a text, a picture with its caption, or an episode. An item is a
token or a patch of a picture. The order of a timestep is as in section 2.1: texts, pictures, and
tensors by key, then a separator, then the actions. :func:`make_rows` arranges sequences in rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Num, Shaped, UInt8

from jaxformer.data.mu_law import NUM_BINS, mu_law, to_bins
from jaxformer.data.tokenizer import BOS
from jaxformer.errors import UserError

ACTION = -1  # the local position that separators and all actions share


class TokenIds(NamedTuple):
    """The ids of all tokens, given the size of the vocabulary of texts.

    Ids below 1,024 are also discrete numbers. The bins of continuous numbers follow the texts, and
    the separator is last.
    """

    vocab_size: int

    @property
    def first_bin(self) -> int:
        return max(self.vocab_size, NUM_BINS)

    @property
    def separator(self) -> int:
        return self.first_bin + NUM_BINS

    @property
    def count(self) -> int:
        return self.separator + 1

    def of_observation(self, values: Num[np.ndarray, "..."]) -> Int[np.ndarray, " n"]:
        """Returns the tokens of a tensor, in row-major order; floats are compressed by mu-law."""
        values = np.asarray(values).reshape(-1)
        is_discrete = values.dtype.kind in "iub"
        if is_discrete:
            return _check_discrete(values)

        compressed = mu_law(values.astype(float))
        return self.first_bin + to_bins(compressed)

    def of_actions(self, values: Num[np.ndarray, "..."]) -> Int[np.ndarray, " n"]:
        """Returns the tokens of actions; floats are from -1 to 1 and not compressed."""
        values = np.asarray(values).reshape(-1)
        is_discrete = values.dtype.kind in "iub"
        if is_discrete:
            return _check_discrete(values)

        is_inside = np.abs(values) <= 1
        if not is_inside.all():
            outside = values[~is_inside]
            raise UserError(f"expected actions from -1 to 1, got {outside[0]}")
        return self.first_bin + to_bins(values)


def _check_discrete(values: Num[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    is_known = (values >= 0) & (values < NUM_BINS)
    if not is_known.all():
        unknown = values[~is_known]
        raise UserError(f"expected discrete numbers from 0 to {NUM_BINS - 1}, got {unknown[0]}")
    return values.astype(np.int32)


class Items(NamedTuple):
    """A sequence of n items.

    Attributes:
      tokens: Id of a token, or number of a patch among the patches of all pictures.
      positions: Local position: index in the observation of a timestep, or :data:`ACTION`.
      is_patch: True for a patch.
      is_predicted: True for what the model learns to predict: tokens of texts, and actions.
      pictures: The pictures whose patches are among the items.
    """

    tokens: Int[np.ndarray, " n"]
    positions: Int[np.ndarray, " n"]
    is_patch: Bool[np.ndarray, " n"]
    is_predicted: Bool[np.ndarray, " n"]
    pictures: Sequence[UInt8[np.ndarray, "Y X C"]] = ()

    def part(self, start: int, end: int) -> "Items":
        """Returns a part of a sequence without pictures."""
        assert not self.pictures, "patches are numbered from the first picture on"
        return Items(
            tokens=self.tokens[start:end],
            positions=self.positions[start:end],
            is_patch=self.is_patch[start:end],
            is_predicted=self.is_predicted[start:end],
        )

    def split(self, size: int) -> list["Items"]:
        """Returns parts of ``size`` items of a sequence without pictures; the last may be short."""
        starts = range(0, len(self.tokens), size)
        return [self.part(start, start + size) for start in starts]


def tokens_of(ids: Sequence[int] | Shaped[np.ndarray, " n"], *, is_predicted: bool) -> Items:
    """Returns tokens at the local positions 0, 1, ..."""
    tokens = np.asarray(ids, np.int32)
    count = len(tokens)
    return Items(
        tokens=tokens,
        positions=np.arange(count, dtype=np.int32),
        is_patch=np.zeros(count, bool),
        is_predicted=np.full(count, is_predicted),
    )


def patches_of(picture: UInt8[np.ndarray, "Y X C"], patch_size: int) -> Items:
    """Returns the patches of a picture, row by row."""
    height, width, _ = picture.shape
    rows = height // patch_size
    columns = width // patch_size
    count = rows * columns

    index = np.arange(count, dtype=np.int32)
    return Items(
        tokens=index,
        positions=index,
        is_patch=np.ones(count, bool),
        is_predicted=np.zeros(count, bool),
        pictures=[picture],
    )


def join(parts: Sequence[Items], *, in_one_timestep: bool = False) -> Items:
    """Returns sequences one after another.

    In one timestep, local positions continue from one to the next; otherwise, each begins again.
    """
    tokens = []
    positions = []
    pictures = []
    patch_count = np.int32(0)
    first_position = 0
    for part in parts:
        # Patches are numbered through; the numbers of tokens stay.
        tokens.append(part.tokens + patch_count * part.is_patch)
        patch_count += part.is_patch.sum(dtype=np.int32)

        positions.append(part.positions + first_position)
        if in_one_timestep:
            first_position += len(part.tokens)

        pictures += part.pictures

    return Items(
        tokens=np.concatenate(tokens),
        positions=np.concatenate(positions),
        is_patch=np.concatenate([part.is_patch for part in parts]),
        is_predicted=np.concatenate([part.is_predicted for part in parts]),
        pictures=pictures,
    )


def caption(
    picture: UInt8[np.ndarray, "Y X C"],
    ids: Sequence[int],
    patch_size: int,
) -> Items:
    """Returns a picture, the beginning of sentence and a caption, which are one timestep.

    Departs from the paper's order of a timestep: the text is predicted from the picture, so that it
    comes last.
    """
    patches = patches_of(picture, patch_size)
    begin = tokens_of([BOS], is_predicted=False)
    text = tokens_of(ids, is_predicted=True)
    return join([patches, begin, text], in_one_timestep=True)


def timestep(
    ids: TokenIds,
    *,
    texts: Sequence[Sequence[int]] = (),
    pictures: Sequence[UInt8[np.ndarray, "Y X C"]] = (),
    tensors: Mapping[str, Num[np.ndarray, "..."]],
    actions: Num[np.ndarray, "..."],
    patch_size: int = 1,
) -> Items:
    """Returns a timestep of an episode: its observation, a separator and its actions."""
    parts = []
    for text in texts:
        parts.append(tokens_of(text, is_predicted=True))
    for picture in pictures:
        parts.append(patches_of(picture, patch_size))
    for _, values in sorted(tensors.items()):
        tokens = ids.of_observation(values)
        parts.append(tokens_of(tokens, is_predicted=False))
    observation = join(parts, in_one_timestep=True)

    acted = [ids.separator, *ids.of_actions(actions)]
    positions = np.full(len(acted), ACTION, np.int32)
    separator_and_actions = tokens_of(acted, is_predicted=True)._replace(positions=positions)
    separator_and_actions.is_predicted[0] = False  # the separator
    return join([observation, separator_and_actions])


def episode(
    ids: TokenIds,
    tensors: Mapping[str, Num[np.ndarray, "T ..."]],
    actions: Num[np.ndarray, "T ..."],
) -> Items:
    """Returns timesteps without texts and pictures, one after another; see :func:`timestep`."""
    steps = len(actions)
    observed = []
    for _, values in sorted(tensors.items()):
        observation = ids.of_observation(values)
        observed.append(observation.reshape(steps, -1))
    separators = np.full((steps, 1), ids.separator)
    acted = ids.of_actions(actions).reshape(steps, -1)
    tokens = np.concatenate([*observed, separators, acted], axis=1)  # [T, size of a timestep]

    # All timesteps have the same positions, and predict the same items.
    _, size = tokens.shape
    _, num_actions = acted.shape
    first_action = size - num_actions
    separator = first_action - 1
    index = np.arange(size)
    positions = np.where(index >= separator, ACTION, index)
    is_action = index >= first_action
    return Items(
        tokens=tokens.reshape(-1).astype(np.int32),
        positions=np.tile(positions, steps).astype(np.int32),
        is_patch=np.zeros(tokens.size, bool),
        is_predicted=np.tile(is_action, steps),
    )


class Rows(NamedTuple):
    """Rows of a batch, each of several sequences.

    Attributes:
      tokens, positions, is_patch: As in :class:`Items`.
      segments: n on the n-th sequence, 0 on padding.
      is_target: True for items that are predicted, from the items before them in their sequence.
      pictures: Pictures of each row, of zeros where it has fewer.
    """

    tokens: Int[np.ndarray, "B T"]
    positions: Int[np.ndarray, "B T"]
    is_patch: Bool[np.ndarray, "B T"]
    segments: Int[np.ndarray, "B T"]
    is_target: Bool[np.ndarray, "B T"]
    pictures: UInt8[np.ndarray, "B M Y X C"]


def make_rows(
    rows: Sequence[Sequence[Items]],
    length: int,
    *,
    max_pictures: int,
    image_shape: tuple[int, int, int],
) -> Rows:
    """Arranges the sequences of each row in a row of ``length`` items.

    The first item of a sequence is not a target, since nothing is before it.
    """
    count = len(rows)
    made = Rows(
        tokens=np.zeros((count, length), np.int32),
        positions=np.zeros((count, length), np.int32),
        is_patch=np.zeros((count, length), bool),
        segments=np.zeros((count, length), np.int32),
        is_target=np.zeros((count, length), bool),
        pictures=np.zeros((count, max_pictures, *image_shape), np.uint8),
    )

    for number, parts in enumerate(rows):
        if parts:
            _fill_row(made, number, parts)
    return made


def _fill_row(made: Rows, number: int, parts: Sequence[Items]) -> None:
    """Writes the sequences of a row into the arrays of a batch."""
    whole = join(parts)
    sizes = [len(part.tokens) for part in parts]
    end = sum(sizes)
    segments = np.arange(len(parts)) + 1

    made.tokens[number, :end] = whole.tokens
    made.positions[number, :end] = whole.positions
    made.is_patch[number, :end] = whole.is_patch
    made.segments[number, :end] = np.repeat(segments, sizes)
    made.is_target[number, :end] = whole.is_predicted

    starts = np.cumsum(sizes) - sizes
    made.is_target[number, starts] = False

    num_pictures = len(whole.pictures)
    if num_pictures:
        made.pictures[number, :num_pictures] = np.stack(whole.pictures)


def scale_patches(pixels: Any, patch_size: int) -> Any:
    """Returns pixels from 0 to 255 as a model takes them: from -1 to 1, over sqrt(patch_size).

    The pixels are an array of NumPy or JAX.

    >>> scale_patches(np.array([0, 255]), 16).tolist()
    [-0.25, 0.25]
    """
    return (pixels / 127.5 - 1) / patch_size**0.5


def draw_row(
    episodes: Sequence[Items],
    size: int,
    generator: np.random.Generator,
    *,
    steps: int,
    prompt_share: float,
) -> Items:
    """Returns consecutive timesteps of a random episode, sometimes after a prompt.

    A prompt is the first half of the timesteps, of an episode before this one. Half of the prompts
    are the end of their episode, the others begin anywhere (section 2.3).

    Args:
      episodes: Episodes of one task, all timesteps of ``size`` items.
      size: Number of items of a timestep.
      generator: Random numbers.
      steps: Number of timesteps.
      prompt_share: Share of results with a prompt.
    """
    number = int(generator.integers(len(episodes)))
    chosen = episodes[number]
    has_prompt = number > 0 and generator.random() < prompt_share
    if not has_prompt:
        return _window(chosen, size, steps, generator=generator)

    prompt_steps = steps // 2
    earlier = episodes[int(generator.integers(number))]
    is_end = generator.random() < 0.5
    if is_end:
        prompt = _window(earlier, size, prompt_steps, generator=None)
    else:
        prompt = _window(earlier, size, prompt_steps, generator=generator)

    rest = _window(chosen, size, steps - prompt_steps, generator=generator)
    return join([prompt, rest])


def _window(
    episode: Items,
    size: int,
    steps: int,
    *,
    generator: np.random.Generator | None,
) -> Items:
    """Returns consecutive timesteps of an episode; the last ones without a generator."""
    episode_steps = len(episode.tokens) // size
    last = max(0, episode_steps - steps)
    if generator is None:
        start = last
    else:
        start = int(generator.integers(last + 1))

    stop = start + steps
    return episode.part(start * size, stop * size)
