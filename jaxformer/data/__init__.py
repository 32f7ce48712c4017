"""Data pipeline: from sentence pairs to batches (section 5.1), independent of models and devices.

It has five stages: :mod:`~jaxformer.data.corpus` reads sentence pairs,
:mod:`~jaxformer.data.tokenizer` tokenizes them, :mod:`~jaxformer.data.store` keeps the ids in
memory-mapped files, :mod:`~jaxformer.data.plan` assigns pairs to batches, and
:mod:`~jaxformer.data.loader` reads the pairs of a batch and arranges them as a
:class:`~jaxformer.data.batch.Batch`.

:mod:`~jaxformer.data.stream` handles the text of a language model: vocabularies, rows and windows.
"""
