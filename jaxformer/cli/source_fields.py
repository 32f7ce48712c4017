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
_SEARCHES = ("jaxformer.search.beam.BeamSearch", "jaxformer.search.sampling.Sampling")
_SECTIONS = {
    "jaxformer.models.assembly.ModelConfig": "model",
    "jaxformer.data.corpus.DataConfig": "data",
    "jaxformer.training.settings.TrainingConfig": "training",
    "jaxformer.training.mesh.MeshConfig": "mesh",
    **dict.fromkeys(_SEARCHES, "search"),
}
_USUAL = {
    *("model.vocab_size", "model.d_model", "model.num_layers", "model.dropout_rate"),
    *("data.train", "data.valid", "data.tokens_per_batch"),
    *("training.steps", "training.warmup_steps", "training.learning_rate_scale"),
}


def searches() -> tuple[type, ...]:
    """Returns dataclasses with the fields of the search algorithms."""
    return tuple(map(_read, _SEARCHES))


def list_fields(*, usual: bool = False) -> str:
    """Returns the fields of a config, all or the usual ones, with defaults and descriptions."""
    width, rows = max(min(shutil.get_terminal_size().columns, 100) - 10, 40), {}
    for kind, section in ((_read(place), section) for place, section in _SECTIONS.items()):
        for name, text in field_help(kind).items():
            if not usual or f"{section}.{name}" in _USUAL:
                text = textwrap.fill(text.split(". ")[0] if usual else text, width)
                rows[f"  --config.{section}.{name}={getattr(kind, name)}"] = text
    return "\n".join(f"{field}\n{textwrap.indent(text, ' ' * 6)}" for field, text in rows.items())


@functools.cache
def _read(place: str) -> Any:
    """Returns a dataclass with the fields of another, or an alias of a type, by its full name."""
    module, _, name = place.rpartition(".")
    path = _PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else ():
        match node:
            case ast.ImportFrom(module=origin, names=names) if name in (n.name for n in names):
                return _read(f"{origin}.{name}")
            case ast.AnnAssign(target=ast.Name(id), value=ast.expr() as value) if id == name:
                return _type(value, module)
            case ast.ClassDef(decorator_list=[_, *_]) if node.name == name:
                found = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                fields = [
                    (ast.unparse(each.target), _type(each.annotation, module), _value(each.value))
                    for each in found
                    if "ClassVar" not in ast.unparse(each.annotation)
                ]
                bases = [_type(base, module) for base in node.bases]
                bases = tuple(base for base in bases if base is not object)
                doc = {"__doc__": ast.get_docstring(node)}
                return dataclasses.make_dataclass(
                    name, fields, bases=bases, namespace=doc, kw_only=True
                )
    return object


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


def _value(node: ast.expr | None) -> Any:
    with contextlib.suppress(ValueError):  # a call
        return None if node is None else ast.literal_eval(node)
