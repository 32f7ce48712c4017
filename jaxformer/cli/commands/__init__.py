"""The commands of ``jaxformer``: each is a ``Command`` of one of the modules.

The modules import no heavy libraries before a command runs.
"""
