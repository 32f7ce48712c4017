"""The data of a multi-task agent: numerals, digits with captions, and a pole to balance.

All three are generated, or come with scikit-learn, and need no download.
"""

import dataclasses
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from jaxformer.data import cart_pole
from jaxformer.data.corpus import DataSection
from jaxformer.data.episodes import Items, TokenIds, caption, episode, tokens_of
from jaxformer.data.images import ImagesConfig, read_images
from jaxformer.data.numerals import numbers_in, spell_english
from jaxformer.data.tokenizer import EOS, Vocabulary
from jaxformer.errors import UserError
from jaxformer.fields import check_values, setting

TASKS = ("text", "caption", "control")
TIMESTEP = 6  # items of a timestep of control: four numbers, the separator and the action
_EPISODE_SEED = 0  # first states; validation has the next
_LONGEST_CAPTION = len("seven") + 2  # BOS, letters and EOS


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentConfig(DataSection):
    """Three tasks for one model: texts, captions of pictures, and control.

    Texts are numbers in digits and in words, captions the words for scikit-learn's digits. Episodes
    are of a linear controller that balances a pole on a cart.

    Attributes:
      corpus: "agent"; distinguishes this config from
        :class:`~jaxformer.data.corpus.DataConfig`.
      text_rows: Rows of texts in a global batch; also ``caption_rows``, of pictures with captions,
        and ``control_rows``, of parts of episodes. 0 leaves a task out.
      max_length: Items of a row. A row has as many texts, or captions, as certainly fit.
      numbers_below: The numbers in texts are below this one, at most a million.
      episodes: Number of episodes to train on.
      noise: Share of timesteps whose push is random; the controller's action is learned.
      prompt_share: Share of the rows of control that begin with a part of an earlier episode.
    """

    corpus: Literal["agent"] = "agent"
    text_rows: int = setting(16, "not negative")
    caption_rows: int = setting(16, "not negative")
    control_rows: int = setting(16, "not negative")
    max_length: int = setting(96, "positive")
    numbers_below: int = setting(10_000, "positive")
    episodes: int = setting(200, "positive")
    noise: float = setting(0.1, "fraction")
    prompt_share: float = setting(0.25, "fraction")
    separator: ClassVar[str] = "</s>"  # Texts end, so that generated ones can.

    def __post_init__(self) -> None:
        check_values(self, "data")
        self.check_paths("tokenizer")

        if not self.rows:
            raise UserError(
                "data.text_rows, data.caption_rows or data.control_rows must be above 0: got 0 each"
            )

        shortest = 2 * TIMESTEP
        if self.max_length < shortest:
            raise UserError(
                f"data.max_length must be at least {shortest}, a prompt and a timestep: got "
                f"{self.max_length}"
            )

    @property
    def rows(self) -> int:
        """Rows of a global batch."""
        return self.text_rows + self.caption_rows + self.control_rows

    @property
    def batch(self) -> tuple[str, str]:
        return (
            f"{self.rows} rows of {self.max_length} items",
            "data.text_rows, data.caption_rows, data.control_rows or data.max_length",
        )


class Examples(NamedTuple):
    """The examples of a split, of all tasks."""

    text: list[Items]
    caption: list[Items]
    control: list[Items]


def texts_of(split: str, below: int) -> list[str]:
    """Returns numbers in digits and in words, such as "247 two hundred and forty-seven"."""
    texts = []
    for number in numbers_in(split):
        if number < below:
            texts.append(f"{number} {spell_english(number)}")
    return texts


def read_examples(
    data: AgentConfig,
    tokenizer: Vocabulary,
    *,
    patch_size: int,
    training: bool,
) -> Examples:
    """Returns the examples to train on, or the ones for validation, which are others."""
    return Examples(
        text=_read_texts(data, tokenizer, training=training),
        caption=_read_captions(tokenizer, patch_size, training=training),
        control=_play_episodes(data, tokenizer.vocab_size, training=training),
    )


def _read_texts(data: AgentConfig, tokenizer: Vocabulary, *, training: bool) -> list[Items]:
    split = "train" if training else "held_out"
    texts = texts_of(split, data.numbers_below)

    items = []
    for ids in tokenizer.encode_batch(texts):
        tokens = [*ids, EOS]
        items.append(tokens_of(tokens, is_predicted=True))
    return items


def _read_captions(tokenizer: Vocabulary, patch_size: int, *, training: bool) -> list[Items]:
    """Returns scikit-learn's digits with their words."""
    split = "train" if training else "test"
    pictures, labels = read_images(ImagesConfig(corpus="digits"), split)

    captions = []
    for picture, label in zip(pictures, labels, strict=True):
        word = spell_english(int(label))
        tokens = [*tokenizer.encode(word), EOS]
        captions.append(caption(picture, tokens, patch_size))
    return captions


def _play_episodes(data: AgentConfig, vocab_size: int, *, training: bool) -> list[Items]:
    """Returns episodes of the controller that balances the pole."""
    seed = _EPISODE_SEED
    count = data.episodes
    if not training:
        seed = _EPISODE_SEED + 1
        count = max(1, data.episodes // 10)
    states = cart_pole.first_states(seed, count)
    generator = np.random.default_rng(seed)
    played = cart_pole.play(states, data.noise, generator)

    ids = TokenIds(vocab_size)
    episodes = []
    for each in played:
        tensors = {"state": each.states}
        episodes.append(episode(ids, tensors, each.actions))
    return episodes


def examples_per_row(data: AgentConfig, examples: list[Items]) -> int:
    """Returns how many texts or captions certainly fit in a row."""
    longest = max(len(items.tokens) for items in examples)
    if longest > data.max_length:
        raise UserError(
            f"data.max_length must be at least {longest}, the longest example: got "
            f"{data.max_length}"
        )
    return data.max_length // longest


def pictures_per_row(data: AgentConfig, num_patches: int) -> int:
    """Returns the most pictures of a row; 0 without captions."""
    if not data.caption_rows:
        return 0
    longest = num_patches + _LONGEST_CAPTION
    return data.max_length // longest
