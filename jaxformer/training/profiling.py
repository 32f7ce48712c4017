"""Profiles of some training steps, by JAX's profiler."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator

import jax

from jaxformer.training.hooks import Hook
from jaxformer.training.state import TrainState
from jaxformer.training.task import Sums


@contextlib.contextmanager
def profiling(steps: range, folder: pathlib.Path, log: Callable[[str], None]) -> Iterator[Hook]:
    """Yields a hook that profiles steps.

    Args:
      steps: Numbers of the steps, after the first step of the run.
      folder: Place of the trace.
      log: Prints a message.
    """
    running, options = False, jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python calls would be most of the trace.

    def hook(step: int, state: TrainState, sums: Sums) -> None:
        nonlocal running
        if running == (step + 1 in steps):
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
        running = not running

    try:
        yield hook
    finally:
        if running:
            jax.profiler.stop_trace()
