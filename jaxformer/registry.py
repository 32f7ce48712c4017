"""Finds what the modules of a package define, such as commands, or layouts of foreign models.

The package is the list, without a table of its entries: a new entry is a new file, or a line beside
a similar entry. Entries are found when they are asked for; importing a module registers nothing.

A package is given as a module, not by its name, so that the import rule covers it. A program adds a
folder of its own modules with ``package.__path__.append(folder)``.
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


def find_entries(package: ModuleType, cls: type[T]) -> dict[str, T]:
    """Returns the instances of a class that the modules of a package define, by name.

    The class has a ``name``, and a ``place``, the number that sorts the entries for users.
    """
    values: tuple[Any, ...] = find_values(package, cls)
    in_order = sorted(values, key=operator.attrgetter("place"))
    entries = {entry.name: entry for entry in in_order}
    assert len(entries) == len(values), f"{package.__name__} has two entries of one name"
    return entries


def find_values(package: ModuleType, cls: type[T]) -> tuple[T, ...]:
    """Returns the instances of a class that the modules of a package define, each once.

    They are in the order of the modules' names, and within a module in the order of its lines. The
    modules of packages in the package are included, values with private names, ``_NAME``, are not.
    """
    path = tuple(package.__path__)
    return _find(package, path, cls, isinstance)


def find_classes(package: ModuleType, cls: type[T]) -> tuple[type[T], ...]:
    """Returns the subclasses of a class that can be instantiated; otherwise as find_values."""
    path = tuple(package.__path__)
    return _find(package, path, cls, _is_concrete_subclass)


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
    cls: type,
    belongs_to: Callable[[Any, type], bool],
) -> tuple[Any, ...]:
    """Returns the public values that belong to a class; cached until the package's path changes."""
    found: dict[int, Any] = {}
    for value in _public_values(package):
        if belongs_to(value, cls):
            # A value is in each module that imports it, too.
            found.setdefault(id(value), value)
    return tuple(found.values())


def _is_concrete_subclass(value: Any, cls: type) -> bool:
    is_subclass = inspect.isclass(value) and issubclass(value, cls)
    return is_subclass and not inspect.isabstract(value)


def _public_values(package: ModuleType) -> Iterator[Any]:
    """Yields the values of all modules of a package and of the packages in it."""
    modules = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    names = [module.name for module in modules]
    for module_name in sorted(names):
        module = importlib.import_module(module_name)
        for name, value in vars(module).items():
            if not name.startswith("_"):
                yield value
