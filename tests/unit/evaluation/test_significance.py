"""Significance tests against an independent implementation with the same random draws."""

import random

import numpy as np
import pytest

from jaxformer.evaluation.significance import compare

WORDS = ["ein", "Hund", "läuft", "durch", "den", "Schnee"]
SEED = 12345


def corpus(lines=40):
    """Random references, and systems with one word in 5 and one in 6 wrong."""
    source = random.Random(1)
    references = [source.choices(WORDS, k=source.randint(4, 12)) for _ in range(lines)]

    def worsened(rate):
        return [
            " ".join(source.choice(WORDS) if source.random() < rate else word for word in words)
            for words in references
        ]

    systems = {"five": worsened(1 / 5), "six": worsened(1 / 6)}
    return systems, [" ".join(words) for words in references]


def statistics(hypothesis, reference):
    """Returns lengths, then matching and total n-grams, for n from 1 to 4."""
    ours, theirs = hypothesis.split(), reference.split()
    matches, totals = [], []
    for n in range(1, 5):
        grams = [tuple(ours[i : i + n]) for i in range(len(ours) - n + 1)]
        wanted = [tuple(theirs[i : i + n]) for i in range(len(theirs) - n + 1)]
        matches.append(sum(min(grams.count(g), wanted.count(g)) for g in set(grams)))
        totals.append(len(grams))
    return [len(ours), len(theirs), *matches, *totals]


def bleu(sums):
    """Computes BLEU, 0 to 100, from sums of statistics [..., 10] with matches."""
    precision = np.prod(sums[..., 2:6] / sums[..., 6:], axis=-1) ** 0.25
    return 100 * precision * np.minimum(1, np.exp(1 - sums[..., 1] / sums[..., 0]))


def scores_of(report, metric):
    (found,) = (c.systems for c in report.comparisons if c.metric == metric)
    return found


@pytest.fixture(scope="module")
def report():
    systems, references = corpus()
    return compare(systems, references, target_language="de")


@pytest.fixture(scope="module")
def sums():
    """Returns statistics [2, lines, 10]; the tokenizer does not change these words."""
    systems, references = corpus()
    return np.array(
        [[statistics(*pair) for pair in zip(s, references, strict=True)] for s in systems.values()]
    )


def test_paired_bootstrap(report, sums):
    lines = sums.shape[1]
    draws = np.random.default_rng(SEED).choice(lines, size=(1000, lines), replace=True)
    drawn = bleu(sums[:, draws].sum(2))  # [2, 1000]
    difference = abs(np.subtract(*bleu(sums.sum(1))))
    differences = abs(drawn[1] - drawn[0])
    beyond = np.sum(differences - differences.mean() > difference)
    for system, scores in zip(scores_of(report, "tokenized BLEU"), drawn, strict=True):
        ordered = sorted(scores)
        assert system.mean == pytest.approx(scores.mean(), rel=1e-5)
        assert system.interval == pytest.approx((ordered[974] - ordered[25]) / 2, rel=1e-4)
    first, second = scores_of(report, "tokenized BLEU")
    assert first.p_bootstrap is None
    assert second.p_bootstrap == (beyond + 1) / 1001
    assert 0.05 < second.p_bootstrap < 0.5  # Otherwise the test would show little.


def test_approximate_randomization(report, sums):
    lines = sums.shape[1]
    swap = np.random.default_rng(SEED).integers(2, size=(10_000, lines), dtype=bool)
    first = np.where(swap[..., None], sums[0], sums[1]).sum(1)
    difference = abs(np.subtract(*bleu(sums.sum(1))))
    beyond = np.sum(abs(bleu(first) - bleu(sums.sum((0, 1)) - first)) > difference)
    system = scores_of(report, "tokenized BLEU")[1]
    assert system.p_randomization == pytest.approx((beyond + 1) / 10_001, abs=3e-4)  # Ties.
    assert scores_of(report, "tokenized BLEU")[0].p_randomization is None
