"""The formats of ``jaxformer export``: each module has one, an ``ExportFormat``.

The modules import no heavy libraries before a model is written.
"""
