"""Claims that are often made about the Transformer, each measured by one command.

``python -m jaxformer.paper.claims NAME`` prints the figures of a claim, and ``--output DIR`` also
writes them, with a picture. Each claim is one file of this package, with a ``Claim``; the page
``docs/claims.md`` has one section for each.
"""
