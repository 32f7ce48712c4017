"""From sentence pairs to batches (section 5.1). Knows no model and touches no accelerator.

Text goes through five stations, a module each: :mod:`~jaxformer.data.corpus` reads sentence pairs,
:mod:`~jaxformer.data.tokenizer` turns them into ids, :mod:`~jaxformer.data.store` keeps the ids in
memory-mapped files, :mod:`~jaxformer.data.plan` says which pairs are in which batch, and
:mod:`~jaxformer.data.loader` reads those pairs and lays them out as a
:class:`~jaxformer.data.batch.Batch`.

:mod:`~jaxformer.data.stream` is one text for a language model: vocabularies, rows and windows.
"""
