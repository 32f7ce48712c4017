"""Strings in, numbers out: how good are translations, and how good are parse trees?"""
