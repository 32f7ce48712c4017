"""Sizes that suit a small corpus: vocabulary, batch, steps and warm-up follow from its text."""

import math
from collections.abc import Collection, Sequence

from jaxformer.config import Config, DataConfig, check_kind, data_section
from jaxformer.data.bpe import estimate_tokens, possible_vocabularies, suitable_vocabulary
from jaxformer.data.held_out import training_pairs
from jaxformer.errors import UserError
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.tasks.choices import Choices

_MOST_PIECES = 8000
_BATCHES_PER_EPOCH = 25
# Tokens per side.
_SMALLEST_BATCH = 1024
_LARGEST_BATCH = 8192
_EPOCHS = 30
_FEWEST_STEPS = 20
_MOST_STEPS = 4000
# Fraction of the steps.
_WARMUP = 0.05


def fit_to_corpus(config: Config, given: Collection[str] = ()) -> Config:
    """Returns a config whose sizes follow from the size of its training text, and logs them.

    The fields that are ``given``, such as "training.steps", keep their values.
    """
    check_kind(config, TRANSLATION)
    data = data_section(config, DataConfig)
    texts = [text for pair in training_pairs(data) for text in pair]
    characters = len("".join(texts).strip())
    if not characters:
        raise UserError(f"{data.train}: expected sentence pairs, got none")

    choices = Choices(config, given)
    tokens = _choose_vocabulary(choices, config, texts, characters)
    batches = choose_batch(choices, data, tokens, largest=_LARGEST_BATCH)
    choose_steps(choices, batches, epochs=_EPOCHS)

    size = f"{len(texts) // 2:,} training pairs, {characters:,} characters"
    return choices.apply(f"{data.train}: {size}; hence")


def _choose_vocabulary(
    choices: Choices,
    config: Config,
    texts: Sequence[str],
    characters: int,
) -> float:
    """Chooses the size of a vocabulary that is learned; returns the tokens of each side."""
    data = data_section(config, DataConfig)
    smallest, largest = possible_vocabularies(texts, len(data.symbols()))

    size = config.model.vocab_size
    if data.tokenizer is None and config.training.init_from is None:
        # Half of the largest, since the rarest pieces would occur once.
        size = min(
            suitable_vocabulary(characters),
            _MOST_PIECES,
            largest // 2,
        )
        reason = f"{smallest:,} to {largest:,} are possible"
        size = choices.choose_value("model.vocab_size", max(size, smallest), reason)

    possible_size = max(smallest, min(size, largest))
    tokens = estimate_tokens(texts, possible_size)
    return tokens / 2


def choose_batch(
    choices: Choices,
    data: DataConfig,
    tokens: float,
    largest: int,
) -> float:
    """Chooses the size of batches by the tokens of an epoch; returns the number of batches."""
    size = 2 ** round(math.log2(tokens / _BATCHES_PER_EPOCH))
    size = max(size, data.max_length, _SMALLEST_BATCH)
    size = min(size, largest)

    batches = tokens / size
    reason = f"about {batches:.0f} batches an epoch, of {tokens:,.0f} tokens per side"
    size = choices.choose_value("data.tokens_per_batch", size, reason)
    return max(1.0, tokens / size)


def choose_steps(choices: Choices, batches: float, epochs: float) -> None:
    """Chooses the steps for a number of batches in an epoch, the warm-up and the reports."""
    steps = math.ceil(epochs * batches)
    steps = max(_FEWEST_STEPS, min(steps, _MOST_STEPS))
    rounded = f"{steps / batches:.0f}"
    reason = "1 epoch" if rounded == "1" else f"{rounded} epochs"
    steps = choices.choose_value("training.steps", steps, reason)

    warmup = max(1, round(_WARMUP * steps))
    choices.choose_value("training.warmup_steps", warmup, f"{_WARMUP:.0%} of the steps")

    choices.choose_reports(steps, per_validation=5)
