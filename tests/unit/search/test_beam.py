"""Beam search against exhaustive search, a beam in plain Python, argmax, and numbers by hand.

The step functions walk a tree: every prefix has prescribed logits of its own, so a token, a cache
row or a score that ends up with the wrong hypothesis shows.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.search import BeamResult, beam_search
from jaxformer.search.beam import advance, expand, finalise, freeze, merge_finished, split
from jaxformer.search.state import Candidates, Rules, initial_state

PAD, EOS, BOS = 0, 1, 0  # BOS shares an id with a token: it must never be taken for it
ROOM = 6
INFINITY = float("inf")


def tree_logits(seed: int, sentences: int, vocabulary: int, depth: int, exact: bool) -> np.ndarray:
    """Logits [sentences, prefixes, vocabulary], float32; prefix (a, b) is row (a + 1) * V + b + 1.

    Exact ones have one token of probability one (to float32) and others of exp(-32 k): then log
    probabilities are integers, their sums exact, and ties frequent. Both kinds contain -inf, and
    prefixes that nothing can continue.
    """
    random = np.random.default_rng(seed)
    shape = (sentences, sum(vocabulary**level for level in range(depth)), vocabulary)
    logits = -32.0 * random.integers(1, 4, shape) if exact else 2.0 * random.normal(size=shape)
    logits[random.random(shape) < random.choice([0.0, 0.1, 0.4])] = -INFINITY
    if exact:
        np.put_along_axis(logits, random.integers(0, vocabulary, (*shape[:2], 1)), 0.0, axis=2)
    logits[random.random(shape[:2]) < random.choice([0.0, 0.1])] = -INFINITY
    return logits.astype(np.float32)


def tree_step(tokens: jax.Array, cache: dict) -> tuple[jax.Array, dict]:
    """Logits of the prefix each hypothesis stands at; the logits are shared by its beams."""
    vocabulary = cache["logits"].shape[-1]
    prefix = jnp.where(cache["position"] == 0, 0, cache["prefix"] * vocabulary + tokens + 1)
    logits = jnp.take_along_axis(cache["logits"][:, 0], prefix[:, :, None], axis=1, mode="clip")
    return logits, {**cache, "prefix": prefix, "position": cache["position"] + 1}


@functools.partial(jax.jit, static_argnames=("beams", "alpha", "early_stop"))
def search_tree(logits, limits, *, beams: int, alpha: float, early_stop: bool = True) -> BeamResult:
    sentences = limits.shape[0]
    cache = {
        "logits": logits[:, None],
        "prefix": jnp.zeros((sentences, beams), jnp.int32),
        "position": jnp.zeros((), jnp.int32),
    }
    return beam_search(
        tree_step,
        cache,
        batch_size=sentences,
        beam_size=beams,
        max_length=ROOM,
        limits=limits,
        length_penalty=alpha,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=PAD,
        early_stop=early_stop,
    )


class Tree:
    """One sentence's tree in plain Python, for the oracles."""

    def __init__(self, logits: np.ndarray):
        self.logits = logits
        with np.errstate(all="ignore"):  # in float32, in which exact ones become integers
            log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        self.log_probs = np.where(logits == -INFINITY, -INFINITY, log_probs)

    def row(self, prefix: tuple[int, ...]) -> int:
        vocabulary = self.logits.shape[1]
        return functools.reduce(lambda row, token: row * vocabulary + token + 1, prefix, 0)

    def next_log_probs(self, prefix: tuple[int, ...]) -> list[float]:
        return self.log_probs[self.row(prefix)].tolist()

    def log_prob(self, tokens: tuple[int, ...]) -> float:
        return sum(self.next_log_probs(tokens[:i])[token] for i, token in enumerate(tokens))


Hypothesis = tuple[float, float, tuple[int, ...]]  # score, log probability, tokens


def score(log_prob: float, length: int, alpha: float) -> float:
    return log_prob / ((5 + length) / 6) ** alpha


def exhaustive(tree: Tree, limit: int, alpha: float) -> list[Hypothesis]:
    """Every hypothesis with EOS that is possible, else every one of full length; best first."""
    others = [token for token in range(tree.logits.shape[1]) if token != EOS]
    ended = [
        (*prefix, EOS)
        for length in range(limit)
        for prefix in itertools.product(others, repeat=length)
    ]
    for group in (ended, list(itertools.product(others, repeat=limit))):
        scored = [(tree.log_prob(tokens), tokens) for tokens in group]
        found = [(score(p, len(t), alpha), p, t) for p, t in scored if p > -INFINITY]
        if found:
            return sorted(found, reverse=True)
    return []


def plain_beam(tree: Tree, limit: int, beams: int, alpha: float) -> list[Hypothesis]:
    """Beam search as the docstring of jaxformer.search.beam says it; every sort is stable."""
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        candidates = []
        for log_prob, prefix in alive:
            options = list(enumerate(tree.next_log_probs(prefix)))
            for token, added in sorted(options, key=lambda option: -option[1]):
                if added > -INFINITY:
                    candidates.append((log_prob + added, (*prefix, token)))
        candidates = sorted(candidates, key=lambda candidate: -candidate[0])
        candidates = candidates[: 2 * beams if beams > 1 else 1]
        alive = [c for c in candidates if c[1][-1] != EOS][:beams]
        finished += [(score(p, length, alpha), p, t) for p, t in candidates if t[-1] == EOS]
        finished = sorted(finished, key=lambda hypothesis: -hypothesis[0])[:beams]
    return finished or [(score(p, limit, alpha), p, tokens) for p, tokens in alive]


def hypotheses(result: BeamResult, sentence: int) -> list[Hypothesis]:
    """The existing hypotheses of one sentence; checks the form of all."""
    rows = zip(*(np.asarray(field[sentence]) for field in jax.tree.leaves(result)), strict=True)
    found = []
    for tokens, length, value, log_prob in rows:
        assert (tokens[length:] == PAD).all()
        if value == -INFINITY:
            assert length == 0
            assert log_prob == -INFINITY
        else:
            found.append((float(value), float(log_prob), tuple(tokens[:length].tolist())))
    values = np.asarray(result.scores[sentence])
    assert (values[:-1] >= values[1:]).all()  # best first, and those that do not exist last
    return found


def numbers(found: list[Hypothesis]) -> np.ndarray:
    return np.array([hypothesis[:2] for hypothesis in found]).reshape(-1, 2)


def tokens_of(found: list[Hypothesis]) -> list[tuple[int, ...]]:
    return [tokens for _, _, tokens in found]


cases = {"seed": st.integers(0, 2**32 - 1), "exact": st.booleans()}


# Beams enough to lose nothing: 2 * beams >= vocabulary * (vocabulary - 1)^(limit - 1).
@pytest.mark.parametrize(
    ("vocabulary", "depth", "beams", "alpha"),
    [(2, 5, 4, 0.6), (3, 4, 12, 0.0), (4, 3, 18, 1.0), (5, 4, 160, 2.0), (5, 5, 640, 0.6)],
)
@hypothesis.settings(max_examples=8, derandomize=True)
@hypothesis.given(**cases)
def test_a_beam_wide_enough_is_exhaustive(vocabulary, depth, beams, alpha, seed, exact):
    sentences = 3
    logits = tree_logits(seed, sentences, vocabulary, depth, exact)
    limits = np.random.default_rng(seed).integers(1, depth + 1, sentences).astype(np.int32)
    result = search_tree(logits, limits, beams=beams, alpha=alpha)
    for sentence, limit in enumerate(limits.tolist()):
        tree = Tree(logits[sentence])
        found, expected = hypotheses(result, sentence), exhaustive(tree, limit, alpha)[:beams]
        # Any order among equal scores is right: compare the scores, then each with its tokens.
        np.testing.assert_allclose(
            [h[0] for h in found], [h[0] for h in expected], rtol=1e-5, atol=1e-5
        )
        assert len(set(tokens_of(found))) == len(found)
        for value, log_prob, tokens in found:
            assert log_prob == pytest.approx(tree.log_prob(tokens), rel=1e-5, abs=1e-5)
            assert value == pytest.approx(score(log_prob, len(tokens), alpha), rel=1e-5)


@pytest.mark.parametrize(
    ("vocabulary", "depth", "beams", "alpha"),
    [(2, 5, 1, 0.6), (2, 5, 3, 1.0), (3, 5, 2, 0.0), (4, 5, 4, 0.6), (5, 4, 3, 2.0)],
)
@hypothesis.settings(max_examples=12, derandomize=True)
@hypothesis.given(**cases)
def test_equals_a_beam_in_plain_python(vocabulary, depth, beams, alpha, seed, exact):
    sentences = 8
    logits = tree_logits(seed, sentences, vocabulary, depth, exact)
    limits = np.random.default_rng(seed).integers(1, depth + 1, sentences).astype(np.int32)
    result = search_tree(logits, limits, beams=beams, alpha=alpha)
    patient = search_tree(logits, limits, beams=beams, alpha=alpha, early_stop=False)
    jax.tree.map(np.testing.assert_array_equal, result, patient)
    for sentence, limit in enumerate(limits.tolist()):
        found = hypotheses(result, sentence)
        expected = plain_beam(Tree(logits[sentence]), limit, beams, alpha)
        assert tokens_of(found) == tokens_of(expected)
        np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-5, atol=1e-5)


@hypothesis.settings(max_examples=12, derandomize=True)
@hypothesis.given(**cases)
def test_greedy_is_argmax(seed, exact):
    # To halves, so that the greatest logit is often shared by several tokens.
    logits = np.round(2 * tree_logits(seed, 8, 5, 4, exact)) / 2 + 0.0  # no -0.0
    result = search_tree(logits, jnp.full((8,), 4, jnp.int32), beams=1, alpha=0.6)
    for sentence in range(8):
        tree, tokens = Tree(logits[sentence]), ()
        while len(tokens) < 4 and EOS not in tokens:
            tokens += (int(np.argmax(tree.logits[tree.row(tokens)])),)
        found = hypotheses(result, sentence)
        assert tokens_of(found) == ([tokens] if tree.log_prob(tokens) > -INFINITY else [])


def markov(transitions: list[list[float]]) -> Callable:
    """A step function whose next token depends on the newest one only."""
    log_probs = jnp.log(jnp.array(transitions))
    return lambda tokens, cache: (log_probs[tokens], cache)


def search(step_fn: Callable, cache=(), **changes) -> BeamResult:
    arguments = {
        "batch_size": 1,
        "beam_size": 2,
        "max_length": ROOM,
        "limits": jnp.array([ROOM]),
        "length_penalty": 0.0,
        "bos_id": BOS,
        "eos_id": EOS,
        "pad_id": PAD,
    }
    return beam_search(step_fn, cache, **{**arguments, **changes})


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


def test_lattice_greedy_misses_the_best():
    assert hypotheses(search(LATTICE, beam_size=1), 0) == [
        (pytest.approx(np.log(0.30)), pytest.approx(np.log(0.30)), (A, C, EOS))
    ]


def test_lattice_beam_finds_the_best():
    assert hypotheses(search(LATTICE, beam_size=3), 0) == [
        (pytest.approx(np.log(0.36)), pytest.approx(np.log(0.36)), (B, EOS)),
        (pytest.approx(np.log(0.30)), pytest.approx(np.log(0.30)), (A, C, EOS)),
        (pytest.approx(np.log(0.18)), pytest.approx(np.log(0.18)), (A, EOS)),
    ]


def test_the_length_penalty_reranks():
    # log 0.36 / (7/6) = -0.876 against log 0.30 / (8/6) = -0.903: still B EOS at alpha 1, but at
    # alpha 2 log 0.36 / 1.361 = -0.751 against log 0.30 / 1.778 = -0.677.
    best = [tokens_of(hypotheses(search(LATTICE, length_penalty=a), 0))[0] for a in (0, 1, 2)]
    assert best == [(B, EOS), (B, EOS), (A, C, EOS)]


def test_limits_are_per_sentence_and_unfinished_is_the_last_resort():
    limits = jnp.array([1, 2, 3, 99, 0])  # 99 is cut to the room; 0 asks for nothing
    result = search(LATTICE, batch_size=5, beam_size=3, limits=limits)
    assert [tokens_of(hypotheses(result, sentence)) for sentence in range(5)] == [
        [(A,), (B,)],  # nothing can end after one token
        [(B, EOS), (A, EOS)],  # what is unfinished is dropped, though 0.3 for (A, C) beats 0.18
        [(B, EOS), (A, C, EOS), (A, EOS)],
        [(B, EOS), (A, C, EOS), (A, EOS)],
        [()],
    ]


def counted(step_fn: Callable, calls: list[int]) -> Callable:
    def step(tokens, cache):
        jax.debug.callback(lambda: calls.append(1))
        return step_fn(tokens, cache)

    return step


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"beam_size": 1}, 3),  # A C EOS
        ({"beam_size": 1, "early_stop": False}, ROOM),
        ({"beam_size": 2}, 3),  # after two, C of 0.30 is alive and A EOS of 0.18 is kept
        ({"beam_size": 1, "limits": jnp.array([2])}, 2),
        ({"limits": jnp.array([0])}, 0),
    ],
)
def test_no_step_is_taken_that_cannot_matter(changes: dict, steps: int):
    calls: list[int] = []
    jax.block_until_ready(search(counted(LATTICE, calls), **changes))
    jax.effects_barrier()
    assert len(calls) == steps


def test_result_does_not_depend_on_the_batch():
    logits = tree_logits(7, 7, 4, 5, exact=False)
    limits = np.array([5, 1, 4, 5, 2, 3, 5], np.int32)
    together = search_tree(logits, limits, beams=3, alpha=0.6)
    order = np.array([3, 6, 0, 5, 1, 4, 2])
    shuffled = search_tree(logits[order], limits[order], beams=3, alpha=0.6)
    alone = [
        search_tree(logits[i : i + 1], limits[i : i + 1], beams=3, alpha=0.6) for i in range(7)
    ]
    alone = jax.tree.map(lambda *rows: jnp.concatenate(rows), *alone)
    for other in (jax.tree.map(lambda rows: rows[np.argsort(order)], shuffled), alone):
        np.testing.assert_array_equal(together.tokens, other.tokens)
        np.testing.assert_allclose(together.scores, other.scores, atol=1e-6)


def test_a_sentence_of_nan_spoils_no_other():
    logits = tree_logits(8, 3, 4, 5, exact=False)
    limits = np.full(3, 5, np.int32)
    clean = search_tree(logits, limits, beams=3, alpha=0.6)
    logits[1] = np.nan
    spoilt = search_tree(logits, limits, beams=3, alpha=0.6)
    for sentence in (0, 2):
        assert hypotheses(spoilt, sentence) == hypotheses(clean, sentence)
    assert np.isnan(spoilt.scores[1]).all()


def test_cache_follows_its_hypothesis():
    """A cache that notes every token it is fed holds each alive hypothesis' own history."""
    random = jax.random.normal(jax.random.key(0), (2, 5, 50, 6))

    def step(tokens, cache):
        noted = cache["noted"].at[:, :, cache["position"]].set(tokens)
        hashed = (noted @ jnp.arange(1, ROOM + 1)) % 50
        logits = cache["table"][jnp.arange(2)[:, None], 0, 0, hashed]
        return logits, {**cache, "noted": noted, "position": cache["position"] + 1}

    cache = {
        "noted": jnp.full((2, 5, ROOM), -1),
        "table": random[:, :1, None],
        "position": jnp.array(0),
    }
    limits = jnp.full((2,), ROOM, jnp.int32)
    state = initial_state(cache, limits, 5, ROOM, BOS, PAD)
    rules = Rules(limits, jnp.ones(ROOM + 1), EOS, PAD, early_stop=False)
    advance_once = jax.jit(lambda state: advance(state, step, rules))
    moved = False
    for length in range(1, ROOM):
        state = advance_once(state)
        fed = state.cache["noted"][:, :, :length]
        assert (fed[:, :, 0] == BOS).all()
        np.testing.assert_array_equal(fed[:, :, 1:], state.alive_tokens[:, :, : length - 1])
        moved |= bool((state.alive.parents != jnp.arange(5)[None]).any())
    assert moved
    np.testing.assert_array_equal(state.cache["table"], cache["table"])


def test_works_under_vmap():
    logits = np.stack([tree_logits(seed, 2, 3, 5, exact=False) for seed in range(3)])
    limits = np.array([[5, 5], [3, 1], [4, 5]], np.int32)
    run = functools.partial(search_tree, beams=2, alpha=0.6)
    together = jax.vmap(run)(logits, limits)
    for i in range(3):
        single = run(logits[i], limits[i])
        np.testing.assert_array_equal(together.tokens[i], single.tokens)
        np.testing.assert_allclose(together.scores[i], single.scores, atol=1e-6)


def test_nothing_is_sorted_whole():
    """XLA must keep its top-k, not fall back to sorting all N * V candidates of every step."""
    table = jnp.ones((5, 997))
    run = jax.jit(lambda limits: search(lambda t, c: (table[t], c), limits=limits, beam_size=4))
    program = run.lower(jnp.array([ROOM])).compile().as_text()
    assert " sort(" not in program
    assert "TopK" in program


def test_bfloat16_logits_are_normalised_in_float32():
    logits = jax.random.normal(jax.random.key(1), (1, 1, 4000), jnp.bfloat16)
    candidates = expand(logits, jnp.zeros((1, 1)))
    exact = np.asarray(logits, np.float64)
    expected = exact.max() - np.log(np.exp(exact).sum())
    assert candidates.log_probs.dtype == jnp.float32
    assert candidates.log_probs[0, 0] == pytest.approx(expected, rel=1e-6)


def test_expand_orders_ties_by_hypothesis_then_token():
    candidates = expand(jnp.zeros((1, 2, 3)), jnp.zeros((1, 2)))
    assert candidates.parents.tolist() == [[0, 0, 0, 1]]
    assert candidates.tokens.tolist() == [[0, 1, 2, 0]]


def test_expand_keeps_the_impossible_impossible():
    logits = jnp.array([[[0.0, -INFINITY], [-INFINITY, -INFINITY]]])
    candidates = expand(logits, jnp.array([[-1.0, 0.0]]))
    assert candidates.log_probs.tolist() == [[-1.0, -INFINITY, -INFINITY, -INFINITY]]
    assert (candidates.parents[0, 0], candidates.tokens[0, 0]) == (0, 0)


def test_split_parts_what_goes_on_from_what_ends():
    candidates = Candidates(
        log_probs=jnp.array([[-1.0, -2.0, -3.0, -4.0]]),
        tokens=jnp.array([[EOS, 5, EOS, 6]]),
        parents=jnp.array([[1, 1, 0, 0]]),
    )
    alive, ended = split(candidates, 2, EOS)
    assert alive.log_probs.tolist() == [[-2.0, -4.0]]
    assert (alive.tokens.tolist(), alive.parents.tolist()) == ([[5, 6]], [[1, 0]])
    assert ended.log_probs.tolist() == [[-1.0, -3.0]]
    assert (ended.tokens.tolist(), ended.parents.tolist()) == ([[EOS, EOS]], [[1, 0]])


def test_freeze_holds_only_what_is_over():
    limits = jnp.array([0, 3])  # the first sentence is over from the start
    state = initial_state((), limits, 2, 3, BOS, PAD)
    new = Candidates(
        log_probs=jnp.full((2, 2), -5.0),
        tokens=jnp.full((2, 2), 4, jnp.int32),
        parents=jnp.ones((2, 2), jnp.int32),
    )
    alive, ended = freeze(state, new, new, PAD)
    assert alive.log_probs.tolist() == [[0.0, -INFINITY], [-5.0, -5.0]]
    assert alive.tokens.tolist() == [[PAD, PAD], [4, 4]]
    assert alive.parents.tolist() == [[0, 1], [1, 1]]
    assert ended.log_probs.tolist() == [[-INFINITY, -INFINITY], [-5.0, -5.0]]


def finished(scores: list[float], token: int) -> BeamResult:
    return BeamResult(
        tokens=jnp.full((1, len(scores), 3), token, jnp.int32),
        lengths=jnp.full((1, len(scores)), 3, jnp.int32),
        scores=jnp.array([scores]),
        log_probs=2 * jnp.array([scores]),
    )


def test_merge_finished_keeps_the_best_and_prefers_the_older():
    merged = merge_finished(finished([-1.0, -3.0], token=7), finished([-2.0, -1.0], token=8))
    assert merged.scores.tolist() == [[-1.0, -1.0]]
    assert merged.log_probs.tolist() == [[-2.0, -2.0]]
    assert merged.tokens[0, :, 0].tolist() == [7, 8]


def test_finalise_takes_alive_only_where_nothing_finished():
    rules = Rules(jnp.array([2]), jnp.array([1.0, 1.0, 4.0]), EOS, PAD, early_stop=True)
    state = initial_state((), rules.limits, 2, 3, BOS, PAD)
    state = dataclasses.replace(
        state, alive_tokens=jnp.full((1, 2, 3), 5, jnp.int32).at[:, :, 2].set(PAD)
    )
    state = dataclasses.replace(
        state, alive=dataclasses.replace(state.alive, log_probs=jnp.array([[-2.0, -INFINITY]]))
    )
    result = finalise(state, rules)
    assert hypotheses(result, 0) == [(-0.5, -2.0, (5, 5))]
    state = dataclasses.replace(state, finished=finished([-9.0, -INFINITY], token=7))
    assert hypotheses(finalise(state, rules), 0) == [(-9.0, -18.0, (7, 7, 7))]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 0}, "beam_size must be at least 1: got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1: got 0"),
        ({"max_length": 0}, "max_length must be at least 1: got 0"),
        ({"limits": jnp.array([1, 2])}, r"limits must hold .* shape \(1,\): got \(2,\)"),
        ({"length_penalty": -0.1}, "length_penalty must be 0 or more: got -0.1"),
        ({"eos_id": 5}, "eos_id must be a token of the vocabulary, 0 to 4: got 5"),
    ],
)
def test_wrong_arguments_are_refused(changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        search(LATTICE, **changes)


@pytest.mark.parametrize("shape", [(1, 2), (1, 1, 5), (2, 2, 5), (1, 2, 1)])
def test_wrong_logits_are_refused(shape: tuple[int, ...]):
    with pytest.raises(UserError, match=r"step_fn must return logits .* = \[1, 2, 2 or more\]"):
        search(lambda tokens, cache: (jnp.zeros(shape), cache))
