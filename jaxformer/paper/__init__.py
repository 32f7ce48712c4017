"""The tables and figures of the paper, each made again by one command.

``python -m jaxformer.paper.table1`` (layer types), ``table2`` (training cost), ``table3``
(variations of the model) and ``scaling`` (why dot products are divided by sqrt(d_k)). Every one has
a ``--help`` with an example, and prints the paper's figures beside ours.
"""
