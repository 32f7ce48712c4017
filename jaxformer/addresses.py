"""Addresses of models that are in no local folder, such as hf://OWNER/NAME.

This level knows no system that models come from. The package's ``__init__``, which knows all
levels, gives each scheme of addresses a function that fetches a model.
"""

import pathlib
from collections.abc import Callable


class Address(str):
    """An address on the command line, whose model is fetched when all arguments are known."""


# Returns a workdir with the model of an address, by the scheme, such as "hf".
FETCHERS: dict[str, Callable[[str], pathlib.Path]] = {}


def fetcher_of(name: str) -> Callable[[str], pathlib.Path] | None:
    """Returns the function that fetches the model of a name; None for other names."""
    scheme, separator, _ = name.partition("://")
    return FETCHERS.get(scheme) if separator else None
