"""Sizes that suit a small corpus: vocabulary, batch, steps and warm-up follow from its text."""

import dataclasses
import math
import sys
from collections.abc import Collection
from typing import Any

from jaxformer.config import Config, DataConfig, check_kind, data_section
from jaxformer.data.bpe import estimate_tokens, possible_vocabularies, suitable_vocabulary
from jaxformer.data.held_out import training_pairs
from jaxformer.errors import UserError
from jaxformer.kinds import TRANSLATION

_MOST_PIECES, _BATCHES_PER_EPOCH = 8000, 25
_SMALLEST_BATCH, _LARGEST_BATCH = 1024, 8192
_EPOCHS, _MOST_STEPS, _WARMUP = 30, 4000, 0.05


def fit_to_corpus(config: Config, given: Collection[str] = ()) -> Config:
    """Returns a config whose sizes follow from the size of its training text, and logs them.

    The fields that are ``given``, such as "training.steps", keep their values.
    """
    check_kind(config, TRANSLATION)
    data = data_section(config, DataConfig)
    texts = [text for pair in training_pairs(data) for text in pair]
    if not (characters := len("".join(texts).strip())):
        raise UserError(f"{data.train}: expected sentence pairs, got none")
    lines = [f"{data.train}: {len(texts) // 2:,} training pairs, {characters:,} characters; hence"]
    changes: dict[str, dict[str, Any]] = {"model": {}, "data": {}, "training": {}}

    def choose(name: str, value: int, reason: str) -> int:
        section, _, field = name.partition(".")
        if name in given:
            return getattr(getattr(config, section), field)
        lines.append(f"  {name}={value}: {reason}")
        return changes[section].setdefault(field, value)

    smallest, largest = possible_vocabularies(texts, len(data.symbols()))
    size = config.model.vocab_size
    if data.tokenizer is None and config.training.init_from is None:
        size = max(min(suitable_vocabulary(characters), _MOST_PIECES, largest // 2), smallest)
        size = choose("model.vocab_size", size, f"{smallest:,} to {largest:,} are possible")
    tokens = estimate_tokens(texts, max(smallest, min(size, largest))) / 2
    size = 2 ** round(math.log2(tokens / _BATCHES_PER_EPOCH))
    size = min(max(size, data.max_length, _SMALLEST_BATCH), _LARGEST_BATCH)
    reason = f"about {tokens / size:.0f} batches an epoch, of {tokens:,.0f} tokens per side"
    batches = max(1.0, tokens / choose("data.tokens_per_batch", size, reason))
    steps = max(20, min(math.ceil(_EPOCHS * batches), _MOST_STEPS))
    steps = choose("training.steps", steps, f"{steps / batches:.0f} epochs")
    warmup = max(1, round(_WARMUP * steps))
    choose("training.warmup_steps", warmup, f"{_WARMUP:.0%} of the steps")
    if not {"training.eval_every", "training.checkpoint_every"}.intersection(given):
        every = choose("training.eval_every", math.ceil(steps / 5), "five validations")
        choose("training.checkpoint_every", every, "a checkpoint for each")
        choose("training.log_every", math.ceil(every / 5), "five reports for each")
    print(*lines, sep="\n", file=sys.stderr)
    sections = {name: getattr(config, name) for name in changes}
    changed = {name: dataclasses.replace(s, **changes[name]) for name, s in sections.items()}
    return dataclasses.replace(config, **changed)
