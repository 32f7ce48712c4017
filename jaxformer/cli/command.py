"""The class of commands."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple


class Command(NamedTuple):
    """A command of ``jaxformer``.

    Attributes:
      name: Its first word on the command line.
      run: The function with its options and help; see :mod:`jaxformer.cli.signatures`.
      place: Number that sorts the commands in ``jaxformer --help``.
      lists: Functions that return lists for the example in its help, by their placeholder.
    """

    name: str
    run: Callable[..., None]
    place: int
    lists: Mapping[str, Callable[[], str]] = MappingProxyType({})
