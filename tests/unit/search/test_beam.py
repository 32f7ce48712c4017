"""Beam search on a lattice with results computed by hand, properties for any model, candidates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.search import take_sentences
from jaxformer.search.beam import expand

from ...profiles import by_profile
from .oracles import (
    BOS,
    CAPACITY,
    EOS,
    PAD,
    Tree,
    advance_tree,
    beam,
    hypotheses,
    log,
    plain_beam,
    search_tree,
    start_tree,
    tokens_of,
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


@functools.partial(jax.jit, static_argnames="settings")
def search_lattice(settings, limits, prefix):
    def step(tokens, cache):
        return jnp.asarray(LATTICE)[tokens], cache

    state = settings.advance(step, settings.start((), limits, CAPACITY, prefix), CAPACITY)
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


def test_no_step_is_unnecessary():
    # After three tokens, A B C of 0.012 is alive. Its score is log 0.012 / (8/6)^4 = -1.4 now,
    # but -0.39 at the limit, where it would displace B EOS of log 0.36 / (7/6)^4 = -0.55.
    prefix = np.full((1, 4), PAD)
    for limit, steps in ((CAPACITY, 4), (2, 2), (0, 0)):
        found, _ = search_lattice(beam(length_penalty=4.0), np.array([limit]), prefix)
        assert found == steps


DIVERSE = beam(beam_size=4, length_penalty=0.6, diversity_groups=2, diversity_penalty=0.5)
LOGITS = tree_logits(7, 7, 4, 5)
LIMITS = np.array([5, 1, 4, 5, 2, 3, 5], np.int32)


def test_advance_in_several_calls_equals_one_call():
    """Between calls of advance, sentences may be dropped, repeated or reordered."""
    whole = search_tree(DIVERSE, LOGITS, LIMITS)
    state, result = advance_tree(DIVERSE, start_tree(DIVERSE, LOGITS, LIMITS), 2)
    assert state.step == 2
    assert np.asarray(state.done)[LIMITS <= 2].all()
    # After each step, there is a result, as from a search with this limit.
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


def test_advance_leaves_a_few_unfinished_sentences():
    advance = jax.jit(functools.partial(DIVERSE.advance, tree_step, until=CAPACITY, unfinished=3))
    state = advance(start_tree(DIVERSE, LOGITS, LIMITS))
    assert 1 <= (~state.done).sum() <= 3
    assert state.step < 5
    result = jax.device_get(advance_tree(DIVERSE, state, CAPACITY)[1])
    jax.tree.map(np.testing.assert_array_equal, result, search_tree(DIVERSE, LOGITS, LIMITS))


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


@pytest.mark.parametrize(
    ("shape", "eos_id", "message"),
    [
        ((2, 2, 5), 1, r"step_fn must return logits .* = \[1, 2, 2 or more\]"),
        ((1, 2, 5), 5, r"eos_id must be a token of .*, 0 to 4: got 5"),
    ],
)
def test_wrong_logits_are_refused(shape, eos_id, message):
    search = beam(eos_id=eos_id)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(
            lambda: search(lambda *_: (jnp.ones(shape), ()), (), max_lengths=[3], capacity=6)
        )


compiled_expand = jax.jit(lambda *arrays: expand(*arrays, arrays[0]))


@pytest.mark.parametrize(
    ("beams", "size"), [(1, 5), (1, 8001), (2, 2), (3, 67), (3, 1000), (4, 1024), (4, 8009)]
)
def test_the_best_candidates_equal_a_stable_sort_with_ties_and_impossible_values(beams, size):
    random = np.random.default_rng(size + beams)
    logits = random.integers(-3, 4, (3, beams, size)).astype(np.float32)  # Many ties.
    logits[random.random(logits.shape) < 0.3] = -np.inf
    logits[0] = -np.inf
    logits[0, -1, [size // 4, size - 2]] = 0  # The second in a block of a greater value.
    logits[1] = logits[1, :1]  # Equal hypotheses, too.
    logits[2, -1, : size - 1] = -np.inf
    logits[:, -1, size - 1] = 1.0
    log_probs = np.where(random.random((3, beams)) < 0.3, -np.inf, -1).astype(np.float32)
    log_probs[:, -1] = -1
    with np.errstate(divide="ignore"):
        totals = np.log(np.exp(logits, dtype=np.float64).sum(axis=2, keepdims=True))
    new = logits - np.where(totals == -np.inf, 0, totals)
    expected = (log_probs[:, :, None] + new).reshape(3, -1)
    ranked = -np.round(expected, 4)
    places = np.argsort(ranked, axis=1, kind="stable")[:, : 2 * beams if beams > 1 else 1]
    found = jax.device_get(compiled_expand(logits, log_probs))
    expected = np.take_along_axis(expected, places, axis=1)
    np.testing.assert_allclose(found.log_probs, expected, rtol=1e-6)
    exist = expected > -np.inf
    assert exist.sum() >= 3
    np.testing.assert_array_equal(found.parents[exist], (places // size)[exist])
    np.testing.assert_array_equal(found.tokens[exist], (places % size)[exist])
    assert (found.tokens < size).all()


def step_of(**changes):
    """Returns a search of one step as a function of arrays, and its arguments."""
    settings = beam(beam_size=4, **changes)
    table = np.zeros((1, 1, 997, 997), np.float32)
    state = jax.jit(lambda table: settings.start(table, [6], 6))(table)
    arrays, structure = jax.tree.flatten(state)

    def one(*arrays):
        state = jax.tree.unflatten(structure, arrays)
        return jax.tree.leaves(settings.advance(lambda t, cache: (cache[0, 0][t], cache), state, 1))

    return one, arrays


OPTIONS = {"min_length": 2, "no_repeat_ngram": 2, "diversity_groups": 2, "diversity_penalty": 0.5}


@pytest.mark.parametrize("changes", [{}, OPTIONS])
def test_candidates_are_not_sorted(changes):
    """XLA keeps its top-k and does not fall back to sorting all N * V candidates of every step."""
    function, arrays = step_of(**changes)
    program = jax.jit(function).lower(*arrays).compile().as_text()
    assert " sort(" not in program
    assert "TopK" in program
