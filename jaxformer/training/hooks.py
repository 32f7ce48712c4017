"""Hooks: functions that the training loop calls after its steps."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax

from jaxformer.training.task import Sums
from jaxformer.training.train_state import TrainState

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


@contextlib.contextmanager
def profile_hook(
    steps: range,
    folder: pathlib.Path,
    log: Callable[[str], None],
) -> Iterator[Hook]:
    """Yields a hook that writes a trace of these steps, except the run's first step."""
    running = False
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Most of the trace would be Python calls.

    def hook(step: int, state: TrainState, sums: Sums) -> None:
        nonlocal running
        should_run = step + 1 in steps
        if running == should_run:
            return

        jax.block_until_ready(state)
        if running:
            jax.profiler.stop_trace()
            log(
                f"profiled up to step {step}: open the perfetto_trace.json.gz below {folder} at "
                "https://ui.perfetto.dev, or the folder with XProf"
            )
        else:
            jax.profiler.start_trace(folder, create_perfetto_trace=True, profiler_options=options)
        running = should_run

    try:
        yield hook
    finally:
        if running:
            jax.profiler.stop_trace()
