"""Constituency parsing as translation of words into brackets (section 6.3).

- :mod:`jaxformer.tasks.parsing.trees`: reading and normalization of parse trees.
- :mod:`jaxformer.tasks.parsing.linearization`: conversion between trees and token sequences.
- :mod:`jaxformer.tasks.parsing.treebank`: treebanks as corpora of sentence pairs.
- :mod:`jaxformer.tasks.parsing.task`: training, and validation with F1.
- :mod:`jaxformer.tasks.parsing.parser`: parsing with a trained model.

:mod:`jaxformer.evaluation.evalb` scores trees.
"""
