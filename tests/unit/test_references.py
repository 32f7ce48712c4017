"""Every cross-reference of a docstring leads to something."""

import ast
import importlib
import inspect
import pathlib
import re
from typing import Any

import pytest

PACKAGE = pathlib.Path(__file__).parents[2] / "jaxformer"
ROLE = re.compile(r":(?:func|class|mod|meth|attr|data|exc):`~?([\w.]+)`")
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.stem != "__main__"
)


def references(path: pathlib.Path) -> list[tuple[str, str]]:
    """Names that docstrings refer to, each with the class around it, if any."""
    found = []

    def visit(node: ast.AST, owner: str) -> None:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            owner = node.name if isinstance(node, ast.ClassDef) else owner
            found.extend((name, owner) for name in ROLE.findall(ast.get_docstring(node) or ""))
        for child in ast.iter_child_nodes(node):
            visit(child, owner)

    visit(ast.parse(path.read_text(encoding="utf-8")), "")
    return found


def resolves(name: str, module: Any, owner: str) -> bool:
    """Returns True for a name of the module, of the class around it, or a full path."""
    if name.startswith("jaxformer"):
        parts = name.split(".")
        for i in range(len(parts), 0, -1):
            try:
                start = importlib.import_module(".".join(parts[:i]))
            except ModuleNotFoundError:
                continue
            return has(start, parts[i:])
        return False
    parts = name.split(".")
    return has(module, parts) or (bool(owner) and has(getattr(module, owner, None), parts))


def has(start: Any, parts: list[str]) -> bool:
    for part in parts:
        fields = getattr(start, "__annotations__", {}) if inspect.isclass(start) else {}
        if not hasattr(start, part) and part not in fields:
            return False
        start = getattr(start, part, None)
    return True


@pytest.mark.parametrize("name", MODULES)
def test_references_resolve(name: str):
    module = importlib.import_module(name)
    wrong = [
        n
        for n, owner in references(pathlib.Path(module.__file__))
        if not resolves(n, module, owner)
    ]
    assert not wrong
