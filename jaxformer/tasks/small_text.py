"""Sizes of a language model that suit a short text: vocabulary, row length, steps and reports."""

import math
from collections.abc import Collection

from jaxformer.config import Config, StreamConfig, check_kind, data_section
from jaxformer.data.bpe import possible_vocabularies, suitable_vocabulary
from jaxformer.data.documents import lines_of
from jaxformer.data.stream import short_lines
from jaxformer.data.tokenizer import SPECIAL_PIECES
from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
from jaxformer.tasks.choices import Choices
from jaxformer.tasks.language_modeling import Texts

_MOST_PIECES = 4000
# Characters of an average BPE token of so few pieces.
_CHARACTERS_PER_PIECE = 3
# Rows begin anywhere in the training text, which has this many times their length, or more.
_ROWS_IN_TEXT = 4
_EPOCHS = 15
_FEWEST_STEPS = 200
_MOST_STEPS = 1000
_WARMUP = 10


def fit_to_text(config: Config, given: Collection[str] = ()) -> Config:
    """Returns a config whose sizes follow from its text, and logs them.

    The fields that are ``given``, such as "training.steps", keep their values.
    """
    check_kind(config, LANGUAGE_MODELING)
    data = data_section(config, StreamConfig)
    if data.has_token_ids:
        return config  # Their tokenizer determines the vocabulary.

    texts = Texts.read(data)
    choices = Choices(config, given)
    _choose_vocabulary(choices, config, texts)
    _choose_sizes(choices, data, texts)
    return choices.apply(_title(data, texts))


def fit_vocabulary(config: Config, given: Collection[str] = ()) -> Config:
    """Returns a config whose vocabulary follows from its text, and logs it."""
    data = data_section(config, StreamConfig)
    if data.has_token_ids:
        return config

    texts = Texts.read(data)
    choices = Choices(config, given)
    _choose_vocabulary(choices, config, texts)
    return choices.apply(_title(data, texts))


def _title(data: StreamConfig, texts: Texts) -> str:
    return f"{data.file}: {len(texts.text):,} characters; hence"


def _choose_vocabulary(
    choices: Choices,
    config: Config,
    texts: Texts,
) -> None:
    """Chooses the size of a vocabulary that is learned from the text."""
    data = data_section(config, StreamConfig)
    if data.tokenizer is not None or config.training.init_from is not None:
        return

    if data.tokens == "characters":
        characters = len(texts.characters(data.separator))
        size = len(SPECIAL_PIECES) + characters
        reason = f"its {characters} characters, and special tokens"
        choices.choose_value("model.vocab_size", size, reason)
        return

    learned = texts.training_text(data)
    lines = []
    for line in lines_of(learned):
        lines += short_lines(line)

    # Line breaks and spaces may be tokens of their own.
    smallest, largest = possible_vocabularies(lines, symbols=2)
    size = min(
        suitable_vocabulary(len(learned)),
        _MOST_PIECES,
        largest // 2,
    )
    reason = f"{smallest:,} to {largest:,} are possible"
    choices.choose_value("model.vocab_size", max(size, smallest), reason)


def _choose_sizes(
    choices: Choices,
    data: StreamConfig,
    texts: Texts,
) -> None:
    """Chooses the length of rows, and the numbers of steps."""
    tokens = len(texts.training_text(data))
    if data.tokens == "bpe" or data.tokenizer is not None:
        tokens //= _CHARACTERS_PER_PIECE
    tokens = max(1, tokens)

    length = min(data.length, tokens // _ROWS_IN_TEXT)
    length = max(1, length)
    length = choices.choose_value("data.length", length, f"about {tokens:,} tokens to train on")

    epoch = max(1.0, tokens / (data.rows * length))
    steps = math.ceil(_EPOCHS * epoch)
    steps = min(max(_FEWEST_STEPS, steps), _MOST_STEPS)
    steps = choices.choose_value("training.steps", steps, f"{steps / epoch:.0f} epochs")

    warmup = max(1, min(_WARMUP, steps // 2))
    choices.choose_value("training.warmup_steps", warmup, "the same for longer runs")

    choices.choose_reports(steps, per_validation=4)
