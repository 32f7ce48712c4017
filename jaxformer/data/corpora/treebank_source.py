"""Treebanks, whose pairs are sentences and linearized trees."""

from jaxformer.data.corpus import PairSource

# The task of parsing reads the trees.
TREES = PairSource("trees", 40, open=None)
