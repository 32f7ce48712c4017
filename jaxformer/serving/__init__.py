"""Serves translations over HTTP: a batch queue, a model behind it, and the endpoints."""
