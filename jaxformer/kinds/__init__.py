"""Kinds of experiments: the data and the models that belong together.

Each is a ``Kind`` of one of the modules. A config selects its kind by ``data.corpus``; all other
code uses :attr:`~jaxformer.config.Config.kind`. The task of a kind names the kind, in
:mod:`jaxformer.tasks`.
"""
