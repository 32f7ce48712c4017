"""Tasks: data, loss and evaluation of what :func:`~jaxformer.fit` trains."""
