"""Lazy imports: packages whose public names are imported on first use."""

import ast
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any


def attach(
    package: str, *others: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns ``__getattr__``, ``__dir__`` and ``__all__`` of a package, from its ``__init__.pyi``.

    Args:
      package: Name of the package.
      *others: Further names for ``__dir__``, which notebooks complete.
    """
    stub = pkgutil.get_data(package, "__init__.pyi")
    assert stub is not None  # The stub is package data.
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}

    def getattr_(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return getattr_, lambda: [*modules, *others], [*modules]
