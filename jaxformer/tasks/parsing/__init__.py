"""Constituency parsing as translation of words into brackets (section 6.3).

- :mod:`jaxformer.tasks.parsing.trees`: parse trees, read and normalized.
- :mod:`jaxformer.tasks.parsing.linearization`: trees as sequences of tokens, and back.
- :mod:`jaxformer.tasks.parsing.treebank`: treebanks as sentence pairs.
- :mod:`jaxformer.tasks.parsing.task`: training and validation with F1.
- :mod:`jaxformer.tasks.parsing.parser`: sentences in, trees out.

:mod:`jaxformer.evaluation.evalb` scores trees.
"""
