"""The fields of another system's JSON files."""

import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.errors import UserError
from jaxformer.files import read_object
from jaxformer.interop.config_fields import names_no_architecture


class JsonFields:
    """The fields of a JSON file, checked when they are read."""

    def __init__(self, place: pathlib.Path, defaults: dict[str, Any], layout: str = "") -> None:
        """Reads a file; ``layout`` ends the message about a missing one, unless it is optional."""
        self.tensors: Mapping[str, np.ndarray] = {}  # in the files beside this one
        found = read_object(place, advice=layout) if layout or place.exists() else {}
        self.place, self.values = place, defaults | found

    def integer(self, name: str) -> int:
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**20:
            raise self._error(name, f"a whole number below {2**20}")
        return value

    def boolean(self, name: str) -> bool:
        if not isinstance(value := self.values.get(name), bool):
            raise self._error(name, "true or false")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a number, or the default, if there is one, for a field that is unset."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 2**31:
            raise self._error(name, "a number")
        return float(value)

    def check(self, name: str, known: Sequence[Any], expected: str, reason: str) -> None:
        """Refuses a field with another value than the known ones, unless it is left out."""
        if name in self.values and self.values[name] not in known:
            raise self._error(name, expected, f"; jaxformer's {reason}")

    def check_known(self, known: Collection[str], ignored: str) -> None:
        """Refuses fields of an architecture that an importer neither reads nor may ignore.

        Args:
          known: Fields that the importer reads or checks.
          ignored: Pattern of the architecture's fields that change nothing.
        """
        for name, value in self.values.items():
            is_known = name in known or re.fullmatch(ignored, name)
            if not is_known and not names_no_architecture(name, value):
                raise UserError(f"{self.place}: jaxformer does not know {name}={value!r:.80}")

    def _error(self, name: str, expected: str, reason: str = "") -> UserError:
        value = self.values.get(name)
        return UserError(f"{self.place}: expected {name} to be {expected}: got {value!r}{reason}")
