"""The best of several texts for a context."""
