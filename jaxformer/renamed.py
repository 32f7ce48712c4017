"""Names of the previous release, which are understood for one more, with a ``FutureWarning``."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def renamed_arguments(**names: str) -> Callable[[F], F]:
    """Decorates a function to take keyword arguments by their old names: ``old="new"``.

    >>> @renamed_arguments(limits="max_lengths")
    ... def total(*, max_lengths):
    ...     return sum(max_lengths)
    >>> total(max_lengths=[1, 2])
    3
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old, new in names.items():
                if old in kwargs and new not in kwargs:
                    kwargs[new] = kwargs.pop(old)
                    warn(f"{old} of {function.__qualname__}", new)
            return function(*args, **kwargs)

        return call  # pyright: ignore[reportReturnType]

    return decorate


def renamed_method(old: str, method: F) -> F:
    """Returns ``method`` to be defined under its old name, too."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        warn(old, method.__qualname__)
        return method(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]


def warn(old: str, new: str) -> None:
    """Warns the caller of the function that calls this one."""
    warnings.warn(f"{old} is now {new}", FutureWarning, 3)
