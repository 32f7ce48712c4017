"""Reading forced tokens in one pass gives the same result as one by one."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.search import BeamSearch, Sampling

from ...profiles import by_profile

VOCABULARY = 9
WIDTH = 6
BATCH = 4
CAPACITY = 10
RANDOM = np.random.default_rng(0)
EMBEDDING = RANDOM.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
RECURRENT = RANDOM.normal(size=(WIDTH, WIDTH)).astype(np.float32)
OUTPUT = RANDOM.normal(size=(WIDTH, VOCABULARY)).astype(np.float32)


def step(tokens, hidden):
    """A recurrent network, whose state, [B, N, D], belongs to the hypotheses."""
    embedded = jnp.asarray(EMBEDDING)[tokens]
    hidden = jnp.tanh(hidden @ RECURRENT + embedded)
    return 2 * hidden @ OUTPUT, hidden


def prefill(inputs, targets, length, hidden):
    """The same network over whole prefixes; returns the state after the first ``length`` inputs."""

    def one(hidden, token):
        logits, hidden = step(token[:, None], hidden)
        log_probs = jax.nn.log_softmax(logits)[:, 0]
        return hidden, (log_probs, hidden)

    start = hidden[:, :1]
    _, by_step = jax.lax.scan(one, start, inputs.T)
    log_probs, states = by_step  # [T, B, V] and [T, B, 1, D]

    places = targets.T[:, :, None]
    chosen = jnp.take_along_axis(log_probs, places, axis=2)[:, :, 0]

    states = jnp.concatenate([start[None], states])
    state = jnp.broadcast_to(states[length], hidden.shape)
    return chosen.T, state


PREFIXES = {
    "of one length": [[3, 4, 5], [6, 7, 8], [3, 3, 3], [8, 4, 6]],
    "of several lengths": [[3, 4, 5, 6], [7, 0, 0, 0], [5, 5, 0, 0], [3, 4, 5, 0]],
    "one without any": [[3, 4], [0, 0], [5, 6], [7, 8]],
    "one that ends": [[3, 4, 5], [4, 1, 5], [5, 6, 7], [3, 3, 4]],
    "a free position within": [[3, 0, 5], [4, 0, 5], [5, 0, 7], [3, 0, 4]],
    "as long as the capacity": [[3] * CAPACITY] * BATCH,
}
LIMITS = {
    "high": [10, 10, 9, 10],
    "low": [2, 10, 3, 1],
    "none": [0, 10, 10, 0],
}
SEARCHES = {
    "sampling": Sampling(num_samples=3, seed=3, top_k=4),
    "every option": BeamSearch(
        beam_size=4,
        diversity_groups=2,
        diversity_penalty=0.5,
        min_length=5,
        no_repeat_ngram=2,
        unfinished="compete",
        early_stop="never",
    ),
    "greedy": BeamSearch(beam_size=1),
    "beam": BeamSearch(beam_size=3),
}


def padded(prefix: str):
    """Returns a prefix padded to the capacity, so that all have one shape."""
    rows = np.int32(PREFIXES[prefix])
    missing = CAPACITY - rows.shape[1]
    return np.pad(rows, [(0, 0), (0, missing)])


@pytest.mark.parametrize("name", by_profile(list(SEARCHES)[:3], nightly=list(SEARCHES)))
def test_result_equals_reading_one_by_one(name):
    search = SEARCHES[name]
    cache = np.zeros((BATCH, search.num_hypotheses, WIDTH), np.float32)

    @jax.jit
    def run(prefix, limits, key):
        arguments = {
            "max_lengths": limits,
            "capacity": CAPACITY,
            "prefix": prefix,
        }
        if isinstance(search, Sampling):
            arguments["keys"] = jax.random.split(key, BATCH)
        one_by_one = search(step, cache, **arguments)
        at_once = search(step, cache, prefill_fn=prefill, **arguments)
        return one_by_one, at_once

    key = jax.random.key(1)
    for prefix, limits in itertools.product(PREFIXES, LIMITS):
        results = run(padded(prefix), np.array(LIMITS[limits]), key)
        one_by_one, at_once = jax.device_get(results)
        for field in ("tokens", "lengths"):
            np.testing.assert_array_equal(
                getattr(at_once, field),
                getattr(one_by_one, field),
            )
        for field in ("scores", "log_probs"):
            np.testing.assert_allclose(
                getattr(at_once, field),
                getattr(one_by_one, field),
                rtol=1e-5,
            )


def test_prefill_reads_tokens_forced_for_all_sentences():
    search = BeamSearch(beam_size=2)
    cache = np.zeros((BATCH, 2, WIDTH), np.float32)

    @jax.jit
    def steps(prefix, limits):
        start = search.start(cache, limits, CAPACITY, prefix)
        state = search.prefill(prefill, start)
        return state.step

    for prefix, limits, expected in [
        ("of one length", "high", 3),
        ("of several lengths", "high", 1),
        ("one that ends", "high", 1),
        # Sentences with limit 0 do not stop the pass.
        ("of one length", "none", 3),
        ("of several lengths", "low", 0),
    ]:
        found = steps(padded(prefix), np.array(LIMITS[limits]))
        assert found == expected, (prefix, limits)
