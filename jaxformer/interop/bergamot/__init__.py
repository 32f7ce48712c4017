"""Bergamot's translation models, as Firefox ships them: import of their files.

``files`` reads the binary formats, and ``importer`` converts a model to a workdir.
"""
