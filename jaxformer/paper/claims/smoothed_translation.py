"""BLEU and perplexity of small translators of numbers, by label smoothing."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.data.numerals import numbers_in, spell_chinese, spell_english
from jaxformer.data.tokenizer import BOS, EOS, PAD
from jaxformer.evaluation.bleu_report import corpus_bleu
from jaxformer.models.assembly import ModelConfig
from jaxformer.models.stepwise import step_fn
from jaxformer.models.transformer import Transformer
from jaxformer.paper.claims.small_runs import (
    Batch,
    Course,
    Experiment,
    Measure,
    Setting,
)
from jaxformer.search import BeamSearch

SMOOTHINGS = (0.0, 0.1, 0.2)
SEARCHES = {"greedy": BeamSearch(beam_size=1), "beam of 4": BeamSearch(beam_size=4)}
STEPS = (100, 150, 200)
# Symbols of the longest number in either language, with the end of the sentence.
LENGTH = 12
# Numbers to test on.
HELD_OUT = 500
# Ids of padding, and of the beginning and the end of a sentence.
SPECIAL = 3


class Pairs(NamedTuple):
    """Numbers in Chinese characters and in English words, with the end of the sentence."""

    source: Int[np.ndarray, "N T"]
    target: Int[np.ndarray, "N T"]


class Numbers:
    """Translate Chinese numbers to English ones, 二百零七 to "two hundred and seven".

    A row has the source, and then the target shifted right.
    """

    def train_rows(self, key: Array, rows: int) -> Batch:
        source, target = map(jnp.asarray, read_pairs("train"))
        chosen = jax.random.randint(key, (rows,), 0, len(source))
        return as_rows(source[chosen], target[chosen])

    def test_rows(self) -> Batch:
        source, target = map(jnp.asarray, read_pairs("held_out"))
        return as_rows(source, target)


def as_rows(source: Int[Array, "B T"], target: Int[Array, "B T"]) -> Batch:
    """Returns rows in which only the places of the target are scored."""
    before = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)
    tokens = jnp.concatenate([source, before], axis=1)
    targets = jnp.concatenate([jnp.full_like(source, PAD), target], axis=1)
    return Batch(tokens, targets, targets != PAD)


@functools.cache
def read_pairs(split: str) -> Pairs:
    """Returns the numbers of a split of the numerals corpus."""
    numbers = numbers_in(split)
    return Pairs(
        source=as_ids([list(spell_chinese(number)) for number in numbers]),
        target=as_ids([english_words(number) for number in numbers]),
    )


def english_words(number: int) -> list[str]:
    return spell_english(number).replace("-", " ").split()


@functools.cache
def symbols() -> list[str]:
    """Returns the characters and words of all numbers; the first has the id 3."""
    found = set()
    for number in (*range(1_001), 10_000):
        found.update(spell_chinese(number), english_words(number))
    return sorted(found)


def as_ids(sentences: list[list[str]]) -> Int[np.ndarray, "N T"]:
    ids = {symbol: SPECIAL + place for place, symbol in enumerate(symbols())}
    array = np.full((len(sentences), LENGTH), PAD, np.int32)
    for row, sentence in zip(array, sentences, strict=True):
        row[: len(sentence) + 1] = [*(ids[symbol] for symbol in sentence), EOS]
    return array


def as_text(ids: Int[np.ndarray, " T"]) -> str:
    """Returns the symbols of a sentence, with spaces between them."""
    names = symbols()
    return " ".join(names[each - SPECIAL] for each in ids if each >= SPECIAL)


class Translator(nn.Module):
    """A Transformer for rows of a source and a target."""

    config: ModelConfig

    def setup(self) -> None:
        self.transformer = Transformer(self.config)

    def __call__(self, tokens: Int[Array, "B L"]) -> Float[Array, "B L V"]:
        source, before = jnp.split(tokens, [LENGTH], axis=1)
        logits = self.transformer(source, before)
        return jnp.pad(logits, ((0, 0), (LENGTH, 0), (0, 0)))


CONFIG = ModelConfig(
    vocab_size=SPECIAL + len(symbols()),
    d_model=64,
    d_ff=256,
    num_heads=4,
    num_layers=2,
    dropout_rate=0.0,
    norm_position="pre",
    max_length=LENGTH,
)


def translate(params: PyTree) -> dict[str, Int[Array, "B T"]]:
    """Returns the translations of the unseen numbers by each search."""
    model = Transformer(CONFIG)
    params = params["transformer"]
    source = jnp.asarray(read_pairs("held_out").source)

    found = {}
    for name, search in SEARCHES.items():
        cache = model.apply(
            {"params": params},
            source,
            num_beams=search.beam_size,
            capacity=LENGTH,
            method="start",
        )
        limits = jnp.full(len(source), LENGTH)
        result = search(step_fn(model, params), cache, max_lengths=limits, capacity=LENGTH)
        found[name] = result.tokens[:, 0]
    return found


def bleu(search: str) -> Measure:
    """Returns the measure of the translations by a search."""

    def of_seeds(course: Course) -> Float[np.ndarray, " seeds"]:
        references = list(map(as_text, read_pairs("held_out").target))
        scores = []
        for translations in course.examined[search][:, -1]:
            hypotheses = list(map(as_text, translations))
            scores.append(corpus_bleu(hypotheses, references, target_language="en"))
        return np.array(scores)

    return Measure(f"BLEU, {search}", of_seeds, ".1f")


def by_smoothing(steps: int) -> dict[float, Setting]:
    settings = {}
    for smoothing in SMOOTHINGS:
        settings[smoothing] = Setting(
            network=Translator(CONFIG),
            task=Numbers(),
            steps=steps,
            rows=32,
            warmup=50,
            label_smoothing=smoothing,
            examine=translate,
        )
    return settings


SETTINGS = {f"{steps} steps": by_smoothing(steps) for steps in STEPS}

CLAIM = Experiment(
    about=(
        "Transformers translate numbers below a million from Chinese characters to English words; "
        f"{HELD_OUT} numbers that are not in training. Two layers, "
        f"d_model = {CONFIG.d_model}, no dropout; {SETTINGS['200 steps'][0.1].describe()}; or "
        "fewer steps, in which the learning rate falls faster."
    ),
    x_label="label smoothing",
    column="smoothing {}",
    settings=SETTINGS,
    measures=[
        Measure("perplexity of a word", lambda course: np.exp(course.test_loss[:, -1]), ".3f"),
        *map(bleu, SEARCHES),
    ],
    seeds=5,
    log_x=None,
).as_claim(
    "smoothed_translation",
    place=107,
    says="Label smoothing hurts perplexity and helps BLEU, here of small translators.",
)
