"""Kinds of experiments: the data and the models that belong together.

Each is a ``Kind`` in one of the modules. A config selects its kind by ``data.corpus``, and all code
asks for :attr:`~jaxformer.config.Config.kind`. A kind does not name its task: a task, in
:mod:`jaxformer.tasks`, names its kind.
"""
