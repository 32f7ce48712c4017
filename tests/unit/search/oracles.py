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

# Two ids are also ids of tokens, which must never be confused.
PAD = 0
EOS = 1
BOS = 0
CAPACITY = 6
INFINITY = float("inf")

Tokens = tuple[int, ...]
Hypothesis = tuple[float, float, Tokens]  # score, log probability, tokens


IDS = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}


def beam(**changes) -> BeamSearch:
    defaults = {"beam_size": 2, "length_penalty": 0.0}
    return BeamSearch(**(defaults | IDS | changes))


def sampling(**changes) -> Sampling:
    defaults = {"num_samples": 2, "length_penalty": 0.0}
    return Sampling(**(defaults | IDS | changes))


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
    prefixes = sum(vocabulary**level for level in range(depth))
    shape = (sentences, prefixes, vocabulary)

    exact = random.random((sentences, 1, 1)) < 0.5
    integers = -32.0 * random.integers(1, 4, shape)
    normal = 2.0 * random.normal(size=shape)
    logits = np.where(exact, integers, normal)

    uniform = random.random(shape)
    rates = random.choice([0.0, 0.1, 0.4], (sentences, 1, 1))
    logits[uniform < rates] = -INFINITY

    ids = random.integers(0, vocabulary, (sentences, prefixes, 1))
    certain = np.arange(vocabulary) == ids
    logits = np.where(exact & certain, 0.0, logits)

    uniform = random.random((sentences, prefixes))
    rates = random.choice([0.0, 0.1], (sentences, 1))
    logits[uniform < rates] = -INFINITY  # Prefixes without continuations.
    return logits.astype(np.float32)


def tree_step(tokens: jax.Array, cache: dict) -> tuple[jax.Array, dict]:
    """Returns logits of the prefix of each hypothesis; the beams share the logits."""
    vocabulary = cache["logits"].shape[-1]
    position = cache["position"]
    longer = cache["prefix"] * vocabulary + tokens + 1
    prefix = jnp.where(position == 0, 0, longer)  # [B, N]

    shared = cache["logits"][:, 0]
    rows = prefix[:, :, None]
    logits = jnp.take_along_axis(shared, rows, axis=1, mode="clip")
    return logits, {**cache, "prefix": prefix, "position": position + 1}


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
    return settings.start(
        cache,
        limits,
        CAPACITY,
        prefix,
        keys=keys,
        n_best=n_best,
    )


@functools.partial(jax.jit, static_argnames="settings")
def advance_tree(settings: Algorithm, state: SearchState, until) -> tuple[SearchState, BeamResult]:
    state = settings.advance(tree_step, state, until)
    return state, settings.finalize(state)


def search_tree(
    settings: Algorithm, logits, limits, prefix=None, keys=None, n_best=0
) -> BeamResult:
    state = start_tree(
        settings,
        logits,
        limits,
        prefix=prefix,
        keys=keys,
        n_best=n_best,
    )
    _, result = advance_tree(settings, state, CAPACITY)
    return jax.device_get(result)


def search_patiently(settings: BeamSearch, logits, limits, prefix=None) -> BeamResult:
    """Runs the search step by step, and undoes every decision to stop before the limit."""
    state = start_tree(settings, logits, limits, prefix=prefix)

    for length in range(1, CAPACITY + 1):
        state, _ = advance_tree(settings, state, length)
        at_limit = np.asarray(state.max_lengths) <= int(state.step)
        state = state.replace(done=jnp.asarray(at_limit))

    _, result = advance_tree(settings, state, CAPACITY)
    return jax.device_get(result)


class Tree:
    """The tree of one sentence in plain Python."""

    def __init__(self, logits: np.ndarray):
        self.logits = logits
        with np.errstate(all="ignore"):
            # In float32, exact log probabilities are integers.
            totals = np.exp(logits).sum(axis=1, keepdims=True)
            log_probs = logits - np.log(totals)
        self.log_probs = np.where(logits == -INFINITY, -INFINITY, log_probs)

    def row(self, prefix: Tokens) -> int:
        vocabulary = self.logits.shape[1]
        row = 0
        for token in prefix:
            row = row * vocabulary + token + 1
        return row

    def next_log_probs(self, prefix: Tokens) -> list[float]:
        return self.log_probs[self.row(prefix)].tolist()

    def log_prob(self, tokens: Tokens) -> float:
        total = 0.0
        for i, token in enumerate(tokens):
            total += self.next_log_probs(tokens[:i])[token]
        return total


def score(settings: BeamSearch, log_prob: float, length: int) -> float:
    """Computes scores in float32 like the search, so that the same hypotheses tie."""
    bases = {
        "gnmt": (5 + length) / 6,
        "power": max(length, 1),
        "none": 1.0,
    }
    base = bases[settings.penalty]
    penalty = np.float32(base**settings.length_penalty)
    return float(np.float32(log_prob) / penalty)


def without_free_end(settings: BeamSearch, tokens: Tokens, limit: int) -> Tokens:
    """Returns the tokens of a hypothesis that cost something and that settings may forbid."""
    if settings.unfinished == "end" and len(tokens) == limit:
        return tokens[:-1]
    return tokens


def permitted(settings: BeamSearch, forced: Tokens, tokens: Tokens) -> bool:
    """Returns whether the settings allow a hypothesis, judged as a whole and not token by token."""
    if any(token != must for token, must in zip(tokens, forced, strict=False)):
        return False

    free = range(len(forced), len(tokens))
    too_early = [tokens[i] for i in free if i < settings.min_length]
    if EOS in too_early:
        return False

    n = settings.no_repeat_ngram
    after_bos = range(free.start + 1, free.stop + 1)
    return n == 0 or not repeats((BOS, *tokens), n, after_bos)


def repeats(tokens: Tokens, n: int, free: range) -> bool:
    """Returns whether an n-gram that ends at a free place occurs earlier, too."""
    earlier = set()
    for end in range(n - 1, len(tokens)):
        gram = tokens[end - n + 1 : end + 1]
        if gram in earlier and end in free:
            return True
        earlier.add(gram)
    return False


def exhaustive(
    tree: Tree,
    settings: BeamSearch,
    limit: int,
    forced: Tokens,
    also: Callable[[Tokens], bool] = lambda tokens: True,
) -> list[Hypothesis]:
    """Returns all possible and permitted hypotheses, best first.

    They end in EOS, or have full length if none does; both if unfinished hypotheses compete. If
    these end, every hypothesis of full length ends in EOS, at no cost. ``also`` is a further
    condition.
    """
    vocabulary = tree.logits.shape[1]
    others = [token for token in range(vocabulary) if token != EOS]

    def found(candidates: Iterator[Tokens]) -> list[Hypothesis]:
        possible = []
        for tokens in candidates:
            paid = without_free_end(settings, tokens, limit)
            if not (permitted(settings, forced, paid) and also(tokens)):
                continue
            log_prob = tree.log_prob(paid)
            if log_prob > -INFINITY:
                value = score(settings, log_prob, len(tokens))
                possible.append((value, log_prob, tokens))
        return possible

    def all_ended() -> Iterator[Tokens]:
        for length in range(limit):
            for before in itertools.product(others, repeat=length):
                yield (*before, EOS)

    ended = found(all_ended())
    unfinished = []
    if settings.unfinished == "compete" or not ended:
        of_full_length = itertools.product(others, repeat=limit)
        unfinished = found(of_full_length)
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
            row = tree.row(prefix)
            logits = tree.logits[row].tolist()
            # Among equal totals, the greatest logit comes first.
            costs = [cost[token] - logit for token, logit in enumerate(logits)]
            by_cost = sorted(range(len(costs)), key=costs.__getitem__)
            for token in by_cost:
                tokens = (*prefix, token)
                is_possible = added[token] > -INFINITY
                if is_possible and permitted(settings, forced, tokens):
                    total = log_prob + added[token]
                    value = total - cost[token]
                    found.append((value, total, tokens))

        found.sort(key=lambda candidate: -candidate[0])
        return [(total, tokens) for _, total, tokens in found]

    def over(self, settings: BeamSearch, size: int, length: int) -> bool:
        """Returns whether it may stop by a rule that can change the result."""
        if settings.early_stop in ("never", "proven"):
            return False

        full = len(self.finished) == size
        if settings.early_stop == "full" and full:
            return True

        worst = self.finished[-1][0] if full else -INFINITY
        log_probs = [log_prob for log_prob, _ in self.alive]
        best = max(log_probs, default=-INFINITY)
        return score(settings, best, length) <= worst

    def advance(
        self,
        candidates: list[tuple[float, Tokens]],
        settings: BeamSearch,
        size: int,
        *,
        length: int,
        cut: bool,
    ) -> None:
        """Chooses the next alive and finished hypotheses; at a cut, all candidates finish."""
        eligible = size if settings.ends_within == "N" else 2 * size
        ended = []
        alive = []
        for place, (log_prob, tokens) in enumerate(candidates):
            if tokens[-1] != EOS and not cut:
                alive.append((log_prob, tokens))
            elif place < eligible:
                value = score(settings, log_prob, length)
                ended.append((value, log_prob, tokens))

        self.alive = alive[:size]
        finished = self.finished + ended[:size]
        self.finished = best_first(finished)[:size]


def best_first(found: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(found, key=lambda hypothesis: -hypothesis[0])


def plain_beam(tree: Tree, settings: BeamSearch, limit: int, forced: Tokens) -> list[Hypothesis]:
    """Runs beam search as the docstrings of beam.py describe it."""
    size = settings.beam_size // settings.diversity_groups
    groups = [Group() for _ in range(settings.diversity_groups)]
    # A beam of one is greedy.
    considered = 2 * size if size > 1 else 1

    length = 0
    while length < limit:
        if all(group.over(settings, size, length) for group in groups):
            break

        length += 1
        cut = settings.unfinished == "compete" and length == limit
        cost = collections.defaultdict(float)
        for group in groups:
            candidates = group.candidates(tree, settings, forced, cost=cost)
            if settings.unfinished == "end" and length == limit:
                candidates = [(log_prob, (*tokens, EOS)) for log_prob, tokens in group.alive]
            group.advance(
                candidates[:considered],
                settings,
                size,
                length=length,
                cut=cut,
            )
            for _, tokens in group.alive:
                cost[tokens[-1]] += settings.diversity_penalty

    finished = []
    alive = []
    for group in groups:
        finished += group.finished
        for log_prob, tokens in group.alive:
            value = score(settings, log_prob, length)
            alive.append((value, log_prob, tokens))
    return best_first(finished or alive)


def hypotheses(result: BeamResult, sentence: int) -> list[Hypothesis]:
    """Returns the existing hypotheses of one sentence, and checks the form of all."""
    fields = [np.asarray(field)[sentence] for field in result]
    found = []
    for tokens, length, value, log_prob in zip(*fields, strict=True):
        assert (tokens[length:] == PAD).all()
        if value == -INFINITY:
            assert length == 0
            assert log_prob == -INFINITY
        else:
            real = tuple(tokens[:length].tolist())
            found.append((float(value), float(log_prob), real))

    # Best first; hypotheses that do not exist last.
    values = np.asarray(result.scores)[sentence]
    assert (values[:-1] >= values[1:]).all()
    return found


def numbers(found: list[Hypothesis]) -> np.ndarray:
    """Returns scores and log probabilities, [hypotheses, 2]."""
    pairs = [(value, log_prob) for value, log_prob, _ in found]
    return np.array(pairs).reshape(-1, 2)


def tokens_of(found: list[Hypothesis]) -> list[Tokens]:
    return [tokens for _, _, tokens in found]
