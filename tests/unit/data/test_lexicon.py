"""IBM model 1 against a program of nested loops, and shortlists that are made from it."""

import collections

import numpy as np
import pytest

from jaxformer.data import lexicon
from jaxformer.data.lexicon import NONE, learn_lexicon
from jaxformer.inference.shortlist import Shortlist

RNG = np.random.default_rng(0)


def random_sentence():
    length = RNG.integers(0, 7)
    return RNG.integers(4, 12, length).tolist()


PAIRS = [(random_sentence(), random_sentence()) for _ in range(40)]


def model_1(pairs, iterations):
    """Returns t(target | source), as in the pseudocode of Koehn 2010, figure 4.3."""
    table = collections.defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts = collections.defaultdict(float)
        totals = collections.defaultdict(float)

        for source, target in pairs:
            sources = [NONE, *source]
            for word in target:
                probabilities = [table[word, other] for other in sources]
                total = sum(probabilities)
                for other, probability in zip(sources, probabilities, strict=True):
                    share = probability / total
                    counts[word, other] += share
                    totals[other] += share

        table = {}
        for (word, other), count in counts.items():
            table[word, other] = count / totals[other]
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
    learned = Shortlist.learn(PAIRS, 12, first=3, best=4)
    table = model_1(PAIRS, 5)

    counts = collections.Counter()
    for _, target in PAIRS:
        counts.update(target)
    ascending = sorted(counts.values())
    of_common = [counts[token] for token in learned.common]
    assert sorted(of_common) == ascending[-3:]

    assert learned.offsets[4] == 0
    assert learned.offsets[-1] == 8 * 4
    assert len(learned.targets) == 8 * 4

    for source in range(4, 12):
        begin = learned.offsets[source]
        end = learned.offsets[source + 1]
        targets = learned.targets[begin:end]
        chosen = [table[target, source] for target in targets]

        probabilities = [table.get((target, source), 0) for target in range(12)]
        descending = sorted(probabilities, reverse=True)
        assert chosen == pytest.approx(descending[:4])
