"""Models in the layout of Hugging Face's library transformers: import and export.

``foreign_layout`` describes a model by tables, from which both directions follow. The modules of
``layouts`` hold the tables.
"""
