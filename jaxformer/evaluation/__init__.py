"""Strings in, numbers out: how good are translations?"""
