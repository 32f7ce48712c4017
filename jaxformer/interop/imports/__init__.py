"""The systems of ``jaxformer import``: each is an ``ImportSystem`` of one of the modules.

The modules import no heavy libraries before a model is read.
"""
