"""Sizes of tests: a few cases in `make test` and `.ci/run`, all cases in `make nightly`."""

import os
from typing import TypeVar

T = TypeVar("T")
NIGHTLY = os.environ.get("JAXFORMER_TESTS") == "nightly"
# Annotations of shapes and classes are checked at run time.
CHECKED = NIGHTLY or os.environ.get("JAXFORMER_TESTS") == "checked"


def by_profile(ordinary: T, nightly: T) -> T:
    """Returns the first argument, or in `make nightly` the second.

    >>> by_profile(3, nightly=100)
    3
    """
    return nightly if NIGHTLY else ordinary
