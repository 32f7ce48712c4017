"""Models in the layout of Hugging Face's library transformers: import and export.

``layout`` describes a model by tables, from which both directions follow; ``gpt2`` and ``llama``
hold the tables, and ``importer.LAYOUTS`` lists them.
"""
