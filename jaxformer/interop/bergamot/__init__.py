"""Bergamot's translation models, as Firefox ships them: import and export of their files.

``files`` reads and writes the binary formats, and ``layout`` has the names of tensors.
"""
