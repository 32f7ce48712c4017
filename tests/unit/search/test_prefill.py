"""Reading forced tokens in one pass gives the same result as one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.search import BeamSearch, Sampling

VOCABULARY, WIDTH, BATCH, CAPACITY = 9, 6, 4, 10
RANDOM = np.random.default_rng(0)
EMBEDDING, RECURRENT, OUTPUT = (
    jnp.asarray(RANDOM.normal(size=shape), jnp.float32)
    for shape in ((VOCABULARY, WIDTH), (WIDTH, WIDTH), (WIDTH, VOCABULARY))
)


def step(tokens, hidden):
    """A recurrent network, whose state, [B, N, D], belongs to the hypotheses."""
    hidden = jnp.tanh(hidden @ RECURRENT + EMBEDDING[tokens])
    return 2 * hidden @ OUTPUT, hidden


def prefill(inputs, targets, length, hidden):
    """The same network over whole prefixes; returns the state after the first ``length`` inputs."""

    def one(hidden, token):
        logits, hidden = step(token[:, None], hidden)
        return hidden, (jax.nn.log_softmax(logits)[:, 0], hidden)

    start = hidden[:, :1]
    _, (log_probs, states) = jax.lax.scan(one, start, inputs.T)
    states = jnp.concatenate([start[None], states])
    log_probs = jnp.take_along_axis(log_probs, targets.T[:, :, None], axis=2)[:, :, 0].T
    return log_probs, jnp.broadcast_to(states[length], hidden.shape)


PREFIXES = {
    "of one length": [[3, 4, 5], [6, 7, 8], [3, 3, 3], [8, 4, 6]],
    "of several lengths": [[3, 4, 5, 6], [7, 0, 0, 0], [5, 5, 0, 0], [3, 4, 5, 0]],
    "one without any": [[3, 4], [0, 0], [5, 6], [7, 8]],
    "one that ends": [[3, 4, 5], [4, 1, 5], [5, 6, 7], [3, 3, 4]],
    "a free position within": [[3, 0, 5], [4, 0, 5], [5, 0, 7], [3, 0, 4]],
    "as long as the capacity": [[3] * CAPACITY] * BATCH,
}
LIMITS = {"high": [10, 10, 9, 10], "low": [2, 10, 3, 1], "none": [0, 10, 10, 0]}
SEARCHES = {
    "beam": BeamSearch(beam_size=3),
    "greedy": BeamSearch(beam_size=1),
    "diverse": BeamSearch(beam_size=4, diversity_groups=2, diversity_penalty=0.5),
    "constrained": BeamSearch(beam_size=3, min_length=5, no_repeat_ngram=2),
    "compete": BeamSearch(beam_size=3, unfinished="compete", early_stop="never"),
    "sampling": Sampling(num_samples=3, seed=3, top_k=4),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_result_equals_reading_one_by_one(search):
    cache = jnp.zeros((BATCH, search.num_hypotheses, WIDTH))

    @jax.jit
    def run(prefix, limits, key):
        kwargs = {"max_lengths": limits, "capacity": CAPACITY, "prefix": prefix}
        if isinstance(search, Sampling):
            kwargs["keys"] = jax.random.split(key, BATCH)
        return search(step, cache, **kwargs), search(step, cache, prefill_fn=prefill, **kwargs)

    for prefix in PREFIXES.values():
        for limits in LIMITS.values():
            one_by_one, at_once = run(jnp.asarray(prefix), jnp.asarray(limits), jax.random.key(1))
            np.testing.assert_array_equal(at_once.tokens, one_by_one.tokens)
            np.testing.assert_array_equal(at_once.lengths, one_by_one.lengths)
            np.testing.assert_allclose(at_once.scores, one_by_one.scores, rtol=1e-5)
            np.testing.assert_allclose(at_once.log_probs, one_by_one.log_probs, rtol=1e-5)


@pytest.mark.parametrize(
    ("prefix", "limits", "steps"),
    [
        ("of one length", "high", 3),
        ("of several lengths", "high", 1),
        ("one without any", "high", 0),
        ("one that ends", "high", 1),
        ("of one length", "none", 3),  # Sentences with limit 0 do not stop the pass.
        ("of several lengths", "low", 0),
    ],
)
def test_prefill_reads_tokens_forced_for_all_sentences(prefix, limits, steps):
    search = BeamSearch(beam_size=2)
    cache = jnp.zeros((BATCH, 2, WIDTH))
    state = search.start(cache, LIMITS[limits], CAPACITY, PREFIXES[prefix])
    assert int(search.prefill(prefill, state).step) == steps


def test_no_prefix_reads_nothing():
    search = BeamSearch(beam_size=2)
    state = search.start(jnp.zeros((BATCH, 2, WIDTH)), [10] * BATCH, CAPACITY)
    assert search.prefill(prefill, state) is state
