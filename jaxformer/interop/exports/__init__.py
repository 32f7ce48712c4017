"""The formats of ``jaxformer export``: each is an ``ExportFormat`` of one of the modules.

The modules import no heavy libraries before a model is written.
"""
