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
    if not cls.__doc__:
        return

    # The section of attributes ends with a blank line.
    own = inspect.cleandoc(cls.__doc__)
    summary, title, rest = own.partition("\nAttributes:\n")
    entries, blank, others = rest.partition("\n\n")

    base = inspect.cleandoc(cls.__mro__[1].__doc__ or "")
    _, _, rest_of_base = base.partition("\nAttributes:\n")
    inherited, _, _ = rest_of_base.partition("\n\n")
    inherited_entries = []
    if title:
        inherited_entries = re.split(r"\n(?=  \w)", inherited)
    for entry in inherited_entries:
        name = entry.partition(":")[0]
        is_own = f"\n{name}:" in f"\n{entries}"
        if entry and not is_own:
            entries += f"\n{entry}"

    cls.__doc__ = f"{summary}{title}{entries}{blank}{others}"


def build_section(cls: type[T], values: Any, section: str) -> T:
    """Builds a dataclass that checks its fields, by :func:`check_types`, from a dictionary."""
    check_known(values, _types_of(cls), f"{section}.")
    return cls(**values)


@functools.cache
def _types_of(cls: Any) -> dict[str, Any]:
    """Returns the types of the fields of a dataclass, without other annotations of its bases."""
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    return {name: hints[name] for name in names}


def check_known(values: Any, known: Iterable[str], prefix: str) -> None:
    """Checks that ``values`` is a dictionary of known fields."""
    if not isinstance(values, dict):
        section = prefix.rstrip(".") or "config"
        raise UserError(f"{section}: expected fields, got {reprlib.repr(values)}")

    for name in values:
        if name not in known:
            name = str(name)[:100]
            hint = did_you_mean(
                name,
                known,
                otherwise=f"known: {', '.join(known)}",
                meaning=f"{prefix}{{}}".format,
            )
            raise UserError(f"unknown config field {prefix}{name}; {hint}")


def check_unchanged(given: dict[str, Any], saved: Any, section: str, place: str) -> None:
    """Compares a section with a checkpoint's, which earlier versions saved as None or with less."""
    if saved is None:
        return
    if not isinstance(saved, dict):
        raise UserError(f"{place}: expected fields of {section}, got {reprlib.repr(saved)}")

    given = json.loads(json.dumps(given))  # As when they were saved: tuples become lists.

    for name, was in saved.items():
        if name in _MAY_DIFFER:
            continue
        if given.get(name, was) != was:
            raise UserError(
                f"{place}: was trained with {section}.{name}={reprlib.repr(was)}, but the config "
                f"has {reprlib.repr(given[name])}; restore the config that it was trained with"
            )


def _convert(value: Any, hint: Any, name: str) -> Any:
    """Returns a value of the type of a field, or raises an error; integers become floats."""
    is_optional = type(None) in typing.get_args(hint)
    if value is None and is_optional:
        return None

    expected = expected_type(hint)
    is_bool = isinstance(value, bool)  # and therefore also an int
    if expected is float and isinstance(value, int) and not is_bool:
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{name} is too large a number") from None

    expects_bool = expected is bool
    if not isinstance(value, expected) or is_bool != expects_bool:
        raise UserError(f"{name} must be of type {expected.__name__}: got {reprlib.repr(value)}")
    return value


def expected_type(hint: Any) -> type:
    """Returns the plain type behind ``int``, ``int | None`` or ``Literal["a", "b"]``."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Literal:
        return type(arguments[0])
    if origin is types.UnionType:
        return next(each for each in arguments if each is not type(None))
    return hint


def check_types(config: Any, section: str = "") -> None:
    """Checks types and choices of all plain fields; converts NumPy scalars, which JSON lacks."""
    prefix = f"{section}." if section else ""

    for name, hint in _types_of(type(config)).items():
        value = getattr(config, name)
        origin = typing.get_origin(hint)

        if origin is Literal:
            choices = typing.get_args(hint)
            if value not in choices:
                known = ", ".join(map(repr, choices))
                shown = reprlib.repr(value)
                raise UserError(f"{prefix}{name} must be one of {known}: got {shown}")
            continue

        is_of_numpy = type(value).__module__ == "numpy"
        if is_of_numpy and not getattr(value, "ndim", 1):
            value = value.item()
        if origin is not tuple:
            converted = _convert(value, hint, f"{prefix}{name}")
            object.__setattr__(config, name, converted)  # The dataclass is frozen.


def check_positive(config: Any, section: str, *names: str) -> None:
    """Checks that fields are finite and greater than 0, or None."""
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        if not 0 < value < math.inf:
            raise UserError(f"{section}.{name} must be greater than 0: got {value}")


def check_fraction(config: Any, section: str, *names: str) -> None:
    """Checks that fields are at least 0 and less than 1, or None."""
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        if not 0 <= value < 1:
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
