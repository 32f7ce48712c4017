"""Fields of configs and searches, read from their source: importing them would import JAX."""

import ast
import contextlib
import dataclasses
import functools
import pathlib
import shutil
import textwrap
from typing import Any, Literal

from jaxformer.cli.signatures import field_help

_PACKAGE = pathlib.Path(__file__).parents[2]
_TYPES = {kind.__name__: kind for kind in (bool, float, int, str)}
_SECTIONS = {
    "model": "jaxformer.models.assembly.ModelConfig",
    "data": "jaxformer.data.corpus.DataConfig",
    "training": "jaxformer.training.settings.TrainingConfig",
    "mesh": "jaxformer.training.mesh.MeshConfig",
}
_SEARCHES = ("jaxformer.search.beam.BeamSearch", "jaxformer.search.sampling.Sampling")
_USUAL = {
    "model": ("vocab_size", "d_model", "num_layers", "dropout_rate"),
    "data": ("train", "valid", "tokens_per_batch"),
    "training": ("steps", "warmup_steps", "learning_rate_scale"),
}


def searches() -> tuple[type, ...]:
    """Returns dataclasses with the fields of the search algorithms."""
    return tuple(map(_read, _SEARCHES))


def list_fields(*, usual: bool = False) -> str:
    """Returns lines with the fields of a config, all or the usual ones, and their defaults."""
    kinds = {name: (_read(place),) for name, place in _SECTIONS.items()} | {"search": searches()}
    rows = {
        f"--config.{section}.{name}={getattr(kind, name)}": text.split(". ")[0] if usual else text
        for section, classes in kinds.items()
        for kind in classes
        for name, text in field_help(kind).items()
        if not usual or name in _USUAL.get(section, ())
    }
    width, indent = max(min(shutil.get_terminal_size().columns, 100) - 10, 40), " " * 6
    return "\n".join(
        f"  {field}\n{textwrap.indent(textwrap.fill(text, width), indent)}"
        for field, text in rows.items()
    )


@functools.cache
def _read(place: str) -> Any:
    """Returns a name of a module: a dataclass with the same fields, or an alias of a type."""
    module, _, name = place.rpartition(".")
    path = _PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    statements = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    for node in statements:
        if isinstance(node, ast.ImportFrom) and name in (each.name for each in node.names):
            return _read(f"{node.module}.{name}")
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and node.value:
            return _type(node.value, module)
        if isinstance(node, ast.ClassDef) and node.name == name and node.decorator_list:
            return _copy_of(node, module)
    return object


def _copy_of(node: ast.ClassDef, module: str) -> type:
    """Returns a dataclass with the fields and the docstring of another."""
    bases = [_type(base, module) for base in node.bases]
    found = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    fields = [
        (ast.unparse(each.target), _type(each.annotation, module), _default(each.value))
        for each in found
        if "ClassVar" not in ast.unparse(each.annotation)
    ]
    return dataclasses.make_dataclass(
        node.name,
        fields,
        bases=tuple(base for base in bases if base is not object),
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


def _default(node: ast.expr | None) -> Any:
    with contextlib.suppress(ValueError):  # a call
        return None if node is None else ast.literal_eval(node)
