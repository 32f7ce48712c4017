"""Beam search on a lattice with results computed by hand, properties for any model, candidates."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.search import contrast, take_sentences
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
A = 2
B = 3
C = 4


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

    start = settings.start((), limits, CAPACITY, prefix)
    state = settings.advance(step, start, CAPACITY)
    return state.step, settings.finalize(state)


class ByHand(NamedTuple):
    """One sentence, and what is found for it."""

    limit: int  # maximum length
    forced: tuple[int, ...]  # the prefix
    expected: dict[tuple[int, ...], float]  # hypotheses, best first, with their probabilities


BY_HAND = [
    # Greedy search misses the best.
    ({"beam_size": 1}, [ByHand(6, (), {(A, C, EOS): 0.30})]),
    (
        {"beam_size": 3},
        [
            ByHand(6, (), {(B, EOS): 0.36, (A, C, EOS): 0.30, (A, EOS): 0.18}),
            # Limited to 6.
            ByHand(99, (), {(B, EOS): 0.36, (A, C, EOS): 0.30, (A, EOS): 0.18}),
            # Unfinished (A, C) is dropped, though 0.3 > 0.18. No hypothesis ends after one token.
            ByHand(2, (), {(B, EOS): 0.36, (A, EOS): 0.18}),
            ByHand(1, (), {(A,): 0.6, (B,): 0.4}),
            ByHand(0, (), {(): 1.0}),
            # A prefix counts with its probability, and is truncated to the limit.
            ByHand(6, (A,), {(A, C, EOS): 0.30, (A, EOS): 0.18, (A, B, EOS): 0.6 * 0.2 * 0.9}),
            ByHand(6, (B, C), {(B, C, EOS): 0.04}),
            ByHand(6, (A, EOS), {(A, EOS): 0.18}),
            # C cannot come first.
            ByHand(6, (C,), {}),
            ByHand(2, (A, B, C), {(A, B): 0.12}),
        ],
    ),
    # Both groups are greedy and would find A C EOS. The second group chooses B if A costs more than
    # log 0.6 - log 0.4 = 0.41. The result has the model's probability.
    (
        {"beam_size": 2, "diversity_groups": 2, "diversity_penalty": 0.5},
        [ByHand(6, (), {(B, EOS): 0.36, (A, C, EOS): 0.30})],
    ),
    # With a smaller penalty than 0.41, both groups find A C EOS.
    (
        {"beam_size": 2, "diversity_groups": 2, "diversity_penalty": 0.4},
        [ByHand(6, (), {(A, C, EOS): 0.30})],
    ),
    # log 0.36 / (7/6)^2 = -0.751 is less than log 0.30 / (8/6)^2 = -0.677.
    ({"length_penalty": 2.0}, [ByHand(6, (), {(A, C, EOS): 0.30, (B, EOS): 0.36})]),
    (
        {"beam_size": 3, "unfinished": "compete"},
        [ByHand(2, (), {(B, EOS): 0.36, (A, C): 0.30, (A, EOS): 0.18})],
    ),
    # At the limit, the end has probability one, even if it is forbidden or another token is forced.
    (
        {"beam_size": 3, "unfinished": "end", "min_length": 2},
        [
            ByHand(2, (), {(A, EOS): 0.6, (B, EOS): 0.4}),
            ByHand(2, (B, C), {(B, EOS): 0.4}),
            ByHand(1, (), {(EOS,): 1.0}),
        ],
    ),
    ({"beam_size": 1, "unfinished": "end"}, [ByHand(2, (), {(A, EOS): 0.6})]),
    # After two tokens the candidates are B EOS 0.36, A C 0.30, A EOS 0.18, A B 0.12. A EOS is the
    # third, so it ends only within 2N.
    ({"beam_size": 2}, [ByHand(2, (), {(B, EOS): 0.36, (A, EOS): 0.18})]),
    ({"beam_size": 2, "ends_within": "N"}, [ByHand(2, (), {(B, EOS): 0.36})]),
    # Probabilities are not renormalized.
    (
        {"beam_size": 3, "min_length": 2},
        [
            ByHand(
                6,
                (),
                {(A, C, EOS): 0.30, (A, B, EOS): 0.6 * 0.2 * 0.9, (B, C, EOS): 0.4 * 0.1},
            ),
            # A forced EOS is allowed.
            ByHand(6, (A, EOS), {(A, EOS): 0.18}),
            # Limits take precedence.
            ByHand(1, (), {(A,): 0.6, (B,): 0.4}),
        ],
    ),
]


def assert_found(found, expected):
    """Groups may find the same hypothesis, which then counts once."""
    assert list(dict.fromkeys(tokens_of(found))) == list(expected)
    probabilities = {tokens: np.exp(log_prob) for _, log_prob, tokens in found}
    assert probabilities == pytest.approx(expected)


@pytest.mark.parametrize(("changes", "rows"), BY_HAND)
def test_the_plain_beam_finds_what_is_computed_by_hand(changes, rows):
    settings = beam(**changes)
    for row in rows:
        limit = min(row.limit, CAPACITY)
        found = plain_beam(LatticeTree(), settings, limit, forced=row.forced)
        assert_found(found, row.expected)


@pytest.mark.parametrize(
    ("changes", "rows"),
    by_profile(BY_HAND[:3], nightly=BY_HAND),
)
def test_beam_search_finds_what_is_computed_by_hand(changes, rows):
    prefix = np.full((len(rows), 4), PAD)
    for sentence, row in enumerate(rows):
        prefix[sentence, : len(row.forced)] = row.forced
    limits = np.array([row.limit for row in rows])

    _, result = jax.device_get(search_lattice(beam(**changes), limits, prefix))

    for sentence, row in enumerate(rows):
        assert_found(hypotheses(result, sentence), row.expected)


def test_no_step_is_unnecessary():
    # After three tokens, A B C of 0.012 is alive. Its score is log 0.012 / (8/6)^4 = -1.4 now,
    # but -0.39 at the limit, where it would displace B EOS of log 0.36 / (7/6)^4 = -0.55.
    prefix = np.full((1, 4), PAD)
    settings = beam(length_penalty=4.0)
    for limit, expected_steps in ((CAPACITY, 4), (2, 2), (0, 0)):
        steps, _ = search_lattice(settings, np.array([limit]), prefix)
        assert steps == expected_steps


DIVERSE = beam(
    beam_size=4,
    length_penalty=0.6,
    diversity_groups=2,
    diversity_penalty=0.5,
)
LOGITS = tree_logits(seed=7, sentences=7, vocabulary=4, depth=5)
LIMITS = np.array([5, 1, 4, 5, 2, 3, 5], np.int32)


def test_advance_in_several_calls_equals_one_call():
    """Between calls of advance, sentences may be dropped, repeated or reordered."""
    whole = search_tree(DIVERSE, LOGITS, LIMITS)

    start = start_tree(DIVERSE, LOGITS, LIMITS)
    state, result = advance_tree(DIVERSE, start, 2)
    assert state.step == 2
    done = np.asarray(state.done)
    assert done[LIMITS <= 2].all()

    # After each step, there is a result, as from a search with this limit.
    limited = search_tree(DIVERSE, LOGITS, np.minimum(LIMITS, 2))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(close, jax.device_get(result), limited)

    rows = np.array([6, 0, 3, 3, 2, 1, 0])
    state = jax.jit(take_sentences)(state, rows)
    state, result = advance_tree(DIVERSE, state, CAPACITY)
    assert state.step == 5
    result = jax.device_get(result)
    for sentence, row in enumerate(rows.tolist()):
        assert hypotheses(result, sentence) == hypotheses(whole, row)


def test_advance_leaves_a_few_unfinished_sentences():
    advance = functools.partial(
        DIVERSE.advance,
        tree_step,
        until=CAPACITY,
        unfinished=3,
    )

    start = start_tree(DIVERSE, LOGITS, LIMITS)
    state = jax.jit(advance)(start)
    unfinished = ~state.done
    assert 1 <= unfinished.sum() <= 3
    assert state.step < 5

    _, result = advance_tree(DIVERSE, state, CAPACITY)
    whole = search_tree(DIVERSE, LOGITS, LIMITS)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(result), whole)


def test_result_does_not_depend_on_the_other_sentences():
    """Not even if their logits are NaN."""
    together = search_tree(DIVERSE, LOGITS, LIMITS)
    order = np.array([3, 6, 0, 5, 1, 4, 2])
    shuffled = search_tree(DIVERSE, LOGITS[order], LIMITS[order])

    for row in range(7):
        expected = hypotheses(together, row)
        shuffled_row = order.tolist().index(row)
        assert hypotheses(shuffled, shuffled_row) == expected

        others = np.arange(7) != row
        without_others = np.where(others[:, None, None], np.float32(np.nan), LOGITS)
        alone = search_tree(DIVERSE, without_others, LIMITS)
        assert hypotheses(alone, row) == expected
        assert np.isnan(alone.scores[others, 0]).all()


def test_several_ends_count_as_one():
    """If C also ends, A ends with 0.3 + 0.5 and B with 0.9 + 0.1: 0.48 and 0.40 in all."""
    settings = beam(other_ends=(C,))
    _, result = search_lattice(settings, np.array([CAPACITY]), np.zeros((1, 0), np.int32))

    assert result.tokens[0, :, :3].tolist() == [[A, EOS, PAD], [B, EOS, PAD]]
    np.testing.assert_allclose(np.exp(result.log_probs[0]), [0.48, 0.40], rtol=1e-6)


def test_other_ends_must_be_tokens_and_no_contrast():
    def step(tokens, cache):
        return jnp.ones((1, 2, 5)), cache

    def search(step, ends):
        return beam(other_ends=ends)(step, (), max_lengths=[3], capacity=6)

    with pytest.raises(UserError, match=r"other_ends must be a token of .*, 0 to 4: got 7"):
        jax.eval_shape(lambda: search(step, (2, 7)))

    both = contrast(step, step, 0.1)

    def search_both():
        settings = beam(other_ends=(2,))
        state = settings.start(
            cache=((), ()),
            max_lengths=np.array([3]),
            capacity=6,
            contrast=True,
        )
        return settings.advance(both, state, 6)

    with pytest.raises(UserError, match="a contrast has one end"):
        jax.eval_shape(search_both)


@pytest.mark.parametrize(
    ("shape", "eos_id", "message"),
    [
        ((2, 2, 5), 1, r"step_fn must return logits .* = \[1, 2, 2 or more\]"),
        ((1, 2, 5), 5, r"eos_id must be a token of .*, 0 to 4: got 5"),
    ],
)
def test_wrong_logits_are_refused(shape, eos_id, message):
    settings = beam(eos_id=eos_id)

    def step(tokens, cache):
        return jnp.ones(shape), cache

    def search():
        return settings(step, (), max_lengths=[3], capacity=6)

    with pytest.raises(UserError, match=message):
        jax.eval_shape(search)


@jax.jit
def compiled_expand(logits, log_probs):
    return expand(logits, log_probs, logits)


def logits_with_ties(random, beams, size):
    """Returns logits of three sentences, [3, beams, size], with ties and impossible values."""
    logits = random.integers(-3, 4, (3, beams, size)).astype(np.float32)
    impossible = random.random(logits.shape) < 0.3
    logits[impossible] = -np.inf

    # In the first sentence, two candidates tie; the second is in a block with a greater value.
    logits[0] = -np.inf
    logits[0, -1, [size // 4, size - 2]] = 0

    # In the second, all hypotheses have equal candidates.
    logits[1] = logits[1, :1]

    # In all, the last token of the last hypothesis is possible; in the third, it is its only one.
    logits[2, -1, : size - 1] = -np.inf
    logits[:, -1, size - 1] = 1.0
    return logits


@pytest.mark.parametrize(
    ("beams", "size"),
    [
        (1, 5),
        (1, 8001),
        (2, 2),
        (3, 67),
        (3, 1000),
        (4, 1024),
        (4, 8009),
    ],
)
def test_the_best_candidates_equal_a_stable_sort_with_ties_and_impossible_values(beams, size):
    random = np.random.default_rng(size + beams)
    logits = logits_with_ties(random, beams, size)
    impossible = random.random((3, beams)) < 0.3
    log_probs = np.where(impossible, -np.inf, -1).astype(np.float32)
    log_probs[:, -1] = -1

    found = jax.device_get(compiled_expand(logits, log_probs))

    sums = np.exp(logits, dtype=np.float64).sum(axis=2, keepdims=True)
    with np.errstate(divide="ignore"):
        totals = np.log(sums)
    is_impossible = sums == 0  # all logits are -inf, and stay so
    new = logits - np.where(is_impossible, 0, totals)
    by_beam = log_probs[:, :, None] + new
    candidates = by_beam.reshape(3, -1)  # [3, beams * size]

    rounded = np.round(candidates, 4)
    ranked = np.argsort(-rounded, axis=1, kind="stable")
    # A beam of N expands 2N candidates, as N of them may end; greedy search needs one.
    count = 1 if beams == 1 else 2 * beams
    places = ranked[:, :count]
    expected = np.take_along_axis(candidates, places, axis=1)

    np.testing.assert_allclose(found.log_probs, expected, rtol=1e-6)
    exist = expected > -np.inf
    assert exist.sum() >= 3
    parents, tokens = np.divmod(places, size)
    np.testing.assert_array_equal(found.parents[exist], parents[exist])
    np.testing.assert_array_equal(found.tokens[exist], tokens[exist])
    assert (found.tokens < size).all()


OPTIONS = {
    "min_length": 2,
    "no_repeat_ngram": 2,
    "diversity_groups": 2,
    "diversity_penalty": 0.5,
}


@pytest.mark.parametrize("changes", [{}, OPTIONS])
def test_candidates_are_not_sorted(changes):
    """XLA keeps its top-k and does not fall back to sorting all N * V candidates of every step."""
    settings = beam(beam_size=4, **changes)
    table = np.zeros((1, 1, 997, 997), np.float32)

    @jax.jit
    def start(table):
        return settings.start(table, max_lengths=[6], capacity=6)

    state = start(table)

    # A search of one step, as a function of arrays.
    arrays, structure = jax.tree.flatten(state)

    def step(tokens, cache):
        return cache[0, 0][tokens], cache

    @jax.jit
    def one(*arrays):
        state = jax.tree.unflatten(structure, arrays)
        advanced = settings.advance(step, state, 1)
        return jax.tree.leaves(advanced)

    compiled = one.lower(*arrays).compile()
    program = compiled.as_text()

    assert " sort(" not in program
    assert "TopK" in program
