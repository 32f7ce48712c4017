"""Finds what the modules of a package define, such as commands, or layouts of foreign models.

The package is the list: whatever its modules define is in it. A new entry is a new file, or a line
beside a similar entry. No table names the entries, and importing a module registers nothing.

Packages are given as modules, so that the import rule covers them. A program adds a folder of its
own modules with ``package.__path__.append(folder)``.
"""

import functools
import importlib
import inspect
import operator
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


def find_entries(package: ModuleType, kind: type[T]) -> dict[str, T]:
    """Returns the instances of a class that the modules of a package define, by name.

    The class has a ``name``, and a ``place``, the number that sorts the entries for users.
    """
    values: tuple[Any, ...] = find_values(package, kind)
    entries = {entry.name: entry for entry in sorted(values, key=operator.attrgetter("place"))}
    assert len(entries) == len(values), f"{package.__name__} has two entries of one name"
    return entries


def find_values(package: ModuleType, kind: type[T]) -> tuple[T, ...]:
    """Returns the instances of a class that the modules of a package define, each once.

    They are in the order of the modules' names, and within a module in the order of its lines. The
    packages in the package belong to it. A value with a private name, ``_NAME``, is left out.
    """
    # The path is part of the key, since it may become longer.
    return _find(package, tuple(package.__path__), kind, isinstance)


def find_classes(package: ModuleType, base: type[T]) -> tuple[type[T], ...]:
    """Returns the subclasses of a class that can be instantiated; otherwise as find_values."""
    return _find(package, tuple(package.__path__), base, _is_concrete)


def _is_concrete(value: Any, base: type) -> bool:
    return inspect.isclass(value) and issubclass(value, base) and not inspect.isabstract(value)


def find_module(package: ModuleType, name: str) -> ModuleType | None:
    """Imports a module of a package; returns None if it has none of this name."""
    names = {module.name for module in pkgutil.iter_modules(package.__path__)}
    if name not in names:
        return None
    return importlib.import_module(f"{package.__name__}.{name}")


@functools.cache
def _find(
    package: ModuleType,
    path: tuple[str, ...],
    kind: type,
    is_entry: Callable[[Any, type], bool],
) -> tuple[Any, ...]:
    found: dict[int, Any] = {}
    for value in _public_values(package):
        if is_entry(value, kind):
            # Several modules may import a value.
            found.setdefault(id(value), value)
    return tuple(found.values())


def _public_values(package: ModuleType) -> Iterator[Any]:
    """Yields the values of all modules of a package and of the packages in it."""
    names = sorted(
        module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    )
    for module_name in names:
        module = importlib.import_module(module_name)
        for name, value in vars(module).items():
            if not name.startswith("_"):
                yield value
