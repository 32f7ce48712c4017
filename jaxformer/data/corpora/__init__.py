"""The sources of sentence pairs: each is a ``PairSource`` of one of the modules.

The modules import no heavy libraries before a corpus is opened.
"""
