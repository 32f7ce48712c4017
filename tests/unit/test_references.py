"""Every cross-reference of a docstring leads to something."""

import ast
import pathlib
import pkgutil
import re

PACKAGE = pathlib.Path(__file__).parents[2] / "jaxformer"
ROLE = re.compile(r":(?:func|class|mod|meth|attr|data|exc):`~?([\w.]+)`")


def references(path):
    """Yields names that docstrings refer to, each with the class around it, if any."""

    def visit(node, owner):
        if isinstance(node, ast.ClassDef):
            owner = node.name
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstring = ast.get_docstring(node) or ""
            yield from ((name, owner) for name in ROLE.findall(docstring))

        for child in ast.iter_child_nodes(node):
            yield from visit(child, owner)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), "")


def exists(name):
    """Returns True for a module, an attribute, or a field without a default value."""
    try:
        pkgutil.resolve_name(name)
        return True
    except (ImportError, AttributeError):
        pass

    owner, _, field = name.rpartition(".")
    try:
        annotated = getattr(pkgutil.resolve_name(owner), "__annotations__", {})
    except (ImportError, AttributeError):
        return False
    return field in annotated


def wrong_references(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    module = ".".join(parts).removesuffix(".__init__")

    for name, owner in references(path):
        if name.startswith("jaxformer"):
            candidates = [name]
        elif owner:
            candidates = [f"{module}.{name}", f"{module}.{owner}.{name}"]
        else:
            candidates = [f"{module}.{name}"]

        if not any(map(exists, candidates)):
            yield f"{module}: {name}"


def test_references_resolve():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        wrong += wrong_references(path)

    assert wrong == []
