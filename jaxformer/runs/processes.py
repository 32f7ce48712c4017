"""Communication between the processes of one run, on one or several hosts.

With a single process, nothing is communicated.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from jaxformer.errors import UserError


def is_primary() -> bool:
    """Returns whether this is process 0, which writes files and reports."""
    return jax.process_index() == 0


def all_gather(value: Any) -> list[Any]:
    """Returns the values of all processes, in process order. They must be serializable as JSON."""
    if jax.process_count() == 1:
        return [value]
    mine = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.array(mine.size, np.int32))
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: mine.size] = mine
    texts = multihost_utils.process_allgather(padded)
    return [json.loads(text[:n].tobytes()) for text, n in zip(texts, lengths, strict=True)]


def on_primary(action: Callable[[], object]) -> None:
    """Runs the action on process 0 while the others wait; all raise its UserError or OSError."""
    failure = None
    if is_primary():
        try:
            action()
        except (UserError, OSError) as error:
            failure = isinstance(error, UserError), str(error)
    if failure := all_gather(failure)[0]:
        is_user_error, message = failure
        raise (UserError if is_user_error else OSError)(message)


def check_agreement(facts: dict[str, str]) -> None:
    """Raises a UserError on every process if two of them were started with different values."""
    everywhere = all_gather(facts)
    for name, fact in everywhere[0].items():
        for process, others in enumerate(everywhere):
            if others[name] != fact:
                raise UserError(
                    f"process {process} was started with another {name} than process 0: expected "
                    f"{fact}, got {others[name]}; give all hosts the same"
                )


def on_this_host(tree: PyTree) -> PyTree:
    """Returns global arrays as whole NumPy arrays, on every process."""
    return multihost_utils.process_allgather(tree, tiled=True)
