"""Sizes that suit a small corpus: vocabulary, batch, steps and warm-up follow from its text."""

import dataclasses
import math
import sys
from collections.abc import Collection, Sequence
from typing import Any

from jaxformer.config import Config, DataConfig, check_kind, data_section
from jaxformer.data.bpe import largest_vocabulary, suitable_vocabulary
from jaxformer.data.corpus import VerifiedCorpus, open_corpus
from jaxformer.data.held_out import hold_out
from jaxformer.errors import UserError
from jaxformer.kinds import TRANSLATION

_MOST_PIECES = 8000
_CHARACTERS_PER_TOKEN = 3  # of English and German with such a vocabulary
_BATCHES_PER_EPOCH, _BATCH_SIZES = 25, (1024, 8192)
_EPOCHS, _MOST_STEPS = 60, 4000
_WARMUP = 0.05


def fit_to_corpus(config: Config, given: Collection[str] = ()) -> Config:
    """Returns a config whose sizes follow from the size of its training text, and logs them.

    Args:
      config: A config of sentence pairs. The training text is read.
      given: Names of fields that keep their values, such as "training.steps".

    Raises:
      UserError: The text is missing, malformed or empty, or not of sentence pairs.
    """
    check_kind(config, TRANSLATION)
    data, training = data_section(config, DataConfig), config.training
    corpus = VerifiedCorpus(hold_out(open_corpus(data), data.train, data.valid))
    texts = [text for pair in corpus.pairs(data.train) for text in pair]
    if not (characters := sum(map(len, texts))):
        raise UserError(f"{data.train}: expected sentence pairs, got none")
    lines = [f"{data.train}: {len(texts) // 2:,} training pairs, {characters:,} characters; hence"]
    sections: dict[str, dict[str, Any]] = {"model": {}, "data": {}, "training": {}}

    def choose(name: str, value: int, reason: str) -> int:
        section, _, field = name.partition(".")
        if name in given:
            return getattr(getattr(config, section), field)
        lines.append(f"  {name}={value}: {reason}")
        return sections[section].setdefault(field, value)

    if data.tokenizer is None and training.init_from is None:
        choose("model.vocab_size", *_vocabulary(texts, characters, len(data.symbols())))
    tokens = characters / _CHARACTERS_PER_TOKEN / 2
    size = 2 ** round(math.log2(tokens / _BATCHES_PER_EPOCH))
    size = min(max(size, data.max_length, _BATCH_SIZES[0]), _BATCH_SIZES[1])
    batches = tokens / min(size, tokens)
    reason = f"{batches:.0f} batches an epoch of about {tokens:,.0f} tokens per side"
    size = choose("data.tokens_per_batch", size, reason)
    steps = max(20, min(math.ceil(_EPOCHS * tokens / min(size, tokens)), _MOST_STEPS))
    reason = f"{steps / (tokens / min(size, tokens)):.0f} epochs, at most {_MOST_STEPS:,} steps"
    steps = choose("training.steps", steps, reason)
    warmup = max(1, round(_WARMUP * steps))
    choose("training.warmup_steps", warmup, f"{_WARMUP:.0%} of the steps")
    if not {"training.eval_every", "training.checkpoint_every"}.intersection(given):
        every = choose("training.eval_every", math.ceil(steps / 5), "five validations")
        choose("training.checkpoint_every", every, "a checkpoint at each validation")
        choose("training.log_every", math.ceil(every / 5), "five reports between validations")
    print(*lines, sep="\n", file=sys.stderr)
    changed = ((name, getattr(config, name), values) for name, values in sections.items())
    return dataclasses.replace(config, **{n: dataclasses.replace(s, **v) for n, s, v in changed})


def _vocabulary(texts: Sequence[str], characters: int, symbols: int) -> tuple[int, str]:
    """Returns a vocabulary size, and the reason."""
    wanted = min(suitable_vocabulary(characters), _MOST_PIECES)
    largest, smallest = largest_vocabulary(texts, symbols)
    size = max(min(wanted, largest // 2), smallest)
    if size == wanted:
        return size, f"grows with the root of the characters, up to {_MOST_PIECES:,}"
    return size, f"the text allows {smallest:,} to {largest:,}; many would be whole sentences"
