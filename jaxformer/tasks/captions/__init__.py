"""Texts about pictures."""
