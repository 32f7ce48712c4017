"""The training loop: :func:`fit` trains any task."""

import dataclasses
import functools
import itertools
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import UserError
from jaxformer.files import local_path
from jaxformer.training import hosts
from jaxformer.training.hooks import Hook
from jaxformer.training.mesh import BatchShards, make_mesh, to_devices
from jaxformer.training.reporting import Reporter, Window
from jaxformer.training.run_directory import (
    begin,
    check_identity,
    check_metadata,
    check_workdir,
    initialize_workdir,
    only_run_in,
)
from jaxformer.training.settings import FitConfig, Settings
from jaxformer.training.signals import asked_to_stop, stop_signals
from jaxformer.training.step import TrainState, abstract_state, init_state, make_train_step
from jaxformer.training.task import Sums, Task
from jaxformer.training.writers import Writer
from jaxformer.workdir import Workdir

# A run that has skipped this many steps in a row will not recover on its own.
_MOST_SKIPPED_IN_ROW = 10


class _StoppedError(Exception):
    """Raised in a validation when the run has been asked to stop."""


def fit(
    task: Task,
    optimizer: optax.GradientTransformation,
    workdir: str | pathlib.Path,
    settings: FitConfig | None = None,
    *,
    mesh: Mesh | None = None,
    config: Settings | None = None,
    learning_rate: optax.Schedule | None = None,
    hooks: Sequence[Hook] = (),
    writers: Sequence[Writer] = (),
) -> TrainState:
    """Trains a task in ``workdir``, or resumes the run that is there.

    Training resumes exactly: after any interruption, even kill -9, batches and random numbers
    continue as if nothing had happened. SIGTERM, SIGINT and SIGHUP save a checkpoint first.

    Args:
      task: Parameters, loss, batches and evaluation.
      optimizer: Any gradient transformation. A resumed run must be given the same one.
      workdir: Run directory: checkpoints, metrics, identity.
      settings: Length of the training, and intervals of reports, validations and checkpoints.
      mesh: Devices, from :func:`~jaxformer.training.mesh.make_mesh`. None puts all of them along
        "data".
      config: Your own config that contains the settings: any object with ``to_dict`` and
        ``from_dict``. It is saved, and a resumed run must match it. When None, a resumed run must
        match the seed of the settings.
      learning_rate: Schedule of the optimizer, used only in reports.
      hooks: Called after each step, once it is reported and saved, with the step number, the state
        and the sums of the step. The next step donates the state: copy what you keep. An exception
        ends the run. The run can be resumed from the newest checkpoint, and then repeats the later
        steps and their hooks.
      writers: Receive all training and validation reports, in addition to the terminal,
        ``metrics.jsonl`` and TensorBoard. A writer that raises is dropped with a message in the
        log.

    Returns:
      The final state.

    Raises:
      UserError: The workdir belongs to another experiment, another process trains in it, its
        checkpoints are missing, or the task is invalid.
      FloatingPointError: Updates were not finite for many steps in a row.
      KeyboardInterrupt: The run was asked to stop, and has saved its state.
    """
    _check_task(task)
    folder, settings = Workdir(local_path(workdir)), settings or FitConfig()
    mesh = make_mesh() if mesh is None else mesh
    begin(folder, config or settings)
    identity = task.identity()
    hosts.check_agreement(identity)
    keep, on_commit = settings.keep_checkpoints, folder.record_commit
    with (
        only_run_in(folder),
        Checkpoints(folder.checkpoints, keep=keep, on_commit=on_commit) as checkpoints,
    ):
        # Checked again: another run may have used the workdir while this one read its data.
        check_workdir(folder, config or settings)
        check_identity(folder, identity)
        state = _restore_or_initialize(task, optimizer, mesh, settings.seed, folder, checkpoints)
        start = int(state.step)
        if hosts.is_primary():
            initialize_workdir(folder, config or settings, task)
            if start:  # an earlier version may have made the workdir without this record
                folder.record_commit(start)
        with Reporter(
            folder,
            start=start,
            steps=settings.steps,
            writers=writers,
            formats=task.log_formats,
        ) as reporter:
            _log_summary(reporter, task, mesh, state)
            run = Run(task, settings, mesh, optimizer, checkpoints, reporter, learning_rate, hooks)
            if start:
                run.resume_validation(state, start)
            if start >= settings.steps:
                section = "training" if config else "fit"
                reporter.log(f"nothing to do: {section}.steps={settings.steps} are done")
                return state
            return run.steps(state, start)


def _check_task(task: Any) -> None:
    if not isinstance(task, Task):
        names = [name for name in dir(Task) if not name.startswith("_") and not hasattr(task, name)]
        raise UserError(
            f"expected a Task, got {type(task).__name__}, which has no {', '.join(names)}; derive "
            "it from jaxformer.Task"
        )


def _restore_or_initialize(
    task: Task,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    seed: int,
    folder: Workdir,
    checkpoints: Checkpoints,
) -> TrainState:
    if jax.process_count() > 1:
        newest = checkpoints.newest_good_step()
        hosts.check_agreement({"newest undamaged checkpoint in the workdir": str(newest)})
    restored = checkpoints.restore(abstract_state(task.init, optimizer, mesh, task.describe))
    if restored is None:
        return init_state(task.init, optimizer, mesh, seed, task.describe)
    check_metadata(folder, task.identity(), restored.metadata)
    return restored.state


@dataclasses.dataclass
class Run:
    """Everything that the steps of a run need."""

    task: Task
    settings: FitConfig
    mesh: Mesh
    optimizer: optax.GradientTransformation
    checkpoints: Checkpoints
    reporter: Reporter
    learning_rate: optax.Schedule | None
    hooks: Sequence[Hook]

    def steps(self, state: TrainState, start: int) -> TrainState:
        """Takes all steps after ``start``, and reports, validates and saves along the way."""
        settings = self.settings
        train_step = self.compile_train_step(state)
        window = Window(self.learning_rate)
        with stop_signals() as stopped:
            for step, batch in enumerate(window.timed(self.batches(start)), start=start + 1):
                state, sums = train_step(state, batch)
                self.checkpoints.check()
                window.add(step, sums)
                self.reporter.advance(step)
                last = step == settings.steps
                stop = asked_to_stop(stopped, step) and not last
                if step % settings.log_every == 0 or last:
                    self.report(state, window)
                due = step % settings.checkpoint_every == 0 or last
                if due or stop:
                    with window.paused():
                        self.save(step, state, interim=not due)
                        # A preempted run skips validation, except the final one.
                        if self.is_validated(step) and not stop:
                            self.validate(step, state, stopped if not last else ())
                        stop = stop or (bool(stopped) and not last)  # asked during validation
                for hook in self.hooks:
                    hook(step, state, sums)
                if stop:
                    self.end_early(step, stopped)
            self.checkpoints.wait()
        return state

    def end_early(self, step: int, stopped: Sequence[signal.Signals]) -> NoReturn:
        """Ends the run after its state has been saved."""
        self.checkpoints.wait()
        name = stopped[0].name if stopped else "SIGTERM"
        raise KeyboardInterrupt(f"{name}: step {step} is saved; the same command resumes there")

    def is_validated(self, step: int) -> bool:
        """Returns whether the run validates after this step."""
        return step % self.settings.eval_every == 0 or step == self.settings.steps

    def validate(
        self, step: int, state: TrainState, stopped: Sequence[signal.Signals] = ()
    ) -> None:
        """Validates a state that is saved or being saved, and attaches the score to its checkpoint.

        A validation that fails is reported, and training continues. With several processes it ends
        the run: the others wait for the failed one in the middle of a computation.
        """

        def check_stop() -> None:
            if stopped:
                raise _StoppedError

        name, mode = self.task.best
        try:
            values = self.task.evaluate(state.params, self.mesh, check_stop)
            score = values[name] if values else 0.0
        except _StoppedError:
            return
        except Exception as error:
            if jax.process_count() > 1:
                raise
            self.reporter.failed_validation(step, error)
            return
        if not values:
            return
        # Wait first: a process killed while it waits must not report this validation twice.
        self.checkpoints.wait()
        self.reporter.valid(step, values)
        self.checkpoints.attach_score(step, score if mode == "max" else -score)

    def resume_validation(self, state: TrainState, start: int) -> None:
        """Validates the checkpoint that the run resumes from, if it was due and was interrupted."""
        due = start <= self.settings.steps and self.is_validated(start)
        if due and not self.checkpoints.is_scored(start):
            self.validate(start, state)

    def compile_train_step(
        self, state: TrainState
    ) -> Callable[[TrainState, PyTree], tuple[TrainState, Sums]]:
        """Compiles the step for every shape in ``Task.shapes``; any other shape is an error."""
        began = time.monotonic()
        train_step = make_train_step(
            self.task.loss,
            self.optimizer,
            self.mesh,
            seed=self.settings.seed,
            gradient_accumulation=self.settings.gradient_accumulation,
        )
        shapes = self.task.shapes(self.shards)
        if not shapes:
            return train_step
        programs = {_shape_of(batch): train_step.lower(state, batch).compile() for batch in shapes}
        self.reporter.log(
            f"compiled the step for {len(programs)} {'shape' if len(programs) == 1 else 'shapes'} "
            f"in {time.monotonic() - began:.0f} s"
        )

        def compiled_step(state: TrainState, batch: PyTree) -> tuple[TrainState, Sums]:
            if (shape := _shape_of(batch)) not in programs:
                raise UserError(f"expected a batch of one of Task.shapes, got {shape}")
            return programs[shape](state, batch)

        return compiled_step

    @functools.cached_property
    def shards(self) -> BatchShards:
        """Shards of the rows of a batch, including those that this process reads."""
        return BatchShards.of(self.mesh, self.settings.gradient_accumulation)

    def batches(self, start: int) -> Iterator[PyTree]:
        """Yields the batches of the remaining steps, on the devices.

        Raises:
          UserError: The task yields too few.
        """
        step, steps = start, self.settings.steps
        local = itertools.islice(self.task.batches(start, self.shards), steps - start)
        for batch in local:
            yield to_devices(self.mesh, batch, self.settings.gradient_accumulation)
            step += 1
        if step < steps:
            raise UserError(
                f"expected batches for {steps} steps, but there were only {step}; let "
                "Task.batches begin another epoch, or train for fewer steps"
            )

    def report(self, state: TrainState, window: Window) -> None:
        """Reports the means of the window, and describes skipped batches.

        Raises:
          FloatingPointError: Too many steps in a row were skipped.
        """
        skipped = window.skipped()
        step = int(state.step)
        self.reporter.train(step, window.means(updates=step - int(state.skipped)))
        for number in skipped:
            batch = self.task.describe_batch(number - 1)
            self.reporter.log(
                f"step {number} skipped: its update was NaN or Inf{'; ' if batch else ''}{batch}"
            )
        in_row = int(state.skipped_in_row)
        if in_row >= _MOST_SKIPPED_IN_ROW:
            newest = max(self.checkpoints.steps(), default=None)
            raise FloatingPointError(
                f"updates were NaN or Inf for the last {in_row} steps; the newest checkpoint is "
                f"of step {newest}"
            )

    def save(self, step: int, state: TrainState, *, interim: bool) -> None:
        """Saves a checkpoint in the background."""
        self.checkpoints.save(step, state, metadata=self.task.identity(), interim=interim)


def _shape_of(batch: PyTree) -> tuple[tuple[int, ...], ...]:
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


def _log_summary(reporter: Reporter, task: Task, mesh: Mesh, state: TrainState) -> None:
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    summary, start = task.summary(), int(state.step)
    reporter.log(
        f"{parameters:,} parameters on {mesh.size} {mesh.devices.flat[0].device_kind} "
        f"{'device' if mesh.size == 1 else 'devices'}{'; ' if summary else ''}{summary}"
    )
    reporter.log(f"{'resumed from' if start else 'starting at'} step {start}")
