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
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from jaxformer.errors import UserError, did_you_mean

T = TypeVar("T")
Check: TypeAlias = Literal[
    "", "positive", "not negative", "fraction", "positive fraction", "size", "own", "any"
]

_LARGEST_SIZE = 2**20  # Encoding even a single position takes memory in proportion to d_model.
_FACTS = "facts"  # the key of the facts in the metadata of a field


class Facts(NamedTuple):
    """Facts about a field of a section; the defaults are strict.

    Attributes:
      check: The allowed values of a number: "positive", "not negative", a "fraction" from 0 to less
        than 1, a "positive fraction", or a "size", which is positive and not huge. "own" stands for
        a check of the class, "any" for all values.
      may_change: A run may resume with another value.
      may_move: A run may resume with another path, since only a new run reads it, or since the
        content is compared.
      may_differ: A run may begin with a model that has another value; no layer depends on it.
      per_use: Each use of a trained model may choose a value.
      in_files: Files and the command line may give a value.
      is_usual: It is in the help of ``jaxformer train``.
    """

    check: Check = ""
    may_change: bool = False
    may_move: bool = False
    may_differ: bool = False
    per_use: bool = False
    in_files: bool = True
    is_usual: bool = False


STRICT = Facts()


def setting(
    default: Any = dataclasses.MISSING,
    check: Check = "",
    *,
    factory: Any = dataclasses.MISSING,
    **facts: Any,
) -> Any:
    """Returns a field of a dataclass with :class:`Facts`, such as ``setting(512, "size")``.

    A field that is a section of a config has its class as ``factory``, and no default. The facts
    then hold for the whole section.
    """
    metadata = {_FACTS: Facts(check, **facts)}
    return dataclasses.field(
        default=default,
        default_factory=factory,
        metadata=metadata,
    )


def facts_of(section: Any) -> dict[str, Facts]:
    """Returns the facts about each field of a dataclass; :data:`STRICT` for a field without any."""
    found = {}
    for field in dataclasses.fields(section):
        found[field.name] = field.metadata.get(_FACTS, STRICT)
    return found


class _Range(NamedTuple):
    contains: Callable[[Any], bool]
    text: str


_POSITIVE = _Range(lambda value: 0 < value < math.inf, "greater than 0")
_FRACTION = _Range(lambda value: 0 <= value < 1, "at least 0 and less than 1")
_RANGES: dict[Check, tuple[_Range, ...]] = {
    "positive": (_POSITIVE,),
    "not negative": (_Range(lambda value: 0 <= value < math.inf, "0 or more"),),
    "fraction": (_FRACTION,),
    "positive fraction": (_POSITIVE, _FRACTION),
    "size": (
        _POSITIVE,
        _Range(lambda value: value <= _LARGEST_SIZE, f"at most {_LARGEST_SIZE}"),
    ),
}


def inherit_attributes(cls: type) -> None:
    """Adds the attributes of the base class to a docstring, which ``help`` shows."""
    # Python has no docstrings when it runs with the option -OO.
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
        name, _, _ = entry.partition(":")
        is_own = f"\n{name}:" in f"\n{entries}"
        if entry and not is_own:
            entries += f"\n{entry}"

    cls.__doc__ = f"{summary}{title}{entries}{blank}{others}"


def build_section(cls: type[T], values: Any, section: str) -> T:
    """Builds a dataclass that checks its fields, by :func:`check_values`, from a dictionary."""
    known = _types_of(cls)
    check_known(values, known, prefix=f"{section}.")
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
        if name in known:
            continue

        name = str(name)[:100]
        hint = did_you_mean(
            name,
            known,
            otherwise=f"known: {', '.join(known)}",
            meaning=f"{prefix}{{}}".format,
        )
        raise UserError(f"unknown config field {prefix}{name}; {hint}")


def check_unchanged(given: dict[str, Any], saved: Any, section: str, place: str) -> None:
    """Checks that a section has the values that it had when a checkpoint was saved.

    Args:
      given: The section now.
      saved: The section of the checkpoint. Earlier versions saved None, or fewer fields.
      section: Name of the section.
      place: Path of the checkpoint, for error messages.
    """
    if saved is None:
        return
    if not isinstance(saved, dict):
        raise UserError(f"{place}: expected fields of {section}, got {reprlib.repr(saved)}")

    given = json.loads(json.dumps(given))  # Tuples become lists, as when they were saved.
    for name, was in saved.items():
        value = given.get(name, was)
        if value != was:
            raise UserError(
                f"{place}: was trained with {section}.{name}={reprlib.repr(was)}, but the config "
                f"has {reprlib.repr(value)}; restore the config that it was trained with"
            )


def _convert(value: Any, hint: Any, name: str) -> Any:
    """Checks the type of a field's value; returns the value, as a float if the field is one."""
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

    if origin is tuple:
        return tuple
    if origin is Literal:
        return type(arguments[0])
    if origin is types.UnionType:
        others = [each for each in arguments if each is not type(None)]
        return others[0]
    return hint


def check_values(config: Any, section: str = "") -> None:
    """Checks types, choices and ranges of all plain fields; converts NumPy scalars for JSON."""
    prefix = f"{section}." if section else ""
    _check_types(config, prefix)

    for name, facts in facts_of(config).items():
        value = getattr(config, name)
        if value is None:
            continue

        numbers = value if isinstance(value, tuple) else (value,)
        for allowed in _RANGES.get(facts.check, ()):
            is_allowed = all(map(allowed.contains, numbers))
            if not is_allowed:
                raise UserError(f"{prefix}{name} must be {allowed.text}: got {value}")


def check_one_of(name: str, value: Any, choices: Collection[Any]) -> None:
    """Checks that a field has one of several values."""
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        shown = reprlib.repr(value)
        raise UserError(f"{name} must be one of {known}: got {shown}")


def _check_types(config: Any, prefix: str) -> None:
    for name, hint in _types_of(type(config)).items():
        full_name = f"{prefix}{name}"
        value = getattr(config, name)
        origin = typing.get_origin(hint)
        arguments = typing.get_args(hint)

        if origin is Literal:
            check_one_of(full_name, value, arguments)
            continue

        is_numpy = type(value).__module__ == "numpy"
        is_scalar = getattr(value, "ndim", None) == 0
        if is_numpy and is_scalar:
            value = value.item()

        is_tuple = origin is tuple
        is_tuple_of_numbers = is_tuple and arguments in ((int, ...), (float, ...))
        if is_tuple_of_numbers:
            element, _ = arguments
            converted = _convert_all(value, element, full_name)
        elif is_tuple:
            continue
        else:
            converted = _convert(value, hint, full_name)
        object.__setattr__(config, name, converted)  # The dataclass is frozen.


def _convert_all(values: Any, hint: type, name: str) -> tuple[Any, ...]:
    """Returns numbers as a tuple; a file of JSON has a list."""
    if not isinstance(values, list | tuple):
        raise UserError(
            f"{name} must be numbers with commas between, as in ({hint(3)}, {hint(2)}): got "
            f"{reprlib.repr(values)}"
        )
    return tuple(_convert(value, hint, name) for value in values)


def fields_given(instance: Any) -> Iterator[str]:
    """Yields the names of the fields of a dataclass that do not have their default values."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)

        # Arrays, whose comparison has no truth value, are never the default.
        is_default = value is field.default
        is_plain = isinstance(value, int | float | str)
        if is_plain and not is_default:
            is_default = value == field.default

        if not is_default:
            yield field.name
