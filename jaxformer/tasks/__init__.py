"""Tasks: data, loss and evaluation for :func:`~jaxformer.fit`."""
