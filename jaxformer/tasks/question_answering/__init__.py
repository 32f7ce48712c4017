"""Answers to questions, which are spans of a text."""
