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

    entries = {}
    for entry in in_order:
        entries[entry.name] = entry
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
    """Returns the subclasses that can be instantiated, in the order of :func:`find_values`."""
    path = tuple(package.__path__)
    return _find(package, path, cls, _is_concrete_subclass)


def find_module(package: ModuleType, name: str) -> ModuleType | None:
    """Imports a module of a package; returns None if it has none of this name."""
    modules = pkgutil.iter_modules(package.__path__)
    names = {module.name for module in modules}
    if name not in names:
        return None

    full_name = f"{package.__name__}.{name}"
    return importlib.import_module(full_name)


@functools.cache
def _find(
    package: ModuleType,
    path: tuple[str, ...],
    cls: type,
    belongs_to: Callable[[Any, type], bool],
) -> tuple[Any, ...]:
    """Returns the public values that belong to a class; cached until the package's path changes."""
    # A value is in the modules that import it, too, but counts once.
    found: dict[int, Any] = {}
    for value in _public_values(package):
        if belongs_to(value, cls):
            found.setdefault(id(value), value)
    return tuple(found.values())


def _is_concrete_subclass(value: Any, cls: type) -> bool:
    if not inspect.isclass(value):
        return False
    is_concrete = not inspect.isabstract(value)
    return is_concrete and issubclass(value, cls)


def _public_values(package: ModuleType) -> Iterator[Any]:
    """Yields the values of all modules of a package and of the packages in it."""
    prefix = f"{package.__name__}."
    modules = pkgutil.walk_packages(package.__path__, prefix)
    module_names = [module.name for module in modules]

    for module_name in sorted(module_names):
        module = importlib.import_module(module_name)
        for name, value in vars(module).items():
            is_private = name.startswith("_")
            if not is_private:
                yield value
