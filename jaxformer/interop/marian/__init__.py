"""Import and export of Marian (OPUS-MT) models in the Hugging Face layout."""
