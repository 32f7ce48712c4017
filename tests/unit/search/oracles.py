"""Reference implementations for searches over trees: exhaustive search and a plain Python beam.

In a tree every prefix has its own prescribed logits, so that a token, a cache row or a score that
is assigned to the wrong hypothesis changes the result.
"""

import collections
import functools
import itertools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.search import Algorithm, BeamResult, BeamSearch, Sampling
from jaxformer.search.state import SearchState

PAD, EOS, BOS = 0, 1, 0  # Two ids are also ids of tokens, which must never be confused.
CAPACITY = 6
INFINITY = float("inf")

Tokens = tuple[int, ...]
Hypothesis = tuple[float, float, Tokens]  # score, log probability, tokens


IDS = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}


def beam(**changes) -> BeamSearch:
    return BeamSearch(**{"beam_size": 2, "length_penalty": 0.0, **IDS, **changes})


def sampling(**changes) -> Sampling:
    return Sampling(**{"num_samples": 2, "length_penalty": 0.0, **IDS, **changes})


def log(probabilities) -> np.ndarray:
    """Returns float32 logarithms, -inf for 0."""
    with np.errstate(divide="ignore"):
        return np.log(probabilities).astype(np.float32)


def tree_logits(seed: int, sentences: int, vocabulary: int, depth: int) -> np.ndarray:
    """Returns logits [sentences, prefixes, vocabulary], float32.

    Prefix (a, b) is row (a + 1) * V + b + 1. In about half of the sentences they are normal. In the
    others they are exact: one token has probability one (to float32), the others exp(-32 k), so
    that log probabilities are integers, sums are exact, and ties are frequent. Both kinds contain
    -inf, and prefixes without continuations.
    """
    random = np.random.default_rng(seed)
    shape = (sentences, sum(vocabulary**level for level in range(depth)), vocabulary)
    exact = random.random((sentences, 1, 1)) < 0.5
    logits = np.where(exact, -32.0 * random.integers(1, 4, shape), 2.0 * random.normal(size=shape))
    logits[random.random(shape) < random.choice([0.0, 0.1, 0.4], (sentences, 1, 1))] = -INFINITY
    certain = np.arange(vocabulary) == random.integers(0, vocabulary, (*shape[:2], 1))
    logits = np.where(exact & certain, 0.0, logits)
    dead_ends = random.random(shape[:2]) < random.choice([0.0, 0.1], (sentences, 1))
    logits[dead_ends] = -INFINITY
    return logits.astype(np.float32)


def tree_step(tokens: jax.Array, cache: dict) -> tuple[jax.Array, dict]:
    """Returns logits of the prefix of each hypothesis; the beams share the logits."""
    vocabulary = cache["logits"].shape[-1]
    prefix = jnp.where(cache["position"] == 0, 0, cache["prefix"] * vocabulary + tokens + 1)
    logits = jnp.take_along_axis(cache["logits"][:, 0], prefix[:, :, None], axis=1, mode="clip")
    return logits, {**cache, "prefix": prefix, "position": cache["position"] + 1}


def tree_cache(logits, beams: int) -> dict:
    return {
        "logits": logits[:, None],
        "prefix": jnp.zeros((logits.shape[0], beams), jnp.int32),
        "position": jnp.zeros((), jnp.int32),
    }


@functools.partial(jax.jit, static_argnames="settings")
def start_tree(
    settings: Algorithm, logits, limits, prefix=None, keys=None, n_best=0
) -> SearchState:
    cache = tree_cache(logits, settings.num_hypotheses)
    return settings.start(cache, limits, CAPACITY, prefix, keys=keys, n_best=n_best)


@functools.partial(jax.jit, static_argnames="settings")
def advance_tree(settings: Algorithm, state: SearchState, until) -> tuple[SearchState, BeamResult]:
    state = settings.advance(tree_step, state, until)
    return state, settings.finalize(state)


def search_tree(
    settings: Algorithm, logits, limits, prefix=None, keys=None, n_best=0
) -> BeamResult:
    state = start_tree(settings, logits, limits, prefix, keys, n_best)
    return jax.device_get(advance_tree(settings, state, CAPACITY)[1])


def search_patiently(settings: BeamSearch, logits, limits, prefix=None) -> BeamResult:
    """Runs the search step by step, and undoes every decision to stop before the limit."""
    state = start_tree(settings, logits, limits, prefix)
    for length in range(1, CAPACITY + 1):
        state, _ = advance_tree(settings, state, length)
        state = state.replace(done=jnp.asarray(np.asarray(state.max_lengths) <= int(state.step)))
    return jax.device_get(advance_tree(settings, state, CAPACITY)[1])


class Tree:
    """The tree of one sentence in plain Python."""

    def __init__(self, logits: np.ndarray):
        self.logits = logits
        with np.errstate(all="ignore"):  # In float32, exact log probabilities are integers.
            log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        self.log_probs = np.where(logits == -INFINITY, -INFINITY, log_probs)

    def row(self, prefix: Tokens) -> int:
        vocabulary = self.logits.shape[1]
        return functools.reduce(lambda row, token: row * vocabulary + token + 1, prefix, 0)

    def next_log_probs(self, prefix: Tokens) -> list[float]:
        return self.log_probs[self.row(prefix)].tolist()

    def log_prob(self, tokens: Tokens) -> float:
        return sum(self.next_log_probs(tokens[:i])[token] for i, token in enumerate(tokens))


def score(settings: BeamSearch, log_prob: float, length: int) -> float:
    """Computes scores in float32 like the search, so that the same hypotheses tie."""
    alpha = settings.length_penalty
    penalties = {"gnmt": (5 + length) / 6, "power": max(length, 1), "none": 1.0}
    penalty = penalties[settings.penalty] ** alpha
    return float(np.float32(log_prob) / np.float32(penalty))


def permitted(settings: BeamSearch, forced: Tokens, tokens: Tokens) -> bool:
    """Returns whether the settings allow a hypothesis, judged as a whole and not token by token."""
    if any(token != must for token, must in zip(tokens, forced, strict=False)):
        return False
    free = range(len(forced), len(tokens))
    if any(tokens[i] == EOS and i < settings.min_length for i in free):
        return False
    if n := settings.no_repeat_ngram:
        grams = {i: tokens[i - n + 1 : i + 1] for i in range(n - 1, len(tokens))}
        return not any(grams[i] == grams[j] for i in grams for j in grams if j < i and i in free)
    return True


def exhaustive(
    tree: Tree,
    settings: BeamSearch,
    limit: int,
    forced: Tokens,
    also: Callable[[Tokens], bool] = lambda tokens: True,
) -> list[Hypothesis]:
    """Returns all possible and permitted hypotheses, best first.

    They end in EOS, or have full length if none does; both if unfinished hypotheses compete.
    ``also`` is a further condition.
    """
    others = [token for token in range(tree.logits.shape[1]) if token != EOS]

    def found(candidates: Iterator[Tokens]) -> list[Hypothesis]:
        allowed = [t for t in candidates if permitted(settings, forced, t) and also(t)]
        scored = [(tree.log_prob(tokens), tokens) for tokens in allowed]
        return [(score(settings, p, len(t)), p, t) for p, t in scored if p > -INFINITY]

    ended = found(
        (*before, EOS)
        for length in range(limit)
        for before in itertools.product(others, repeat=length)
    )
    unfinished = []
    if settings.unfinished == "compete" or not ended:
        unfinished = found(itertools.product(others, repeat=limit))
    return sorted(ended + unfinished, reverse=True)


class Group:
    """One group of a beam in plain Python; all sorts are stable."""

    def __init__(self):
        self.alive: list[tuple[float, Tokens]] = [(0.0, ())]
        self.finished: list[Hypothesis] = []

    def candidates(
        self, tree: Tree, settings: BeamSearch, forced: Tokens, cost: dict[int, float]
    ) -> list[tuple[float, Tokens]]:
        """Returns continuations, best first by log probability less the cost of their token."""
        found = []
        for log_prob, prefix in self.alive:
            added = tree.next_log_probs(prefix)
            logits = tree.logits[tree.row(prefix)].tolist()
            for token in sorted(range(len(added)), key=lambda t: cost[t] - logits[t]):
                tokens = (*prefix, token)
                if added[token] > -INFINITY and permitted(settings, forced, tokens):
                    total = log_prob + added[token]
                    found.append((total - cost[token], total, tokens))
        return [found[1:] for found in sorted(found, key=lambda candidate: -candidate[0])]

    def over(self, settings: BeamSearch, size: int, length: int) -> bool:
        """Returns whether it may stop by a rule that can change the result."""
        if settings.early_stop in ("never", "proven"):
            return False
        full = len(self.finished) == size
        worst = self.finished[-1][0] if full else -INFINITY
        best = max((log_prob for log_prob, _ in self.alive), default=-INFINITY)
        return score(settings, best, length) <= worst or (settings.early_stop == "full" and full)


def plain_beam(tree: Tree, settings: BeamSearch, limit: int, forced: Tokens) -> list[Hypothesis]:
    """Runs beam search as the docstrings of beam.py describe it."""
    size = settings.beam_size // settings.diversity_groups
    groups = [Group() for _ in range(settings.diversity_groups)]
    length = 0
    while length < limit and not all(group.over(settings, size, length) for group in groups):
        length += 1
        cost = collections.defaultdict(float)
        for group in groups:
            best = group.candidates(tree, settings, forced, cost)[: 2 * size if size > 1 else 1]
            cut = settings.unfinished == "compete" and length == limit
            ends = [tokens[-1] == EOS or cut for _, tokens in best]
            group.alive = [c for c, end in zip(best, ends, strict=True) if not end][:size]
            eligible = size if settings.ends_within == "N" else 2 * size
            ended = [c for c, end in zip(best[:eligible], ends, strict=False) if end][:size]
            group.finished += [(score(settings, p, length), p, tokens) for p, tokens in ended]
            group.finished = sorted(group.finished, key=lambda h: -h[0])[:size]
            for _, tokens in group.alive:
                cost[tokens[-1]] += settings.diversity_penalty
    finished = [h for group in groups for h in group.finished]
    alive = [(score(settings, p, length), p, t) for group in groups for p, t in group.alive]
    return sorted(finished or alive, key=lambda hypothesis: -hypothesis[0])


def hypotheses(result: BeamResult, sentence: int) -> list[Hypothesis]:
    """Returns the existing hypotheses of one sentence, and checks the form of all."""
    rows = zip(*(np.asarray(field)[sentence] for field in result), strict=True)
    found = []
    for tokens, length, value, log_prob in rows:
        assert (tokens[length:] == PAD).all()
        if value == -INFINITY:
            assert length == 0
            assert log_prob == -INFINITY
        else:
            found.append((float(value), float(log_prob), tuple(tokens[:length].tolist())))
    values = np.asarray(result.scores)[sentence]
    assert (values[:-1] >= values[1:]).all()  # Best first; hypotheses that do not exist last.
    return found


def numbers(found: list[Hypothesis]) -> np.ndarray:
    return np.array([hypothesis[:2] for hypothesis in found]).reshape(-1, 2)


def tokens_of(found: list[Hypothesis]) -> list[Tokens]:
    return [tokens for _, _, tokens in found]
