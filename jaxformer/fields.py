"""Building frozen dataclasses of plain values from dictionaries, and checking them."""

import dataclasses
import functools
import inspect
import json
import math
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar

from jaxformer.errors import UserError, did_you_mean

T = TypeVar("T")

_MAY_DIFFER = {"compute_dtype"}  # fields that may have other values when a trained model is used


def inherit_attributes(cls: type) -> None:
    """Adds the attributes of the base class to a docstring, which ``help`` shows."""
    own, base = (inspect.cleandoc(each.__doc__ or "") for each in (cls, cls.__mro__[1]))
    summary, title, rest = own.partition("\nAttributes:\n")
    inherited = base.partition("\nAttributes:\n")[2].partition("\n\n")[0]
    entries, blank, others = rest.partition("\n\n")
    for entry in re.split(r"\n(?=  \w)", inherited if title else ""):
        if entry and f"\n{entry.partition(':')[0]}:" not in f"\n{entries}":
            entries += f"\n{entry}"
    if cls.__doc__:
        cls.__doc__ = f"{summary}{title}{entries}{blank}{others}"


def build_section(cls: type[T], values: Any, section: str) -> T:
    """Builds a dataclass that checks its fields, by :func:`check_types`, from a dictionary."""
    check_known(values, _types_of(cls), f"{section}.")
    return cls(**values)


@functools.cache
def _types_of(cls: Any) -> dict[str, Any]:
    """Returns the types of the fields of a dataclass, without other annotations of its bases."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def check_known(values: Any, known: Iterable[str], prefix: str) -> None:
    """Checks that ``values`` is a dictionary of known fields."""
    if not isinstance(values, dict):
        raise UserError(
            f"{prefix.rstrip('.') or 'config'}: expected fields, got {reprlib.repr(values)}"
        )
    for name in values:
        if name not in known:
            name = str(name)[:100]
            hint = did_you_mean(name, known, f"known: {', '.join(known)}", f"{prefix}{{}}".format)
            raise UserError(f"unknown config field {prefix}{name}; {hint}")


def check_unchanged(given: dict[str, Any], saved: Any, section: str, place: str) -> None:
    """Compares a section with a checkpoint's, which earlier versions saved as None or with less."""
    if saved is None:
        return
    if not isinstance(saved, dict):
        raise UserError(f"{place}: expected fields of {section}, got {reprlib.repr(saved)}")
    given = json.loads(json.dumps(given))  # As when they were saved: tuples become lists.
    for name, was in saved.items():
        if name not in _MAY_DIFFER and given.get(name, was) != was:
            raise UserError(
                f"{place}: was trained with {section}.{name}={reprlib.repr(was)}, but the config "
                f"has {reprlib.repr(given[name])}; restore the config that it was trained with"
            )


def _convert(value: Any, hint: Any, name: str) -> Any:
    if value is None and type(None) in typing.get_args(hint):
        return None
    expected = expected_type(hint)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{name} is too large a number") from None
    if not isinstance(value, expected) or isinstance(value, bool) != (expected is bool):
        raise UserError(f"{name} must be of type {expected.__name__}: got {reprlib.repr(value)}")
    return value


def expected_type(hint: Any) -> type:
    """Returns the plain type behind ``int``, ``int | None`` or ``Literal["a", "b"]``."""
    if typing.get_origin(hint) is Literal:
        return type(typing.get_args(hint)[0])
    if typing.get_origin(hint) is types.UnionType:
        return next(t for t in typing.get_args(hint) if t is not type(None))
    return hint


def check_types(config: Any, section: str = "") -> None:
    """Checks types and choices of all plain fields; converts NumPy scalars, which JSON lacks."""
    prefix = f"{section}." if section else ""
    for name, hint in _types_of(type(config)).items():
        value, choices = getattr(config, name), typing.get_args(hint)
        if typing.get_origin(hint) is not Literal:
            if type(value).__module__ == "numpy" and not getattr(value, "ndim", 1):
                value = value.item()
            if typing.get_origin(hint) is not tuple:
                object.__setattr__(config, name, _convert(value, hint, f"{prefix}{name}"))
        elif value not in choices:
            known = ", ".join(map(repr, choices))
            raise UserError(f"{prefix}{name} must be one of {known}: got {reprlib.repr(value)}")


def check_positive(config: Any, section: str, *names: str) -> None:
    """Checks that fields are finite and greater than 0, or None."""
    for name in names:
        if (value := getattr(config, name)) is not None and not 0 < value < math.inf:
            raise UserError(f"{section}.{name} must be greater than 0: got {value}")


def check_fraction(config: Any, section: str, *names: str) -> None:
    """Checks that fields are at least 0 and less than 1, or None."""
    for name in names:
        if (value := getattr(config, name)) is not None and not 0 <= value < 1:
            raise UserError(f"{section}.{name} must be at least 0 and less than 1: got {value}")


def fields_given(instance: Any) -> Iterator[str]:
    """Yields the names of the fields of a dataclass that do not have their default values."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        # Arrays, which have no truth value, are never the default.
        is_default = value is field.default
        if not is_default and isinstance(value, int | float):
            is_default = value == field.default
        if not is_default:
            yield field.name
