"""Finds what the modules of a package define, such as commands, or layouts of foreign models.

The package is the list: whatever its modules define is in it. A new entry is a new file, or a line
beside a similar entry. No table names the entries, and importing a module registers nothing.

Packages are given as modules, so that the import rule covers them. A program adds a folder of its
own modules with ``package.__path__.append(folder)``.
"""

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def module_names(package: ModuleType) -> list[str]:
    """Returns the names of the modules of a package, sorted, without importing them."""
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def import_module_of(package: ModuleType, name: str) -> ModuleType:
    return importlib.import_module(f"{package.__name__}.{name}")


def find_values(package: ModuleType, kind: type[T]) -> tuple[T, ...]:
    """Returns the instances of a class that the modules of a package define, each once.

    They are in the order of the modules' names, and within a module in the order of its lines. A
    value with a private name, ``_NAME``, is not an entry.
    """
    # The path is part of the key, since it may become longer.
    return _find_values(package, kind, tuple(package.__path__))


@functools.cache
def _find_values(
    package: ModuleType,
    kind: type[T],
    path: tuple[str, ...],
) -> tuple[T, ...]:
    found: dict[int, T] = {}
    for value in _public_values(package):
        if isinstance(value, kind):
            # Another module may import the value.
            found.setdefault(id(value), value)
    return tuple(found.values())


def _public_values(package: ModuleType) -> Iterator[object]:
    for module_name in module_names(package):
        module = import_module_of(package, module_name)
        for name, value in vars(module).items():
            if not name.startswith("_"):
                yield value
