"""Marian (OPUS-MT) models in the layout of the Hugging Face Hub: import and export."""
