"""Use of trained models: translation, generation, scores, alignment, averages, int8."""
