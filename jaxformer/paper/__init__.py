"""Reproduces the paper's tables and its scaling argument, with one command each.

The commands are ``python -m jaxformer.paper.table1`` (layer types), ``table2`` (training cost),
``table3`` (variations of the model) and ``dot_product_scaling`` (division of dot products by
sqrt(d_k)). Each has a ``--help`` with an example. ``claims`` measures what is often said about the
Transformer.
"""
