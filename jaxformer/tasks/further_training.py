"""Further training of a model on more pairs: layers from the model, the rest from the text."""

import dataclasses
from collections.abc import Collection, Sequence

from jaxformer.config import Config, DataConfig, check_kind, data_section
from jaxformer.data.bpe import estimate_tokens
from jaxformer.data.corpus import UNKNOWN_LANGUAGE, parse_mixture
from jaxformer.data.held_out import open_splits, parse_share
from jaxformer.errors import UserError
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.runs import processes
from jaxformer.tasks.choices import Choices
from jaxformer.tasks.initialization import named_tokenizer, read_initial_config
from jaxformer.tasks.small_corpus import choose_batch, choose_steps
from jaxformer.waits import log_stream

_EPOCHS = 10
_LARGEST_BATCH = 4096  # tokens per side
# Peak learning rates; docs/fine_tuning.md has scores of these and others.
_RATE_ALONE = 1e-3
_RATE_IN_MIXTURE = 2e-3
_RATE_OF_ADAPTERS = 1e-2
# Lines that are tokenized to estimate the tokens of a text.
_MEASURED_LINES = 20_000


def fit_to_model(config: Config, given: Collection[str] = ()) -> Config:
    """Returns a config that trains the model of ``training.init_from`` further, and logs it.

    The model section and the languages are the model's. The batch and the steps follow from the
    training text: ten epochs of it, or of the first corpus of a mixture, which the others
    accompany. The learning rate is higher for a mixture, and for low-rank adapters. The fields that
    are ``given``, such as "training.steps", keep their values.

    Raises:
      UserError: There is no such model, it does not translate, or there is no text.
    """
    check_kind(config, TRANSLATION)
    source = read_initial_config(config)
    if source.kind is not config.kind:
        raise UserError(
            f"training.init_from={config.training.init_from}: expected {config.kind.description}, "
            f"got {source.kind.description}"
        )
    config = _take_model(config, source, given)
    config = _take_languages(config, source, given)
    return _fit_to_text(config, given)


def _take_model(config: Config, source: Config, given: Collection[str]) -> Config:
    """Returns the config with the layers of a model."""
    changes = {"compute_dtype": config.model.compute_dtype}  # It may be quantized.
    for name in given:
        section, _, field = name.partition(".")
        if section == "model":
            changes[field] = getattr(config.model, field)

    known = {field.name for field in dataclasses.fields(source.model)}
    unknown = changes.keys() - known
    if unknown:
        raise UserError(
            f"training.init_from={config.training.init_from}: its model has no field "
            f"{min(unknown)}; leave out --config.model.{min(unknown)}"
        )
    model = dataclasses.replace(source.model, **changes)

    data = config.data
    if data.length_field and f"data.{data.length_field}" not in given:
        longest = min(getattr(data, data.length_field), model.max_length)
        data = dataclasses.replace(data, **{data.length_field: longest})
    return dataclasses.replace(config, model=model, data=data)


def _take_languages(config: Config, source: Config, given: Collection[str]) -> Config:
    """Returns the config with the languages of a model, if it names them."""
    if not isinstance(source.data, DataConfig) or UNKNOWN_LANGUAGE in source.data.languages:
        return config

    languages = {}
    for name in ("source_language", "target_language"):
        own = getattr(config.data, name)
        known = getattr(source.data, name)
        if f"data.{name}" not in given:
            languages[name] = known
        elif own != known and processes.is_primary():
            text = f"note: data.{name}={own}, but the model has learned {known} there"
            print(text, file=log_stream())
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **languages))


def _fit_to_text(config: Config, given: Collection[str]) -> Config:
    """Returns the config with batches, steps, a rate and reports that suit its text."""
    data = data_section(config, DataConfig)
    corpus = open_splits(data)
    weights = parse_mixture(data.train) or {data.train: 1}

    tokens = 0.0  # of each side, in an epoch of the mixture
    own_pairs = 0
    for name, weight in weights.items():
        texts = [text for pair in corpus.pairs(name) for text in pair]
        if not texts:
            raise UserError(f"{name}: expected sentence pairs, got none")
        own_pairs = own_pairs or len(texts) // 2
        tokens += weight * _count_tokens(texts, config) / 2

    is_shared = parse_share(data.valid) is not None
    if is_shared:
        next(corpus.pairs(data.valid), None)  # Refuses a text that is too small for this share.

    own, *_ = weights
    choices = Choices(config, given)
    batches = choose_batch(choices, data, tokens, largest=_LARGEST_BATCH)
    choose_steps(choices, batches, epochs=_EPOCHS / weights[own])
    _choose_rate(choices, config, is_mixture=len(weights) > 1)
    return choices.apply(f"{own}: {own_pairs:,} training pairs; hence")


def _choose_rate(choices: Choices, config: Config, *, is_mixture: bool) -> None:
    rate = _RATE_ALONE
    reason = "for one text; a higher one forgets more"
    if is_mixture:
        rate = _RATE_IN_MIXTURE
        reason = "for a mixture, which forgets less"
    if config.training.lora:
        rate = _RATE_OF_ADAPTERS
        reason = "for low-rank adapters"
    choices.choose_value("training.learning_rate", rate, reason)


def _count_tokens(texts: Sequence[str], config: Config) -> float:
    """Returns about how many tokens, with end-of-sentence, texts are for the tokenizer of a run."""
    found = named_tokenizer(config)
    if found is None:
        return estimate_tokens(texts, config.model.vocab_size)

    _, tokenizer = found
    sample = texts[:_MEASURED_LINES]
    encoded = tokenizer.encode_batch(sample)
    pieces = sum(map(len, encoded))
    return (pieces + len(sample)) * len(texts) / len(sample)
