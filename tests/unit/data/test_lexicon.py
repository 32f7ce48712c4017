"""IBM model 1 against a program of nested loops, and shortlists that are made from it."""

import collections

import numpy as np
import pytest

from jaxformer.data import lexicon
from jaxformer.data.lexicon import NONE, learn_lexicon
from jaxformer.inference.shortlist import Shortlist

RNG = np.random.default_rng(0)
PAIRS = [
    tuple(RNG.integers(4, 12, RNG.integers(0, 7)).tolist() for _ in range(2)) for _ in range(40)
]


def model_1(pairs, iterations):
    """Returns t(target | source), as in the pseudocode of Koehn 2010, figure 4.3."""
    table = collections.defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts, totals = (collections.defaultdict(float) for _ in range(2))
        for source, target in pairs:
            for word in target:
                total = sum(table[word, other] for other in [NONE, *source])
                for other in [NONE, *source]:
                    counts[word, other] += table[word, other] / total
                    totals[other] += table[word, other] / total
        table = {key: count / totals[key[1]] for key, count in counts.items()}
    return table


@pytest.mark.parametrize("links", [30, 10**6])
def test_probabilities_equal_those_of_loops(monkeypatch, links):
    monkeypatch.setattr(lexicon, "_LINKS", links)
    expected = model_1(PAIRS, 4)
    found = learn_lexicon(PAIRS, 12, iterations=4)
    assert len(found.sources) == len(expected)
    for source, target, probability in zip(*found, strict=True):
        assert probability == pytest.approx(expected[target, source], rel=1e-9)


def test_shortlists_have_the_best_and_the_most_frequent_targets():
    learned, table = Shortlist.learn(PAIRS, 12, first=3, best=4), model_1(PAIRS, 5)
    counts = collections.Counter(token for _, target in PAIRS for token in target)
    assert sorted(counts[t] for t in learned.common) == sorted(counts.values())[-3:]
    assert learned.offsets[4] == 0
    assert learned.offsets[-1] == len(learned.targets) == 8 * 4
    for source in range(4, 12):
        chosen = learned.targets[learned.offsets[source] : learned.offsets[source + 1]]
        best = sorted((table.get((t, source), 0) for t in range(12)), reverse=True)[:4]
        assert [table[t, source] for t in chosen] == pytest.approx(best)
