"""Sizes that a config chooses by its data, where the user gives none."""

import dataclasses
import math
from collections.abc import Collection
from typing import Any, TypeVar

from jaxformer.config import Config
from jaxformer.runs import processes
from jaxformer.waits import log_stream

Number = TypeVar("Number", int, float)


class Choices:
    """Values of the fields that the user has not given, with their reasons."""

    def __init__(self, config: Config, given: Collection[str]) -> None:
        """Chooses nothing yet; ``given`` are names such as "training.steps"."""
        self._config = config
        self._given = given
        self._lines: list[str] = []
        # Values by section and field.
        self._changes: dict[str, dict[str, Any]] = {
            "model": {},
            "data": {},
            "training": {},
        }

    def choose_value(self, name: str, value: Number, reason: str) -> Number:
        """Returns the value of a field: the given one, or the chosen one."""
        section_name, _, field = name.partition(".")
        if name in self._given:
            section = getattr(self._config, section_name)
            return getattr(section, field)

        self._lines.append(f"  {name}={value}: {reason}")
        self._changes[section_name][field] = value
        return value

    def choose_reports(self, steps: int, per_validation: int) -> None:
        """Chooses when to validate, save and log, unless the user says when to validate or save."""
        if "training.eval_every" in self._given or "training.checkpoint_every" in self._given:
            return

        fifth = math.ceil(steps / 5)
        eval_every = self.choose_value("training.eval_every", fifth, "five validations")
        self.choose_value("training.checkpoint_every", eval_every, "a checkpoint for each")

        log_every = math.ceil(eval_every / per_validation)
        reports = f"{per_validation} reports for each"
        self.choose_value("training.log_every", log_every, reports)

    def apply(self, title: str) -> Config:
        """Returns the config with the chosen values, and prints them below a title."""
        if self._lines and processes.is_primary():
            print(title, *self._lines, sep="\n", file=log_stream())

        sections = {}
        for name, fields in self._changes.items():
            section = getattr(self._config, name)
            sections[name] = dataclasses.replace(section, **fields)
        return dataclasses.replace(self._config, **sections)
