"""The fields of another system's JSON files."""

import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.errors import UserError
from jaxformer.files import read_object
from jaxformer.interop.config_fields import names_no_architecture

# Larger values are mistakes.
_INTEGERS_BELOW = 2**20
_NUMBERS_BELOW = 2**31


def nest_sections(values: Mapping[str, Any], sections: Collection[str]) -> dict[str, Any]:
    """Returns fields with objects for the names ``section.field``.

    >>> nest_sections({"encoder.d_model": 8, "pad_token_id": 0}, ["encoder"])
    {'encoder': {'d_model': 8}, 'pad_token_id': 0}
    """
    result: dict[str, Any] = {}
    for section in sections:
        result[section] = {}

    for name, value in values.items():
        section, dot, field = name.partition(".")
        if dot:
            result[section][field] = value
        else:
            result[name] = value
    return result


class JsonFields:
    """The fields of a JSON file, checked when they are read."""

    def __init__(self, place: pathlib.Path, defaults: dict[str, Any], layout: str = "") -> None:
        """Reads a file.

        Args:
          place: Path of the file.
          defaults: Values of fields that the file leaves out.
          layout: End of the message about a missing file; empty if the file is optional.
        """
        self.place = place
        self.values = dict(defaults)
        self.tensors: Mapping[str, np.ndarray] = {}  # of the model, which an importer adds

        is_required = bool(layout)
        if is_required or place.exists():
            self.values |= read_object(place, advice=layout)

    def flatten_sections(self, names: Collection[str]) -> None:
        """Replaces nested objects by their fields, as ``section.field``.

        Raises:
          UserError: A section is missing or is not an object.
        """
        for section in names:
            nested = self.values.pop(section, None)
            if not isinstance(nested, dict):
                raise UserError(
                    f"{self.place}: expected {section} to be an object with fields of its own: got "
                    f"{nested!r:.80}"
                )
            for name, value in nested.items():
                self.values[f"{section}.{name}"] = value

    def rename(self, names: Mapping[str, str]) -> None:
        """Gives fields other names; a renamed field takes the place of one of that name."""
        for old, new in names.items():
            if old in self.values:
                self.values[new] = self.values.pop(old)

    def integer(self, name: str) -> int:
        value: Any = self.values.get(name)
        if not _is_plausible_integer(value):
            raise self._error(name, f"a whole number below {_INTEGERS_BELOW}")
        return value

    def integers(self, name: str) -> list[int]:
        """Returns the numbers of a field that is one whole number or a list of some."""
        value: Any = self.values.get(name)
        numbers = [value]
        if isinstance(value, list) and value:
            numbers = value

        for number in numbers:
            if not _is_plausible_integer(number):
                raise self._error(name, f"a whole number below {_INTEGERS_BELOW}, or several")
        return numbers

    def boolean(self, name: str) -> bool:
        value = self.values.get(name)
        if not isinstance(value, bool):
            raise self._error(name, "true or false")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a number, or the default, if there is one, for a field that is unset."""
        value: Any = self.values.get(name)
        if value is None:
            value = default

        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_plausible = is_number and abs(value) < _NUMBERS_BELOW
        if not is_plausible:
            raise self._error(name, "a number")
        return float(value)

    def architecture_heads(self) -> dict[str, str]:
        """Returns the names of classes with a head, by their ends, such as "ForMaskedLM"."""
        names: Any = self.values.get("architectures")
        if not isinstance(names, list):
            names = [names]

        heads = {}
        for name in map(str, names):
            match = re.search("For[A-Z].*", name)
            if match:
                head = match[0]
                heads[head] = name
        return heads

    def check(self, name: str, known: Sequence[Any], expected: str, reason: str) -> None:
        """Refuses a field with another value than the known ones, unless it is left out.

        Args:
          name: Name of the field.
          known: Values that are allowed.
          expected: Text for these values.
          reason: Why no other value is, to follow "jaxformer's" in the message.
        """
        is_left_out = name not in self.values
        if is_left_out:
            return

        value = self.values[name]
        if value not in known:
            raise self._error(name, expected, f"; jaxformer's {reason}")

    def check_known(self, known: Collection[str], ignored: str) -> None:
        """Refuses fields of an architecture that an importer neither reads nor may ignore.

        Args:
          known: Fields that the importer reads or checks.
          ignored: Pattern of the architecture's fields that change nothing.
        """
        for name, value in self.values.items():
            is_known = name in known or re.fullmatch(ignored, name)
            if is_known:
                continue

            _, _, own_name = name.rpartition(".")  # without the section
            if not names_no_architecture(own_name, value):
                raise UserError(f"{self.place}: jaxformer does not know {name}={value!r:.80}")

    def _error(self, name: str, expected: str, reason: str = "") -> UserError:
        value = self.values.get(name)
        return UserError(f"{self.place}: expected {name} to be {expected}: got {value!r}{reason}")


def _is_plausible_integer(value: Any) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and 0 <= value < _INTEGERS_BELOW
