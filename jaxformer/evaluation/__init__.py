"""Evaluation of translations and of parse trees."""
