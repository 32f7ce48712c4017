"""The foreign models that can be imported and exported: each is a ``Layout`` of one of the modules.

A model that differs from another by a few rows is made with ``dataclasses.replace``, beside it.
"""
