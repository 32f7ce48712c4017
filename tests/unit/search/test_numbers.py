"""Searches that differ only in numbers share a program, and find what they find alone."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jaxformer.search import BeamSearch, Sampling

CAPACITY = 6
LOGITS = np.random.default_rng(0).normal(0, 1, (7, 7)).astype(np.float32)


def find(search):
    """Runs a search over a Markov chain of seven tokens for two sentences."""
    steps = jax.numpy.asarray(LOGITS)
    return search(
        lambda tokens, cache: (steps[tokens], cache), (), max_lengths=[6, 4], capacity=CAPACITY
    )


@functools.cache
def counted():
    """Returns a jitted search of two arguments, and the list of its traces."""
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def run(static, numbers):
        traces.append(static)
        return find(static.join_numbers(numbers))

    return run, traces


BEAM = BeamSearch(beam_size=4, diversity_groups=2, diversity_penalty=0.5, min_length=1)
SAMPLING = Sampling(num_samples=4, top_p=0.9, min_p=0.05, typical_p=0.9, min_length=1, seed=3)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("search", "changes"),
    [
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
                {"top_p": 0.2, "length_penalty": 1.0},
                {"min_p": 0.9, "seed": 8},
                {"typical_p": 0.2},
            ],
        ),
    ],
    ids=["beam", "sampling"],
)
def test_a_sweep_is_traced_once_and_finds_the_same(search, changes):
    run, traces = counted()
    results, before = [], len(traces)
    for change in [{}, *changes]:
        changed = dataclasses.replace(search, **change)
        found = jax.device_get(run(*changed.split_numbers(CAPACITY)))
        expected = jax.device_get(jax.jit(functools.partial(find, changed))())
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)
        results.append(found)
    assert len(traces) - before == 1
    for result in results[1:]:
        assert any((a != b).any() for a, b in zip(result, results[0], strict=True))


def test_structure_stays_static():
    static, _ = BEAM.split_numbers(CAPACITY)
    for change in (
        {"beam_size": 6},
        {"min_length": 0},
        {"penalty": "power"},
        {"no_repeat_ngram": 2},
        {"early_stop": "never"},
    ):
        assert dataclasses.replace(BEAM, **change).split_numbers(CAPACITY)[0] != static
    static, _ = SAMPLING.split_numbers(CAPACITY)
    for change in ({"top_k": 3}, {"top_p": 1.0}, {"min_p": 0.0}, {"typical_p": 1.0}):
        assert dataclasses.replace(SAMPLING, **change).split_numbers(CAPACITY)[0] != static
