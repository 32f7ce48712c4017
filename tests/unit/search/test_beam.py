"""Beam search on a lattice with results computed by hand, and properties for any model."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.search import BeamResult, BeamSearch, beam_search, take_sentences

from .oracles import (
    BOS,
    CAPACITY,
    EOS,
    PAD,
    advance_tree,
    beam,
    hypotheses,
    search_tree,
    start_tree,
    tokens_of,
    tree_cache,
    tree_logits,
    tree_step,
)


def markov(transitions: list[list[float]]) -> Callable:
    """Returns a step function whose next token depends only on the newest token."""
    log_probs = jnp.log(jnp.array(transitions))
    return lambda tokens, cache: (log_probs[tokens], cache)


#        BOS --0.6--> A --0.5--> C --1.0--> EOS      A C EOS: 0.30 (greedy)
#          \           \--0.3--> EOS                 A EOS:   0.18
#           \           \-0.2--> B
#            \--0.4--> B --0.9--> EOS                B EOS:   0.36 (the best)
#                       \--0.1--> C
LATTICE = markov(
    #  BOS  EOS  A    B    C
    [
        [0.0, 0.0, 0.6, 0.4, 0.0],
        [0.0, 1.0, 0.0, 0.0, 0.0],
        [0.0, 0.3, 0.0, 0.2, 0.5],
        [0.0, 0.9, 0.0, 0.0, 0.1],
        [0.0, 1.0, 0.0, 0.0, 0.0],
    ]
)
A, B, C = 2, 3, 4


@functools.partial(jax.jit, static_argnames="settings")
def search_lattice(settings: BeamSearch, limits: jax.Array, prefix: jax.Array) -> BeamResult:
    state = settings.start((), limits, CAPACITY, prefix)
    return settings.finalize(settings.advance(LATTICE, state, CAPACITY))


def search(limit: int = CAPACITY, forced: tuple[int, ...] = (), **changes) -> list:
    """Returns the hypotheses of the lattice, as tokens and probability."""
    prefix = jnp.full((1, 4), PAD).at[0, : len(forced)].set(jnp.array(forced, jnp.int32))
    result = search_lattice(beam(**changes), jnp.array([limit]), prefix)
    return [(tokens, pytest.approx(np.exp(p))) for _, p, tokens in hypotheses(result, 0)]


def test_lattice_greedy_misses_the_best():
    assert search(beam_size=1) == [((A, C, EOS), 0.30)]


def test_lattice_beam_finds_the_best():
    assert search(beam_size=3) == [((B, EOS), 0.36), ((A, C, EOS), 0.30), ((A, EOS), 0.18)]


def test_the_length_penalty_reranks():
    # log 0.36 / (7/6) = -0.876 against log 0.30 / (8/6) = -0.903: still B EOS at alpha 1, but at
    # alpha 2 log 0.36 / 1.361 = -0.751 against log 0.30 / 1.778 = -0.677.
    assert search(length_penalty=1.0)[0][0] == (B, EOS)
    assert search(length_penalty=2.0)[0][0] == (A, C, EOS)


def test_penalties_by_name():
    # Per token, log 0.36 / 2 = -0.51 against log 0.30 / 3 = -0.40.
    assert search(penalty="power", length_penalty=1.0)[0][0] == (A, C, EOS)
    assert search(penalty="none", length_penalty=1.0)[0][0] == (B, EOS)


def test_limits_are_per_sentence_and_unfinished_hypotheses_are_a_fallback():
    limits = jnp.array([1, 2, 3, 99, 0])  # 99 is clipped to the capacity; 0 means no tokens.
    result = search_lattice(beam(beam_size=3), limits, jnp.zeros((5, 0), jnp.int32))
    assert [tokens_of(hypotheses(result, sentence)) for sentence in range(5)] == [
        [(A,), (B,)],  # No hypothesis can end after one token.
        [(B, EOS), (A, EOS)],  # Unfinished (A, C) is dropped, though 0.3 > 0.18.
        [(B, EOS), (A, C, EOS), (A, EOS)],
        [(B, EOS), (A, C, EOS), (A, EOS)],
        [()],
    ]


def test_max_length_is_a_setting():
    assert search(max_length=2, beam_size=3) == search(limit=2, beam_size=3)
    assert search(max_length=5, limit=2, beam_size=3) == search(limit=2, beam_size=3)


def test_unfinished_hypotheses_may_compete():
    found = search(limit=2, beam_size=3, unfinished="compete")
    assert found == [((B, EOS), 0.36), ((A, C), 0.30), ((A, EOS), 0.18)]


def test_ends_within_the_first_n_candidates():
    # After two tokens the candidates are B EOS 0.36, A C 0.30, A EOS 0.18, A B 0.12. A EOS is the
    # third, so it does not end.
    assert search(limit=2, beam_size=2) == [((B, EOS), 0.36), ((A, EOS), 0.18)]
    assert search(limit=2, beam_size=2, ends_within="N") == [((B, EOS), 0.36)]


def test_prefix_counts_with_its_probability():
    assert search(forced=(A,), beam_size=3) == [
        ((A, C, EOS), 0.30),
        ((A, EOS), 0.18),
        ((A, B, EOS), pytest.approx(0.6 * 0.2 * 0.9)),
    ]
    assert search(forced=(B, C), beam_size=3) == [((B, C, EOS), pytest.approx(0.04))]
    assert search(forced=(A, EOS), beam_size=3) == [((A, EOS), 0.18)]
    assert search(forced=(C,), beam_size=3) == []  # C cannot come first.


def test_prefix_is_truncated_to_the_limit():
    assert search(forced=(A, B, C), beam_size=3, limit=2) == [((A, B), pytest.approx(0.12))]


def test_min_length_does_not_renormalize():
    assert search(beam_size=3, min_length=2) == [
        ((A, C, EOS), 0.30),
        ((A, B, EOS), pytest.approx(0.6 * 0.2 * 0.9)),
        ((B, C, EOS), pytest.approx(0.4 * 0.1)),
    ]
    # A forced EOS is allowed, and limits take precedence.
    assert search(forced=(A, EOS), beam_size=3, min_length=2) == [((A, EOS), 0.18)]
    assert search(beam_size=3, min_length=2, limit=1) == [((A,), 0.6), ((B,), 0.4)]


def test_diverse_groups_choose_different_tokens():
    # Both groups are greedy and would find A C EOS. The second group chooses B if A costs more than
    # log 0.6 - log 0.4 = 0.41. The result has the model's probability.
    diverse = {"diversity_groups": 2, "beam_size": 2}
    assert search(**diverse, diversity_penalty=0.4) == [((A, C, EOS), 0.30)] * 2
    assert search(**diverse, diversity_penalty=0.5) == [((B, EOS), 0.36), ((A, C, EOS), 0.30)]


CALLS: list[int] = []


@functools.partial(jax.jit, static_argnames="settings")
def search_and_count(settings: BeamSearch, limits: jax.Array) -> jax.Array:
    def counted(tokens, cache):
        jax.debug.callback(lambda: CALLS.append(1))
        return LATTICE(tokens, cache)

    return settings.advance(counted, settings.start((), limits, CAPACITY), CAPACITY).step


@pytest.mark.parametrize(
    ("changes", "limit", "steps"),
    [
        ({"beam_size": 1}, CAPACITY, 3),  # A C EOS
        ({"beam_size": 1, "early_stop": "never"}, CAPACITY, CAPACITY),
        (
            {"beam_size": 2},
            CAPACITY,
            3,
        ),  # After two tokens, A C of 0.30 is alive and A EOS of 0.18 is finished.
        ({"beam_size": 2, "early_stop": "full"}, CAPACITY, 2),
        # After three tokens, A B C of 0.012 is alive. Its score is log 0.012 / (8/6)^4 = -1.4 now,
        # but -0.39 at the limit, where it would displace B EOS of log 0.36 / (7/6)^4 = -0.55.
        ({"beam_size": 2, "length_penalty": 4.0}, CAPACITY, 4),
        ({"beam_size": 2, "length_penalty": 4.0, "early_stop": "likely"}, CAPACITY, 3),
        ({"beam_size": 1}, 2, 2),
        ({"beam_size": 2}, 0, 0),
    ],
)
def test_no_step_is_unnecessary(changes: dict, limit: int, steps: int):
    CALLS.clear()
    counted = search_and_count(beam(**changes), jnp.array([limit]))
    jax.effects_barrier()
    assert len(CALLS) == steps == counted


def test_advance_in_several_calls_equals_one_call():
    """Between calls of advance, the cache may grow and sentences may be dropped or reordered."""
    logits = tree_logits(11, 6, 4, 5)
    limits = np.array([5, 2, 5, 1, 4, 5], np.int32)
    settings = beam(beam_size=3, length_penalty=0.6, early_stop="never")
    whole = search_tree(settings, logits, limits)
    state, _ = advance_tree(settings, start_tree(settings, logits, limits), 2)
    assert state.step == 2
    assert state.done.tolist() == [False, True, False, True, False, False]
    rows = jnp.array([5, 0, 4])
    state = take_sentences(state, rows)
    state, result = advance_tree(settings, state, CAPACITY)
    assert state.step == 5
    for found, row in enumerate(rows.tolist()):
        assert hypotheses(result, found) == hypotheses(whole, row)


def test_the_cache_may_grow_between_calls():
    def step(tokens, cache):
        memory = cache["memory"].at[:, :, cache["position"]].set(tokens)
        logits = jnp.sin(jnp.arange(5.0) * (1 + memory.sum(axis=2, keepdims=True)))
        return logits, {"memory": memory, "position": cache["position"] + 1}

    settings = beam(beam_size=2, early_stop="never", min_length=4)
    limits = jnp.array([6, 5])

    def cache(capacity: int) -> dict:
        return {"memory": jnp.zeros((2, 2, capacity), jnp.int32), "position": jnp.array(0)}

    go = jax.jit(lambda state, until: settings.advance(step, state, until))
    at_once = go(settings.start(cache(6), limits, 6), 6)
    state = go(settings.start(cache(3), limits, 6), 3)
    more = jnp.pad(state.cache["memory"], [(0, 0), (0, 0), (0, 3)])
    state = go(state.replace(cache={**state.cache, "memory": more}), 6)
    for found, expected in zip(jax.tree.leaves(state), jax.tree.leaves(at_once), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_finalize_works_after_any_step():
    settings = beam(beam_size=2)
    state = settings.start((), jnp.array([CAPACITY, 1]), CAPACITY)
    result = settings.finalize(settings.advance(LATTICE, state, 1))
    assert tokens_of(hypotheses(result, 0)) == [(A,), (B,)]
    assert tokens_of(hypotheses(result, 1)) == [(A,), (B,)]


def test_result_does_not_depend_on_the_batch():
    logits = tree_logits(7, 7, 4, 5)
    limits = np.array([5, 1, 4, 5, 2, 3, 5], np.int32)
    settings = beam(beam_size=4, length_penalty=0.6, diversity_groups=2, diversity_penalty=0.5)
    together = search_tree(settings, logits, limits)
    order = np.array([3, 6, 0, 5, 1, 4, 2])
    shuffled = search_tree(settings, logits[order], limits[order])
    alone = [search_tree(settings, logits[i : i + 1], limits[i : i + 1]) for i in range(7)]
    alone = jax.tree.map(lambda *rows: jnp.concatenate(rows), *alone)
    for other in (jax.tree.map(lambda rows: rows[np.argsort(order)], shuffled), alone):
        np.testing.assert_array_equal(together.tokens, other.tokens)
        np.testing.assert_allclose(together.scores, other.scores, atol=1e-6)


def test_nan_logits_do_not_affect_other_sentences():
    logits = tree_logits(8, 3, 4, 5)
    limits = np.full(3, 5, np.int32)
    settings = beam(beam_size=3, length_penalty=0.6)
    clean = search_tree(settings, logits, limits)
    logits[1] = np.nan
    spoilt = search_tree(settings, logits, limits)
    for sentence in (0, 2):
        assert hypotheses(spoilt, sentence) == hypotheses(clean, sentence)
    assert np.isnan(spoilt.scores[1]).all()


def test_cache_follows_its_hypothesis():
    """A cache that records every token contains each alive hypothesis' own history."""
    random = jax.random.normal(jax.random.key(0), (2, 6, 50, 6))

    def step(tokens, cache):
        noted = cache["noted"].at[:, :, cache["position"]].set(tokens)
        hashed = (noted @ jnp.arange(1, CAPACITY + 1)) % 50
        logits = cache["table"][jnp.arange(2)[:, None], 0, 0, hashed]
        return logits, {**cache, "noted": noted, "position": cache["position"] + 1}

    cache = {
        "noted": jnp.full((2, 6, CAPACITY), -1),
        "table": random[:, :1, None],
        "position": jnp.array(0),
    }
    diverse = beam(
        beam_size=6,
        diversity_groups=2,
        diversity_penalty=0.3,
        early_stop="never",
        no_repeat_ngram=3,
    )
    state = diverse.start(cache, jnp.full((2,), CAPACITY), CAPACITY)
    go = jax.jit(lambda state, until: diverse.advance(step, state, until))
    moved = False
    for length in range(1, CAPACITY):
        state = go(state, length)
        fed = state.cache["noted"][:, :, :length]
        assert (fed[:, :, 0] == BOS).all()
        np.testing.assert_array_equal(fed[:, :, 1:], state.alive_tokens[:, :, : length - 1])
        moved |= bool((state.alive.parents != jnp.arange(6)[None]).any())
    assert moved
    np.testing.assert_array_equal(state.cache["table"], cache["table"])


def test_works_under_vmap():
    logits = np.stack([tree_logits(seed, 2, 3, 5) for seed in range(3)])
    limits = np.array([[5, 5], [3, 1], [4, 5]], np.int32)
    run = functools.partial(search_tree, beam(length_penalty=0.6))
    together = jax.vmap(run)(logits, limits)
    for i in range(3):
        single = run(logits[i], limits[i])
        np.testing.assert_array_equal(together.tokens[i], single.tokens)
        np.testing.assert_allclose(together.scores[i], single.scores, atol=1e-6)


def test_beam_search_composes_its_methods():
    # No option has its default, so that a lost option changes the result.
    options = {
        "penalty": "power",
        "min_length": 1,
        "no_repeat_ngram": 2,
        "diversity_groups": 2,
        "diversity_penalty": 0.5,
        "ends_within": "N",
        "unfinished": "compete",
        "early_stop": "full",
    }
    settings = beam(beam_size=4, length_penalty=0.6, **options)
    logits = jnp.asarray(tree_logits(5, 3, 4, 5))
    limits, prefix = jnp.array([5, 4, 3]), jnp.array([[2, 0], [0, 0], [3, 2]])

    def composed(logits):
        state = settings.start(tree_cache(logits, 4), limits, CAPACITY, prefix)
        return settings.finalize(settings.advance(tree_step, state, CAPACITY))

    def together(logits):
        return beam_search(
            tree_step,
            tree_cache(logits, 4),
            max_lengths=limits,
            capacity=CAPACITY,
            beam_size=4,
            length_penalty=0.6,
            bos_id=BOS,
            eos_id=EOS,
            pad_id=PAD,
            prefix=prefix,
            **options,
        )

    assert str(jax.make_jaxpr(together)(logits)) == str(jax.make_jaxpr(composed)(logits))


@pytest.mark.parametrize("shape", [(1, 2), (1, 1, 5), (2, 2, 5), (1, 2, 1)])
def test_wrong_logits_are_refused(shape: tuple[int, ...]):
    state = beam().start((), jnp.array([3]), CAPACITY)
    with pytest.raises(UserError, match=r"step_fn must return logits .* = \[1, 2, 2 or more\]"):
        beam().advance(lambda tokens, cache: (jnp.zeros(shape), cache), state, 1)


def test_eos_outside_the_vocabulary_is_refused():
    state = beam(eos_id=5).start((), jnp.array([3]), CAPACITY)
    with pytest.raises(UserError, match=r"eos_id must be a token of .*, 0 to 4: got 5"):
        beam(eos_id=5).advance(LATTICE, state, 1)
