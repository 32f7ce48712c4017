"""Uses trained models: translation, generation, scoring, alignment, averaging, int8."""
