"""A run of the training loop: its files, its compiled steps, its checkpoints and reports."""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.layout import global_mesh
from jaxformer.nn.backend import peak_flops
from jaxformer.runs import processes, watchdog
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.mirror import mirrored
from jaxformer.runs.reporting import Reporter, Window
from jaxformer.runs.run_directory import (
    Settings,
    check_identity,
    check_workdir,
    describe_run,
    initialize_workdir,
    only_run_in,
    prepare_run,
)
from jaxformer.runs.signals import StopSignals
from jaxformer.runs.workdir import Workdir
from jaxformer.runs.writers import Writer
from jaxformer.training.independence import describe_dependence
from jaxformer.training.initial_state import (
    is_finite,
    other_hyperparameters,
    restore_or_initialize,
)
from jaxformer.training.mesh import BatchShards, check_mesh, to_devices
from jaxformer.training.settings import FitConfig
from jaxformer.training.state import StartFrom, TrainState
from jaxformer.training.step import TrainStep, make_train_step
from jaxformer.training.task import Sums, Task
from jaxformer.training.validation import Validation, best_metric

# A run that has skipped this many steps in a row will not recover on its own.
_MOST_SKIPPED_IN_ROW = 10
# Names in the metadata of a checkpoint, beside the names of the identity: the unfinished report,
# and the history of validations.
_WINDOW, _VALIDATIONS = "since_last_report", "best_and_validations_since"


@dataclasses.dataclass
class Run:
    """Everything that the steps of a run need.

    Attributes:
      start: Step that the run begins after.
      saved: Newest saved step.
      window: Steps since the last report.
    """

    task: Task
    settings: FitConfig
    mesh: Mesh
    optimizer: optax.GradientTransformation
    start: int
    saved: int
    metadata: dict[str, Any]
    checkpoints: Checkpoints
    stop: StopSignals
    reporter: Reporter
    window: Window
    validation: Validation
    programs: dict[Any, Any] = dataclasses.field(default_factory=dict)  # steps by shape of batch

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        task: Task,
        optimizer: optax.GradientTransformation,
        folder: Workdir,
        settings: FitConfig,
        mesh: Mesh,
        config: Settings | None,
        *,
        learning_rate: optax.Schedule | None,
        start_from: StartFrom | None,
        writers: Sequence[Writer],
    ) -> Iterator[tuple["Run", TrainState]]:
        """Opens the run in a folder, and restores its newest state or creates one.

        The arguments are as for :func:`~jaxformer.fit`.
        """
        best_metric(task, settings)  # refuses a metric whose direction is not known
        check_mesh(mesh)
        prepare_run(folder, config or settings, settings.mirror)
        identity = task.identity()
        processes.check_agreement(identity)
        metadata = describe_run(identity, config or settings)
        with _open_files(folder, settings, mesh) as (stop, checkpoints, on_commit):
            # Checked again: another run may have used the workdir while this one read its data.
            check_workdir(folder, config or settings)
            check_identity(folder, identity)
            with stop.at_once():
                state, saved = restore_or_initialize(
                    task, optimizer, mesh, settings.seed, folder, checkpoints, metadata, start_from
                )
            start = int(state.step)
            if processes.is_primary():
                if start < settings.steps or not folder.config.exists():
                    initialize_workdir(folder, config or settings, identity, task.save)
                if start:  # an earlier version may have made the workdir without this record
                    on_commit(start)
            formats, window = task.log_formats, saved.get(_WINDOW)
            with Reporter(
                folder, start=start, steps=settings.steps, writers=writers, formats=formats
            ) as reporter:
                history = saved.get(_VALIDATIONS, ())
                run = cls(
                    *(task, settings, mesh, optimizer, start, start, metadata),
                    *(checkpoints, stop, reporter),
                    Window(learning_rate, window, _peak_flops(mesh)),
                    Validation(task, settings, mesh, checkpoints, reporter, stop, history),
                )
                run.log_start(state)
                if start and not run.validation.resume(state, start):
                    stop.end_run(start)
                yield run, state

    def log_start(self, state: TrainState) -> None:
        """Logs the size of the model, the data, and where the run begins."""
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        kind, summary = self.mesh.devices.flat[0].device_kind, self.task.summary()
        self.reporter.log(
            f"{parameters:,} parameters on {self.mesh.size} {kind} "
            f"{'device' if self.mesh.size == 1 else 'devices'}{'; ' if summary else ''}{summary}"
        )
        self.reporter.log(f"{'resumed from' if self.start else 'starting at'} step {self.start}")
        for line in other_hyperparameters(self.optimizer, state) if self.start else ():
            self.reporter.log(line)

    def is_done(self) -> bool:
        """Returns whether there is nothing to do, and logs why."""
        reason = self.validation.out_of_patience()
        if self.start >= self.settings.steps:
            reason = reason or f"{self.settings.section}.steps={self.settings.steps} are done"
        if reason:
            self.reporter.log(f"nothing to do: {reason}")
        return bool(reason)

    def batches(self) -> Iterator[PyTree]:
        """Yields the batches of the remaining steps, on the devices, until a signal comes."""
        return self.window.timed(self.stop.until_stopped(self._batches()))

    def _batches(self) -> Iterator[PyTree]:
        step, steps = self.start, self.settings.steps
        local = itertools.islice(self.task.batches(step, self.shards), steps - step)
        for batch in local:
            yield to_devices(self.mesh, batch, self.settings.gradient_accumulation)
            step += 1
        if step < steps:
            raise UserError(
                f"expected batches for {steps} steps, but there were only {step}; let "
                "Task.batches begin another epoch, or train for fewer steps"
            )

    def compiled(
        self, state: TrainState, batch: PyTree
    ) -> Callable[[TrainState, PyTree], tuple[TrainState, Sums]]:
        """Returns the step compiled for the shape of a batch; reports each compilation.

        Raises:
          UserError: The task names its shapes, and this is another one.
        """
        if (shape := _shape_of(batch)) in self.programs:
            return self.programs[shape]
        if self.shapes and shape not in self.shapes:
            raise UserError(f"expected a batch of one of Task.shapes, got {shape}")
        sizes = sorted({"x".join(map(str, leaf)) for leaf in shape if leaf})
        place = f"{len(self.programs) + 1}{f' of {len(self.shapes)}' if self.shapes else ''}"
        self.reporter.log(f"compiling the step for shape {place}: {', '.join(sizes)}")
        watchdog.progress("the start of the compilation", limited=False)
        began = time.monotonic()
        with self.window.paused():
            self.programs[shape] = self.train_step.compile(state, batch)
        self.reporter.log(f"compiled it in {time.monotonic() - began:.0f} s")
        return self.programs[shape]

    def check_independence(self, state: TrainState, batch: PyTree) -> None:
        """Logs a warning if the loss depends on how the rows of a batch are split.

        The rows of this package's tasks are independent.
        """
        if type(self.task).__module__.startswith("jaxformer."):
            return
        watchdog.progress("the check of the loss before the first step", limited=False)
        with self.window.paused():
            found = describe_dependence(
                self.task.loss, state.params, batch, self.mesh, self.settings.gradient_accumulation
            )
        if found:
            self.reporter.log(f"warning: {found}")

    @functools.cached_property
    def shapes(self) -> set[tuple[tuple[int, ...], ...]]:
        """The shapes of all batches; empty if the task does not name them."""
        return {_shape_of(batch) for batch in self.task.shapes(self.shards)}

    @functools.cached_property
    def train_step(self) -> TrainStep:
        """The step, to be compiled."""
        return make_train_step(
            self.task.loss,
            self.optimizer,
            self.mesh,
            seed=self.settings.seed,
            gradient_accumulation=self.settings.gradient_accumulation,
        )

    @functools.cached_property
    def shards(self) -> BatchShards:
        """Shards of the rows of a batch, including those that this process reads."""
        return BatchShards.of(self.mesh, self.settings.gradient_accumulation)

    def report(self, state: TrainState) -> None:
        """Reports the means of the window, and describes skipped batches.

        Raises:
          FloatingPointError: Too many steps in a row were skipped.
        """
        skipped, spike = self.window.skipped(), self.window.spike()
        step = int(state.step)
        means = self.window.means(updates=step - int(state.skipped))
        self.reporter.write(step, "train", means)
        if spike:
            self.reporter.log(spike)
        for number in skipped:
            examples = list(self.task.example_ids(number - 1))
            batch = self.task.describe_batch(number - 1)
            self.reporter.skipped(number, batch, examples, now=step)
        in_row = int(state.skipped_in_row)
        if in_row >= _MOST_SKIPPED_IN_ROW:
            raise FloatingPointError(
                f"updates were NaN or Inf for the last {in_row} steps; {self._newest_checkpoint()}"
            )

    def _newest_checkpoint(self) -> str:
        """Returns a clause on the newest checkpoint."""
        steps = self.checkpoints.steps()
        return f"the newest checkpoint is of step {max(steps)}" if steps else "nothing is saved yet"

    def save(self, step: int, state: TrainState, *, interim: bool) -> None:
        """Saves a checkpoint in the background, with the report that is not due yet.

        Raises:
          FloatingPointError: The state is not finite. Older checkpoints are kept.
        """
        with self.window.paused():
            if not is_finite(state.params, state.opt_state):
                raise FloatingPointError(
                    f"the parameters or the optimizer's state are NaN or Inf at step {step}, which "
                    f"is not saved; {self._newest_checkpoint()}"
                )
            history = self.validation.history
            metadata = {**self.metadata, _WINDOW: self.window.saved(), _VALIDATIONS: history}
            watchdog.progress(f"step {step} and the start of its save")
            self.checkpoints.save(step, state, metadata=metadata, interim=interim)
        self.saved = step

    def end(self, step: int, state: TrainState, *, stopped: bool) -> None:
        """Completes the last save, and logs why the run ends before its last step, if it does.

        Raises:
          StoppedError: The run was asked to stop.
        """
        if self.saved < step:
            self.save(step, state, interim=True)
        self.checkpoints.wait()
        if reason := self.validation.out_of_patience():
            self.reporter.log(f"stopped early at step {step}: {reason}")
        elif stopped or step < self.settings.steps:
            self.stop.end_run(step)


@contextlib.contextmanager
def _open_files(
    folder: Workdir, settings: FitConfig, mesh: Mesh
) -> Iterator[tuple[StopSignals, Checkpoints, Callable[[int], None]]]:
    """Locks the folder of a run, and collects signals; the function records a saved step."""

    def on_commit(step: int) -> None:
        folder.record_commit(step)
        update_mirror()

    keep = settings.keep_checkpoints
    with (
        global_mesh(mesh),
        watchdog.watch(settings.stall_timeout),
        only_run_in(folder),
        StopSignals() as stop,
        mirrored(folder, settings.mirror) as update_mirror,
        Checkpoints(folder.checkpoints, keep=keep, on_commit=on_commit) as checkpoints,
    ):
        yield stop, checkpoints, on_commit


def _shape_of(batch: PyTree) -> tuple[tuple[int, ...], ...]:
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


def _peak_flops(mesh: Mesh) -> float | None:
    """Returns the peak FLOP/s of all devices together, if known."""
    peak = peak_flops(mesh.devices.flat[0].device_kind)
    return peak and mesh.size * peak
