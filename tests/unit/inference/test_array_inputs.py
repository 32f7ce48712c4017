"""Outputs for arrays, against the enumeration of all outputs by the model without a cache."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.inference.array_inputs import ArrayInput, ArrayInputs
from jaxformer.inference.decoder import Decoder
from jaxformer.inference.members import Ensemble, Member
from jaxformer.models.assembly import ModelConfig
from jaxformer.models.transformer import Transformer
from jaxformer.search import BeamSearch, Sampling

EOS = 1
BOS = 2
ALLOWED = (EOS, 3, 4, 5)
MAX_TOKENS = 3
FRAMES = 5
WIDTH = 8
LONGEST = 6
# All outputs, finished or cut: 1 + 3 + 9 and 27.
EXHAUSTIVE = BeamSearch(beam_size=40, penalty="none", unfinished="compete")
CONFIG = ModelConfig(
    vocab_size=6,
    d_model=WIDTH,
    d_ff=16,
    num_heads=2,
    num_layers=2,
    positions="learned",
    max_length=LONGEST,
)


class Describer(Transformer):
    """Attends to frames of its own width, scaled, instead of encoding tokens."""

    def start(self, frames, gain, *, num_beams=1, capacity):
        rows = jnp.zeros(len(frames), jnp.int32)
        return self.decoder.init_cache(
            rows,
            WIDTH,
            "float32",
            num_beams=num_beams,
            capacity=capacity,
            memory=frames * gain[:, None, None],
        )

    def read(self, frames, tokens):
        return self.logits(self.decode(tokens, frames, jnp.ones(frames.shape[:2], jnp.int32)))


MODEL = Describer(CONFIG)


@pytest.fixture(scope="module")
def members():
    tokens = np.ones((1, 2), np.int32)

    @jax.jit
    def make(key):
        params = MODEL.init(key, tokens, tokens)["params"]
        # Larger logits than at initialization, so that hypotheses differ.
        return jax.tree.map(lambda array: 2.5 * array, params)

    return [Member(MODEL, make(jax.random.key(seed))) for seed in (0, 1)]


@jax.jit
def log_probs_of(params, frames, tokens):
    logits: Any = MODEL.apply({"params": params}, frames, tokens, method="read")
    return jax.nn.log_softmax(logits)


def all_outputs():
    """Yields all outputs of at most MAX_TOKENS tokens; only the longest may be unfinished."""
    words = ALLOWED[1:]
    for length in range(MAX_TOKENS + 1):
        for start in itertools.product(words, repeat=length):
            yield start if length == MAX_TOKENS else (*start, EOS)


def enumerate_outputs(members, item):
    """Returns all outputs with their log probabilities under the mean, the most probable first."""
    outputs = list(all_outputs())
    prompt = list(item.prompt or [BOS])
    tokens = np.zeros((len(outputs), LONGEST), np.int32)
    for row, output in zip(tokens, outputs, strict=True):
        sequence = [*prompt, *output]
        row[: len(sequence)] = sequence[:LONGEST]

    frames, gain = item.arrays
    memory = np.repeat(frames[None] * gain, len(outputs), axis=0)
    tables = [np.asarray(log_probs_of(member.params, memory, tokens)) for member in members]
    table = np.logaddexp.reduce(tables, axis=0) - np.log(len(members))  # [outputs, T, V]

    scored = []
    for row, output in zip(table, outputs, strict=True):
        places = np.arange(len(output)) + len(prompt) - 1
        scored.append((row[places, output].sum(), list(output)))
    return sorted(scored, reverse=True)


def suppress(logits, context):
    """Forbids padding and the beginning of a sentence."""
    ids = jnp.arange(logits.shape[-1])
    return jnp.where((ids == 0) | (ids == BOS), -jnp.inf, logits)


def inputs_of(prompts):
    random = np.random.default_rng(0)
    items = []
    for number, prompt in enumerate(prompts):
        frames = random.normal(size=(FRAMES, WIDTH)).astype(np.float32)
        gain = np.asarray(random.uniform(0.5, 2), np.float32)
        items.append(ArrayInput((frames, gain), prompt, number))
    return items


@pytest.mark.parametrize(
    ("prompts", "num_members"),
    [
        ([(), (), ()], 1),
        ([(BOS, 4), (5, 3, 3), (), (4, 3)], 1),  # of several lengths, in one batch
        ([(3, 4, 5, 3)], 2),
    ],
)
def test_an_exhaustive_beam_finds_all_outputs_in_order(members, prompts, num_members):
    members = members[:num_members]
    search = dataclasses.replace(EXHAUSTIVE, constraints=(suppress,))
    items = inputs_of(prompts)
    decoder = Decoder(Ensemble(tuple(members)), search, ArrayInputs(MAX_TOKENS))
    found = decoder.decode(items)

    assert sorted(found) == list(range(len(items)))
    for number, item in enumerate(items):
        expected = enumerate_outputs(members, item)
        decoded = found[number]
        assert [output for _, output in expected] == decoded.tokens
        np.testing.assert_allclose(decoded.log_probs, [score for score, _ in expected], rtol=1e-5)


def test_batches_samples_and_n_best_do_not_change_an_output(members):
    models = Ensemble(tuple(members[:1]))
    items = inputs_of([(BOS, 4), (), (5,), (3, 4, 4), ()])
    sampling = Sampling(num_samples=2, seed=3, constraints=(suppress,))

    def decode(search, plan):
        return Decoder(models, search, plan).decode(items)

    together = decode(sampling, ArrayInputs())
    in_pairs = decode(sampling, ArrayInputs(most_rows=2))
    assert {number: row.tokens for number, row in together.items()} == {
        number: row.tokens for number, row in in_pairs.items()
    }
    # The decoder reads LONGEST tokens, and the last one of an output it does not read.
    assert max(len(row.tokens[0]) for row in together.values()) <= LONGEST
    assert max(len(tokens) for tokens in together[3].tokens) <= LONGEST - 2

    beam = BeamSearch(beam_size=4, constraints=(suppress,))
    every = decode(beam, ArrayInputs())
    best = decode(beam, ArrayInputs(n_best=1))
    assert [best[n].tokens for n in range(5)] == [every[n].tokens[:1] for n in range(5)]


def test_sizes_of_batches_are_few_and_hold_the_inputs():
    decoder = Decoder(Ensemble((Member(MODEL, None),)), BeamSearch(), ArrayInputs())
    for count in range(1, 140):
        batches = list(decoder.plan.batches(decoder, inputs_of([()]) * count))
        numbers = [number for batch in batches for number in batch.numbers]
        assert sorted(numbers) == list(range(count))
        for batch in batches:
            assert len(batch.numbers) <= batch.shape.rows
            assert batch.shape.rows in (1, 4, 16, 48, 64)


@pytest.mark.parametrize(
    ("prompt", "search", "message"),
    [
        ((2,) * 7, BeamSearch(), "prompt of at most 6 tokens (model.max_length), got 7"),
        ((), BeamSearch(min_length=6), "min_length must be less than the 6 tokens of an output"),
    ],
)
def test_impossible_sizes_are_refused(prompt, search, message):
    decoder = Decoder(Ensemble((Member(MODEL, None),)), search, ArrayInputs())
    with pytest.raises(UserError) as caught:
        decoder.decode(inputs_of([prompt]))
    assert message in str(caught.value)
