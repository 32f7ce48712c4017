"""Correlations against SciPy."""

import math

import numpy as np
import pytest
import scipy.stats

from jaxformer.evaluation.correlations import correlations


@pytest.mark.parametrize("levels", [3, 1000])
def test_scipy_agrees_also_with_ties(levels):
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y = rng.integers(levels, size=(2, 30)).astype(float)
        found = correlations(x, x + y)
        assert found.pearson == pytest.approx(scipy.stats.pearsonr(x, x + y).statistic)
        assert found.spearman == pytest.approx(scipy.stats.spearmanr(x, x + y).statistic)


def test_equal_numbers_have_none():
    found = correlations([1, 1], [1, 2])
    assert math.isnan(found.pearson)
    assert math.isnan(found.spearman)
