"""Models in the layout of Hugging Face's library transformers: import and export.

``layout`` describes a model by tables, from which both directions follow. The modules of
``layouts`` hold the tables.
"""
