"""Searches that differ only in numbers share a program, and find what they find alone."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jaxformer.search import BeamSearch, Sampling

CAPACITY = 6
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 1, (7, 7)).astype(np.float32)


def find(search):
    """Runs a search over a Markov chain of seven tokens for two sentences."""
    table = jax.numpy.asarray(LOGITS)

    def step(tokens, cache):
        return table[tokens], cache

    return search(step, (), max_lengths=[6, 4], capacity=CAPACITY)


BEAM = BeamSearch(beam_size=4, diversity_groups=2, diversity_penalty=0.5, min_length=1)
SAMPLING = Sampling(num_samples=4, top_p=0.9, min_p=0.05, typical_p=0.9, min_length=1, seed=3)
SWEEPS = [
    (
        BEAM,
        [
            {"length_penalty": 2.0, "max_extra_length": 7},
            {"diversity_penalty": 3.0, "min_length": 3},
        ],
    ),
    (
        SAMPLING,
        [
            {"temperature": 0.3},
            {"top_p": 0.2},
            {"min_p": 0.9, "seed": 8},
            {"typical_p": 0.2},
        ],
    ),
]
STRUCTURE = [
    (BEAM, {"beam_size": 6, "min_length": 0, "penalty": "power", "early_stop": "never"}),
    (BEAM, {"no_repeat_ngram": 2}),
    (SAMPLING, {"top_k": 3, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}),
]


@pytest.mark.smoke
@pytest.mark.parametrize(("search", "changes"), SWEEPS, ids=["beam", "sampling"])
def test_a_sweep_is_traced_once_and_finds_the_same(search, changes):
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def run(static, numbers):
        traces.append(static)
        return find(static.join_numbers(numbers))

    results = []
    for change in ({}, *changes):
        changed = dataclasses.replace(search, **change)
        static, numbers = changed.split_numbers(CAPACITY)
        found = jax.device_get(run(static, numbers))
        alone = jax.device_get(jax.jit(functools.partial(find, changed))())
        np.testing.assert_array_equal(found.tokens, alone.tokens)
        np.testing.assert_allclose(found.scores, alone.scores, rtol=1e-6)
        results.append(found)

    assert len(traces) == 1
    unchanged, *others = results
    for result in others:
        assert any((a != b).any() for a, b in zip(result, unchanged, strict=True))


@pytest.mark.parametrize(("search", "changes"), STRUCTURE)
def test_structure_stays_static(search, changes):
    static, _ = search.split_numbers(CAPACITY)
    for name, value in changes.items():
        changed = dataclasses.replace(search, **{name: value})
        other, _ = changed.split_numbers(CAPACITY)
        assert other != static
