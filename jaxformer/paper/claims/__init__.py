"""Claims that are often made about the Transformer, each measured by one command.

``python -m jaxformer.paper.claims NAME`` prints the figures of a claim, and ``--output DIR`` also
writes them, with a picture. Each claim is one file of this package, with a ``Claim``; the pages
that ``docs/claims.md`` lists have one section for each. A claim about training is an
``Experiment`` of ``small_runs``: a table of settings that differ in one thing.
"""
