"""Force-decoding against the product of softmax probabilities in float64."""

import functools

import jax
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.data.tokenizer import BOS
from jaxformer.inference import members, pair_scores
from jaxformer.inference.forced_pass import PairBatch, batch_pairs, pad_pairs
from jaxformer.inference.members import Ensemble, Member
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.models.transformer import Transformer

CONFIG = ModelConfig(
    vocab_size=23,
    d_model=8,
    d_ff=16,
    num_heads=2,
    num_layers=1,
    max_length=40,
)
OTHER = ModelConfig(
    vocab_size=23,
    d_model=4,
    d_ff=8,
    num_heads=1,
    num_layers=1,
    max_length=50,
)
PAIRS = [
    ([5, 6, 1], [7, 8, 9, 1]),
    ([4, 4, 1], [5, 5, 8, 1]),
    ([9] * 30 + [1], [3, 1]),
    ([7] * 30 + [1], [2, 1]),
]


@functools.cache
def parameters(seed, config=CONFIG):
    random = np.random.default_rng(seed)

    def draw(leaf):
        return random.normal(scale=0.7, size=leaf.shape).astype(np.float32)

    return jax.tree.map(draw, abstract_params(config))


@functools.cache
def model(config):
    return jax.jit(Transformer(config).apply)


def probabilities(params, source, target, config=CONFIG):
    """Returns the probability of each target token, in float64, without padding or batching."""
    src = np.array([source])
    tgt_in = np.array([[BOS, *target[:-1]]])
    [logits] = model(config)({"params": params}, src, tgt_in)  # [T, V]

    exps = np.exp(np.asarray(logits, np.float64))
    softmax = exps / exps.sum(axis=1, keepdims=True)
    return softmax[range(len(target)), target]


log_probabilities = jax.jit(pair_scores.log_probabilities)


def scored(models, tokens_per_batch):
    result = np.full(len(PAIRS), np.nan)
    for batch in batch_pairs(PAIRS, CONFIG.max_length, tokens_per_batch):
        padded = pad_pairs([PAIRS[number] for number in batch.numbers], batch.shape)
        rows = log_probabilities(models, padded)
        real_rows = np.asarray(rows)[: len(batch.numbers)]
        result[batch.numbers] = real_rows
    return result


def test_log_probability_equals_the_formula():
    params = parameters(0)
    expected = []
    for source, target in PAIRS:
        log_probs = np.log(probabilities(params, source, target))  # [T]
        expected.append(log_probs.sum())
    assert np.ptp(expected) > 5

    model = Ensemble((Member(Transformer(CONFIG), params),))
    result = scored(model, tokens_per_batch=1)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_an_ensemble_averages_probabilities_token_by_token(monkeypatch):
    # Chunks of nine tokens do not divide the batch of 16 times 32 evenly.
    monkeypatch.setattr(members, "_LOGITS_AT_ONCE", 9 * CONFIG.vocab_size)
    log_probabilities.clear_cache()
    models = Ensemble(
        (
            Member(Transformer(CONFIG), parameters(0, CONFIG)),
            Member(Transformer(CONFIG), parameters(1, CONFIG)),
            Member(Transformer(OTHER), parameters(2, OTHER)),
        )
    )

    expected = []
    for source, target in PAIRS:
        each = [probabilities(m.params, source, target, config=m.config) for m in models]
        mean = np.mean(each, axis=0)  # [T]
        expected.append(np.log(mean).sum())

    result = scored(models, tokens_per_batch=4096)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    log_probabilities.clear_cache()


def test_logits_of_a_batch_are_never_in_memory_at_once():
    """The logits of 64 x 64 tokens with a vocabulary of 37,000 would take 606 MB."""
    config = ModelConfig(d_model=8, d_ff=8, num_heads=1, num_layers=1, max_length=64)
    member = Member(Transformer(config), abstract_params(config))
    models = Ensemble((member,))
    tokens = jax.ShapeDtypeStruct((64, 64), np.int32)

    lowered = log_probabilities.lower(models, PairBatch(tokens, tokens, tokens))
    compiled = lowered.compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 150e6


def without_padding(row):
    return row[row != 0].tolist()


@pytest.mark.parametrize(
    "lengths",
    [
        [(0, 3), (3, 0), (0, 0)],
        [(5, 900), (900, 5), (0, 4), (17, 16), (64, 65), (1000, 1000)],
        [(n, 1001 - n) for n in range(1, 1000)],
        [(3, 4)] * 500,
    ],
)
def test_every_pair_with_two_sides_is_in_exactly_one_batch(lengths):
    pairs = [([3] * source, [4] * target) for source, target in lengths]
    seen = []
    shapes = set()
    for each in batch_pairs(pairs, 1000, 4096):
        numbers = each.numbers
        shape = each.shape
        batch = pad_pairs([pairs[number] for number in numbers], shape)
        if len(batch.src) > 1:
            assert batch.src.size <= 4096

        for row, number in enumerate(numbers):
            source, target = pairs[number]
            assert without_padding(batch.src[row]) == source
            assert without_padding(batch.tgt_out[row]) == target
            assert without_padding(batch.tgt_in[row]) == [BOS, *target[:-1]]

        seen += numbers
        shapes.add(batch.src.shape)

    with_two_sides = [n for n, pair in enumerate(lengths) if all(pair)]
    assert sorted(seen) == with_two_sides
    assert len(shapes) <= 14
