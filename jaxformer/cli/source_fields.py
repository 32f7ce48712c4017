"""Fields of configs and searches, read from their source: importing them would import JAX.

The sources are parsed, not executed. A dataclass becomes another dataclass with the same name,
docstring, bases and fields. A type that no option can have, such as a function, becomes ``object``,
and a default that is not a literal becomes None.
"""

import ast
import dataclasses
import functools
import pathlib
import shutil
import textwrap
from typing import Any, Literal

from jaxformer.cli.signatures import field_help
from jaxformer.fields import facts_of, setting

_PACKAGE = pathlib.Path(__file__).parents[2]
_TYPES = {"bool": bool, "float": float, "int": int, "str": str}
_SEARCHES = ("jaxformer.search.beam.BeamSearch", "jaxformer.search.sampling.Sampling")
# The section of a config that each dataclass describes, in the order of the help.
_SECTIONS = {
    "jaxformer.models.assembly.ModelConfig": "model",
    "jaxformer.data.corpus.DataConfig": "data",
    "jaxformer.training.settings.TrainingConfig": "training",
    "jaxformer.training.mesh.MeshConfig": "mesh",
    **dict.fromkeys(_SEARCHES, "search"),
}


def searches() -> tuple[type, ...]:
    """Returns dataclasses with the fields of the search algorithms."""
    return tuple(_read(name) for name in _SEARCHES)


def list_fields(*, usual: bool = False) -> str:
    """Returns the fields of a config, all or the usual ones, with defaults and descriptions."""
    columns = min(shutil.get_terminal_size().columns, 100)
    width = max(columns - 10, 40)

    # By field and default, since the searches have some fields in common.
    descriptions: dict[str, str] = {}
    for full_name, section in _SECTIONS.items():
        kind = _read(full_name)
        facts = facts_of(kind)
        for name, text in field_help(kind).items():
            if usual:
                if not facts[name].is_usual:
                    continue
                text, _, _ = text.partition(". ")  # the first sentence

            default = getattr(kind, name)
            option = f"  --config.{section}.{name}={default}"
            lines = textwrap.fill(text, width)
            descriptions[option] = textwrap.indent(lines, " " * 6)

    return "\n".join(f"{option}\n{text}" for option, text in descriptions.items())


@functools.cache
def _read(full_name: str) -> Any:
    """Returns a dataclass with the fields of another, or an alias of a type, by its full name."""
    module, _, name = full_name.rpartition(".")
    # One of these defines the name: an import, an alias such as Name: TypeAlias = Literal[...], or
    # a class with a decorator, which is a dataclass.
    for node in _statements(module):
        match node:
            case ast.ImportFrom(module=origin, names=names) if name in (n.name for n in names):
                return _read(f"{origin}.{name}")
            case ast.AnnAssign(target=ast.Name(id), value=ast.expr() as value) if id == name:
                return _type(value, module)
            case ast.ClassDef(decorator_list=[_, *_]) if node.name == name:
                return _dataclass(node, module)
    return object


@functools.cache
def _statements(module: str) -> list[ast.stmt]:
    """Returns the statements of a module; none of a package or of another library's module."""
    parts = module.split(".")
    path = _PACKAGE.joinpath(*parts).with_suffix(".py")
    if not path.is_file():
        return []

    source = path.read_text(encoding="utf-8")
    return ast.parse(source).body


def _dataclass(node: ast.ClassDef, module: str) -> type:
    """Returns a dataclass with the fields, the docstring and the bases of another."""
    fields = []
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign):
            continue
        if "ClassVar" in ast.unparse(statement.annotation):
            continue

        name = ast.unparse(statement.target)
        hint = _type(statement.annotation, module)
        default = _field(statement.value)
        fields.append((name, hint, default))

    all_bases = [_type(base, module) for base in node.bases]
    bases = [base for base in all_bases if base is not object]
    return dataclasses.make_dataclass(
        node.name,
        fields,
        bases=tuple(bases),
        namespace={"__doc__": ast.get_docstring(node)},
        kw_only=True,
    )


def _type(node: ast.expr, module: str) -> Any:
    """Returns the type of an annotation, or object if no option can have it."""
    match node:
        case ast.Name(name):
            return _TYPES.get(name) or _read(f"{module}.{name}")
        case ast.BinOp(left=left, right=ast.Constant(None)):
            return _type(left, module) | None
        case ast.Subscript(value=ast.Name("Literal"), slice=choices):
            return Literal[ast.literal_eval(choices)]
    return object


def _field(node: ast.expr | None) -> Any:
    """Returns the default of a field, or the field that a call of ``setting`` returns."""
    match node:
        case ast.Call(func=ast.Name("setting"), args=args, keywords=keywords):
            values = [_value(each) for each in args]
            facts = {str(keyword.arg): _value(keyword.value) for keyword in keywords}
            return setting(*values, **facts)
    return _value(node)


def _value(node: ast.expr | None) -> Any:
    """Returns the value of a default; None without one, or if it is not a literal."""
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
