"""Searches as arguments of jitted functions: searches that differ in numbers share a program.

A jitted function takes a search in two parts. The static part decides the structure of the program;
the numbers are traced: a sweep over the length penalty or the temperature compiles once.
"""

import copy
import dataclasses
from typing import Any, TypeAlias, TypeVar

import numpy as np

from jaxformer.search.algorithm import Algorithm
from jaxformer.search.constraints import as_pytrees
from jaxformer.search.penalties import length_penalties
from jaxformer.search.settings import is_set

# Attributes of a search by name: arrays, and constraints as pytrees.
Numbers: TypeAlias = dict[str, Any]
Search = TypeVar("Search", bound=Algorithm)

# Numbers, each with the value that stands for all others in the static part.
_ALWAYS = {"max_extra_length": 1, "diversity_penalty": 0.0, "temperature": 1.0, "seed": 0}
# Numbers with a neutral value, which needs no computation, and the value that stands for others.
_UNLESS_NEUTRAL = {"min_length": (0, 1), "top_p": (1.0, 0.5)}


def split_numbers(search: Search, capacity: int) -> tuple[Search, Numbers]:
    """Returns the static part of a search, hashable, and its numbers, a pytree.

    The static part has no ``max_length``: the caller limits the capacity.

    Args:
      search: The search.
      capacity: Capacity of its state in tokens.

    Raises:
      UserError: A constraint is neither hashable nor a pytree.
    """
    numbers: Numbers = {"constraints": as_pytrees(search.constraints)}
    numbers["length_penalty"] = length_penalties(search.penalty, search.length_penalty, capacity)
    static: dict[str, Any] = {"constraints": (), "length_penalty": 0.0, "max_length": None}
    for name, value in _ALWAYS.items():
        if hasattr(search, name):
            numbers[name], static[name] = _array(getattr(search, name)), value
    for name, (neutral, value) in _UNLESS_NEUTRAL.items():
        if is_set(getattr(search, name, neutral), neutral):
            numbers[name], static[name] = _array(getattr(search, name)), value
    numbers["max_extra_length"] = _array(search.extra_length)
    return dataclasses.replace(search, **static), numbers


def join_numbers(search: Search, numbers: Numbers) -> Search:
    """Returns the search with its numbers, which may be traced; the inverse of the split."""
    search = copy.copy(search)
    for name, value in numbers.items():
        object.__setattr__(search, name, value)  # not checked: traced values are not known
    return search


def _array(value: float) -> np.int32 | np.float32:
    return np.int32(value) if isinstance(value, int) else np.float32(value)
