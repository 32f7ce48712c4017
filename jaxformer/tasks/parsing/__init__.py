"""Constituency parsing as translation of words into brackets (section 6.3)."""
