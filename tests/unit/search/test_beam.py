"""Beam search on a lattice with results computed by hand, and properties for any model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.search import BeamSearch, beam_search, take_sentences

from ...profiles import by_profile
from .oracles import (
    BOS,
    CAPACITY,
    EOS,
    PAD,
    Tree,
    advance_tree,
    beam,
    check_composition,
    hypotheses,
    log,
    plain_beam,
    search_tree,
    start_tree,
    tokens_of,
    tree_cache,
    tree_logits,
    tree_step,
)

#        BOS --0.6--> A --0.5--> C --1.0--> EOS      A C EOS: 0.30 (greedy)
#          \           \--0.3--> EOS                 A EOS:   0.18
#           \           \-0.2--> B
#            \--0.4--> B --0.9--> EOS                B EOS:   0.36 (the best)
#                       \--0.1--> C
LATTICE = log(
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


class LatticeTree(Tree):
    """The lattice as a tree: the next token depends only on the newest token."""

    def __init__(self):
        super().__init__(LATTICE)

    def row(self, prefix):
        return prefix[-1] if prefix else BOS


CALLS: list[int] = []


def lattice_step(tokens, cache):
    jax.debug.callback(lambda: CALLS.append(1))
    return jnp.asarray(LATTICE)[tokens], cache


@functools.partial(jax.jit, static_argnames="settings")
def search_lattice(settings, limits, prefix):
    state = settings.start((), limits, CAPACITY, prefix)
    state = settings.advance(lattice_step, state, CAPACITY)
    return state.step, settings.finalize(state)


# Settings, and rows of (limit, prefix, hypotheses with their probabilities).
BY_HAND = [
    ({"beam_size": 1}, [(6, (), {(A, C, EOS): 0.30})]),  # Greedy search misses the best.
    (
        {"beam_size": 3},
        [
            (6, (), {(B, EOS): 0.36, (A, C, EOS): 0.30, (A, EOS): 0.18}),
            (99, (), {(B, EOS): 0.36, (A, C, EOS): 0.30, (A, EOS): 0.18}),  # Limited to 6.
            # Unfinished (A, C) is dropped, though 0.3 > 0.18. No hypothesis ends after one token.
            (2, (), {(B, EOS): 0.36, (A, EOS): 0.18}),
            (1, (), {(A,): 0.6, (B,): 0.4}),
            (0, (), {(): 1.0}),
            # A prefix counts with its probability, and is truncated to the limit.
            (6, (A,), {(A, C, EOS): 0.30, (A, EOS): 0.18, (A, B, EOS): 0.6 * 0.2 * 0.9}),
            (6, (B, C), {(B, C, EOS): 0.04}),
            (6, (A, EOS), {(A, EOS): 0.18}),
            (6, (C,), {}),  # C cannot come first.
            (2, (A, B, C), {(A, B): 0.12}),
        ],
    ),
    # Both groups are greedy and would find A C EOS. The second group chooses B if A costs more than
    # log 0.6 - log 0.4 = 0.41. The result has the model's probability.
    (
        {"beam_size": 2, "diversity_groups": 2, "diversity_penalty": 0.5},
        [(6, (), {(B, EOS): 0.36, (A, C, EOS): 0.30})],
    ),
    (
        {"beam_size": 2, "diversity_groups": 2, "diversity_penalty": 0.4},
        [(6, (), {(A, C, EOS): 0.30})],  # Found twice.
    ),
    # log 0.36 / 1.361 = -0.751 against log 0.30 / 1.778 = -0.677.
    ({"length_penalty": 2.0}, [(6, (), {(A, C, EOS): 0.30, (B, EOS): 0.36})]),
    (
        {"beam_size": 3, "unfinished": "compete"},
        [(2, (), {(B, EOS): 0.36, (A, C): 0.30, (A, EOS): 0.18})],
    ),
    # After two tokens the candidates are B EOS 0.36, A C 0.30, A EOS 0.18, A B 0.12. A EOS is the
    # third, so it ends only within 2N.
    ({"beam_size": 2}, [(2, (), {(B, EOS): 0.36, (A, EOS): 0.18})]),
    ({"beam_size": 2, "ends_within": "N"}, [(2, (), {(B, EOS): 0.36})]),
    (
        {"beam_size": 3, "min_length": 2},  # Probabilities are not renormalized.
        [
            (6, (), {(A, C, EOS): 0.30, (A, B, EOS): 0.6 * 0.2 * 0.9, (B, C, EOS): 0.4 * 0.1}),
            (6, (A, EOS), {(A, EOS): 0.18}),  # A forced EOS is allowed.
            (1, (), {(A,): 0.6, (B,): 0.4}),  # Limits take precedence.
        ],
    ),
]


@pytest.mark.parametrize(("changes", "rows"), BY_HAND)
def test_the_plain_beam_finds_what_is_computed_by_hand(changes, rows):
    for limit, forced, expected in rows:
        found = plain_beam(LatticeTree(), beam(**changes), min(limit, CAPACITY), forced)
        assert list(dict.fromkeys(tokens_of(found))) == list(expected)
        assert {t: np.exp(p) for _, p, t in found} == pytest.approx(expected)


@pytest.mark.parametrize(("changes", "rows"), by_profile(BY_HAND[:3], nightly=BY_HAND))
def test_beam_search_finds_what_is_computed_by_hand(changes, rows):
    prefix = np.array([[*forced, *[PAD] * (4 - len(forced))] for _, forced, _ in rows])
    limits = np.array([limit for limit, *_ in rows])
    _, result = jax.device_get(search_lattice(beam(**changes), limits, prefix))
    for sentence, (*_, expected) in enumerate(rows):
        found = hypotheses(result, sentence)
        assert list(dict.fromkeys(tokens_of(found))) == list(expected)
        assert {t: np.exp(p) for _, p, t in found} == pytest.approx(expected)


def test_max_length_is_a_setting():
    start = jax.jit(lambda limits: beam(max_length=2).start((), limits, CAPACITY).max_lengths)
    assert start(np.array([6, 2, 1, 0])).tolist() == [2, 2, 1, 0]


def test_no_step_is_unnecessary():
    # After three tokens, A B C of 0.012 is alive. Its score is log 0.012 / (8/6)^4 = -1.4 now,
    # but -0.39 at the limit, where it would displace B EOS of log 0.36 / (7/6)^4 = -0.55.
    prefix = np.full((1, 4), PAD)
    for limit, steps in ((CAPACITY, 4), (2, 2), (0, 0)):
        CALLS.clear()
        counted, _ = search_lattice(beam(length_penalty=4.0), np.array([limit]), prefix)
        jax.effects_barrier()
        assert len(CALLS) == steps == counted


DIVERSE = beam(beam_size=4, length_penalty=0.6, diversity_groups=2, diversity_penalty=0.5)
LOGITS = tree_logits(7, 7, 4, 5)
LIMITS = np.array([5, 1, 4, 5, 2, 3, 5], np.int32)


def test_advance_in_several_calls_equals_one_call():
    """Between calls of advance, sentences may be dropped, repeated or reordered."""
    whole = search_tree(DIVERSE, LOGITS, LIMITS)
    state, result = advance_tree(DIVERSE, start_tree(DIVERSE, LOGITS, LIMITS), 2)
    assert state.step == 2
    assert np.asarray(state.done)[LIMITS <= 2].all()
    # After each step, there is a result: that of a search with this limit.
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6),
        jax.device_get(result),
        search_tree(DIVERSE, LOGITS, np.minimum(LIMITS, 2)),
    )
    rows = np.array([6, 0, 3, 3, 2, 1, 0])
    state, result = advance_tree(DIVERSE, jax.jit(take_sentences)(state, rows), CAPACITY)
    assert state.step == 5
    for found, row in enumerate(rows.tolist()):
        assert hypotheses(jax.device_get(result), found) == hypotheses(whole, row)


def test_result_does_not_depend_on_the_other_sentences():
    """Not even if their logits are NaN."""
    together = search_tree(DIVERSE, LOGITS, LIMITS)
    order = np.array([3, 6, 0, 5, 1, 4, 2])
    shuffled = search_tree(DIVERSE, LOGITS[order], LIMITS[order])
    for row in range(7):
        assert hypotheses(shuffled, order.tolist().index(row)) == hypotheses(together, row)
        others = (np.arange(7) != row)[:, None, None]
        alone = search_tree(DIVERSE, np.where(others, np.float32(np.nan), LOGITS), LIMITS)
        assert hypotheses(alone, row) == hypotheses(together, row)
        assert np.isnan(alone.scores[np.arange(7) != row, 0]).all()


def test_cache_follows_its_hypothesis_and_may_grow():
    """A cache that records every token contains each alive hypothesis' own history."""
    table = np.random.default_rng(0).normal(size=(2, 1, 50, 6)).astype(np.float32)
    diverse = beam(
        beam_size=6,
        diversity_groups=2,
        diversity_penalty=0.3,
        early_stop="never",
        no_repeat_ngram=3,
    )

    def step(tokens, cache):
        noted = cache["noted"].at[:, :, cache["position"]].set(tokens)
        hashed = (noted @ jnp.arange(1, noted.shape[2] + 1)) % 50
        logits = cache["table"][jnp.arange(2)[:, None], 0, hashed]
        return logits, {**cache, "noted": noted, "position": cache["position"] + 1}

    def start(capacity):
        noted = np.zeros((2, 6, capacity), np.int32)
        cache = {"noted": noted, "table": table, "position": np.int32(0)}
        return jax.jit(lambda cache: diverse.start(cache, [CAPACITY] * 2, CAPACITY))(cache)

    advance = jax.jit(lambda state, until: diverse.advance(step, state, until))
    at_once = advance(start(CAPACITY), CAPACITY)
    state, moved = start(3), False
    for length in range(1, CAPACITY + 1):
        if length == 4:
            noted = np.pad(np.asarray(state.cache["noted"]), [(0, 0), (0, 0), (0, CAPACITY - 3)])
            state = state.replace(cache={**state.cache, "noted": noted})
        state = advance(state, length)
        fed = np.asarray(state.cache["noted"])[:, :, :length]
        assert (fed[:, :, 0] == BOS).all()
        own = np.asarray(state.alive_tokens)[:, :, : length - 1]
        np.testing.assert_array_equal(fed[:, :, 1:], own)
        moved |= bool((np.asarray(state.alive.parents) != np.arange(6)).any())
    assert moved
    for found, expected in zip(jax.tree.leaves(state), jax.tree.leaves(at_once), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(state.cache["table"], table)


def test_works_under_vmap():
    def search(logits, limits):
        return advance_tree(DIVERSE, start_tree(DIVERSE, logits, limits), CAPACITY)[1]

    logits, limits = LOGITS[:6].reshape(3, 2, *LOGITS.shape[1:]), LIMITS[:6].reshape(3, 2)
    together = jax.device_get(jax.vmap(search)(logits, limits))
    for found, whole in zip(together, search_tree(DIVERSE, LOGITS, LIMITS), strict=True):
        np.testing.assert_allclose(found.reshape(whole[:6].shape), whole[:6], rtol=1e-6)


def test_beam_search_composes_its_methods():
    # No option has its default, so that a lost option changes the result.
    settings = beam(
        beam_size=4,
        length_penalty=0.3,
        penalty="power",
        min_length=1,
        no_repeat_ngram=2,
        diversity_groups=2,
        diversity_penalty=0.5,
        ends_within="N",
        unfinished="compete",
        early_stop="full",
    )
    check_composition(settings, beam_search, tree_step, tree_cache(LOGITS[:3], 4))


@pytest.mark.parametrize(
    ("shape", "changes", "message"),
    [
        *[
            (shape, {}, r"step_fn must return logits .* = \[1, 2, 2 or more\]")
            for shape in [(1, 2), (1, 1, 5), (2, 2, 5), (1, 2, 1)]
        ],
        ((1, 2, 5), {"eos_id": 5}, r"eos_id must be a token of .*, 0 to 4: got 5"),
    ],
)
def test_wrong_logits_are_refused(shape, changes, message):
    search = BeamSearch(beam_size=2, **changes)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(
            lambda: search(
                lambda tokens, cache: (jnp.zeros(shape), cache), (), max_lengths=[3], capacity=6
            )
        )
