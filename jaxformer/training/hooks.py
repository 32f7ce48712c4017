"""Hooks: functions of the user that the training loop calls after its steps."""

from collections.abc import Callable
from typing import Any, TypeAlias

from jaxformer.training.state import TrainState
from jaxformer.training.task import Sums

# Called after a step with the step number, the state and the sums of the step; see fit.
Hook: TypeAlias = Callable[[int, TrainState, Sums], None]


def every(steps: int, hook: Hook) -> Hook:
    """Returns a hook that calls ``hook`` only after every ``steps`` steps.

    Args:
      steps: Steps between two calls.
      hook: Called with the number of the step, from 1, the state and the sums of the step.

    >>> noted = []
    >>> hook = every(3, lambda step, state, sums: noted.append(step))
    >>> for step in range(1, 10):
    ...     hook(step, None, {})
    >>> noted
    [3, 6, 9]
    """

    def call(step: int, state: Any, sums: Sums) -> None:
        if step % steps == 0:
            hook(step, state, sums)

    return call
