"""The training loop: :func:`fit` trains any task."""

import dataclasses
import itertools
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.files import run_path
from jaxformer.layout import global_mesh
from jaxformer.runs import processes, run_directory, watchdog
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.mirror import start_mirror
from jaxformer.runs.reporting import Reporter, ReportWindow
from jaxformer.runs.run_directory import Settings
from jaxformer.runs.signals import StopSignals
from jaxformer.runs.workdir import Workdir
from jaxformer.runs.writers import Writer
from jaxformer.training.averaging import EvaluatedParams
from jaxformer.training.flops import peak_flops
from jaxformer.training.hooks import Hook, profile_hook
from jaxformer.training.independence import describe_dependence
from jaxformer.training.mesh import BatchShards, check_mesh, make_mesh, to_devices
from jaxformer.training.settings import FitConfig
from jaxformer.training.state import (
    StartFrom,
    TrainState,
    changed_hyperparameters,
    evaluate_at,
    is_finite,
    restore_or_initialize,
    updates_of_schedule,
)
from jaxformer.training.step import CompiledStep, make_train_step
from jaxformer.training.task import Task, check_task
from jaxformer.training.validation import Validation, best_metric
from jaxformer.waits import announce

# A run that has skipped this many steps in a row will not recover on its own.
_MAX_SKIPPED_IN_ROW = 10
# Keys in the metadata of a checkpoint: the unfinished report, and the history of validations.
_WINDOW, _VALIDATIONS = "since_last_report", "best_and_validations_since"


def fit(
    task: Task,
    optimizer: optax.GradientTransformation,
    workdir: str | pathlib.Path,
    settings: FitConfig | None = None,
    *,
    mesh: Mesh | None = None,
    config: Settings | None = None,
    learning_rate: optax.Schedule | None = None,
    start_from: StartFrom | None = None,
    hooks: Sequence[Hook] = (),
    writers: Sequence[Writer] = (),
    evaluated: EvaluatedParams | None = None,
) -> TrainState:
    """Trains a task in ``workdir``, or resumes its run.

    Training resumes exactly: after any interruption, even kill -9, batches and random numbers
    continue as if nothing had happened. SIGTERM, SIGINT and SIGHUP save a checkpoint first.

    Args:
      task: Parameters, loss, batches and evaluation.
      optimizer: Any gradient transformation; some need :func:`~jaxformer.per_layer`. A resumed run
        must be given the same one.
      workdir: Run directory: checkpoints, metrics, identity.
      settings: Number of steps, and intervals of reports, validations and checkpoints.
      mesh: Devices, from :func:`~jaxformer.make_mesh`. None puts all devices along "data".
      config: Your own config that contains the settings: any object with ``to_dict`` and
        ``from_dict``. It is saved, and a resumed run must match it. When None, a resumed run must
        match the seed of the settings.
      learning_rate: Schedule of the optimizer, used only in reports.
      start_from: Returns the initial parameters of a new run, given the ones from ``task.init``,
        for example ``lambda fresh: params``. A resumed run does not call it.
      hooks: Called after each step, once it is reported and saved, with the step number, the state
        and the sums of the step. The next step donates the state, so copy the arrays you keep. An
        exception ends the run; it resumes from its newest checkpoint and repeats later steps.
      writers: Receive all training and validation reports, in addition to the terminal,
        ``metrics.jsonl`` and TensorBoard. A writer that raises is dropped, with a line in the log.
      evaluated: Returns the parameters that are validated, and that commands and
        :class:`~jaxformer.Checkpoints` read, given the optimizer's state and the trained
        parameters, such as :func:`~jaxformer.ema_params` or
        ``optax.contrib.schedule_free_eval_params``. None gives the trained ones. A resumed run must
        be given the same one.

    Returns:
      The final state, with the trained parameters.

    Raises:
      UserError: The workdir belongs to another experiment, another process trains in it, its
        checkpoints are missing, or the task is invalid.
      FloatingPointError: Updates were not finite for many steps in a row, or parameters are not.
      KeyboardInterrupt: The run was asked to stop. If it has taken steps, their state is saved.
    """
    check_task(task)
    folder, settings = Workdir(run_path(workdir)), settings or FitConfig()
    mesh, config = make_mesh() if mesh is None else mesh, config or settings
    run = Run(
        *(task, optimizer, folder, settings, mesh, config, learning_rate, start_from),
        *(hooks, writers, evaluated),
    )
    with watchdog.watch(settings.stall_timeout):
        run_directory.prepare_run(folder, config, settings.mirror)
        return run.train()


@dataclasses.dataclass
class Run:
    """A run; its fields are the arguments of :func:`fit`. Other attributes are set as it begins."""

    task: Task
    optimizer: optax.GradientTransformation
    folder: Workdir
    settings: FitConfig
    mesh: Mesh
    config: Settings
    learning_rate: optax.Schedule | None
    start_from: StartFrom | None
    hooks: Sequence[Hook]
    writers: Sequence[Writer]
    evaluated: EvaluatedParams | None

    def __post_init__(self) -> None:
        check_mesh(self.mesh)
        self.evaluated = self.evaluated and jax.jit(self.evaluated)
        self.best = best_metric(self.task, self.settings)

    def train(self) -> TrainState:
        """Opens the folder, begins or resumes its run, and returns the final state."""
        folder, settings, config = self.folder, self.settings, self.config
        identity = self.task.identity()
        processes.check_agreement(identity)
        keep = settings.keep_checkpoints
        with (
            global_mesh(self.mesh),
            run_directory.only_run_in(folder),
            StopSignals() as self.stop,
            start_mirror(folder, settings.mirror) as self.update_mirror,
            Checkpoints(folder.checkpoints, keep=keep, on_commit=self._record) as self.checkpoints,
        ):
            # Checked again, since another run may have used the workdir in the meantime.
            run_directory.check_workdir(folder, config)
            run_directory.check_identity(folder, identity)
            state, saved = self._restore(identity)
            formats, start = self.task.log_formats, self.saved
            with Reporter(
                folder, start=start, steps=settings.steps, writers=self.writers, formats=formats
            ) as self.reporter:
                self._prepare(state, saved)
                if done := self._describe_finished():
                    self.reporter.log(done)
                    return state
                return self._take_steps(state)

    def _record(self, step: int) -> None:
        self.folder.record_commit(step)
        self.update_mirror()

    def _restore(self, identity: dict[str, str]) -> tuple[TrainState, dict[str, Any]]:
        """Returns the newest state, or a fresh one, and the metadata of its checkpoint."""
        task, settings = self.task, self.settings
        # Parameters do not determine a model: an activation has none.
        model = self.config.to_dict().get("model")
        self.metadata = identity if model is None else {**identity, "model": model}
        newest = max(self.checkpoints.steps(), default=None)
        work = "initializing the parameters"
        if newest is not None:
            work = f"verifying and restoring the checkpoint of step {newest}"
        with self.stop.raise_at_once(), announce(work):
            state, saved = restore_or_initialize(
                *(task, self.optimizer, self.mesh, settings.seed, self.checkpoints),
                self.start_from,
                evaluated=self.evaluated,
            )
        self.saved = int(state.step)
        if self.saved:
            run_directory.check_metadata(self.folder.checkpoints, self.metadata, saved)
        if processes.is_primary():
            if self.saved < settings.steps or not self.folder.config.exists():
                run_directory.initialize_workdir(self.folder, self.config, identity, task.save)
            if self.saved:  # an earlier version may have omitted this record
                self._record(self.saved)
        return state, saved

    def _prepare(self, state: TrainState, saved: dict[str, Any]) -> None:
        """Prepares the loop, logs the first step, and repeats an interrupted validation."""
        task, settings, mesh, start = self.task, self.settings, self.mesh, self.saved
        kind, accumulation = mesh.devices.flat[0].device_kind, settings.gradient_accumulation
        self.shards = BatchShards.of(mesh, accumulation)
        self.shapes = {_shape_of(batch) for batch in task.shapes(self.shards)}
        self.programs: dict[tuple, CompiledStep] = {}  # by the shape of a batch
        self.step = make_train_step(
            task.loss, self.optimizer, mesh, seed=settings.seed, gradient_accumulation=accumulation
        )
        peak, history = peak_flops(kind), saved.get(_VALIDATIONS, ())
        peak = peak and mesh.size * peak
        self.window = ReportWindow(self.learning_rate, saved.get(_WINDOW), peak)
        self.validation = Validation(
            *(task, settings, self.best, mesh, self.checkpoints, self.reporter, self.stop), history
        )
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        devices, summary = "device" if mesh.size == 1 else "devices", task.summary()
        self.reporter.log(
            f"{parameters:,} parameters on {mesh.size} {kind} {devices}"
            f"{'; ' if summary else ''}{summary}"
        )
        self.reporter.log(f"{'resumed from' if start else 'starting at'} step {start}")
        if start:
            for line in changed_hyperparameters(self.optimizer, state):
                self.reporter.log(line)
            if not self.validation.resume(evaluate_at(state, self.evaluated).params, start):
                self.stop.end_run(start)

    def _describe_finished(self) -> str:
        """Returns a line about a run that takes no more steps, or "" for any other."""
        section, steps = self.settings.section, self.settings.steps
        if reason := self.validation.out_of_patience():
            longer = f"{section}.patience"
        elif self.saved >= steps:
            reason = f"{section}.steps={steps} are done"
            longer = f"{section}.steps"
        else:
            return ""
        return (
            f"nothing to do: {reason}, and the parameters come from the checkpoint of step "
            f"{self.saved}. {self.folder.path}: already trained for {self.saved} steps; to train "
            "again after a change of code or data, use another workdir; to train longer, raise "
            f"{longer}"
        )

    def _take_steps(self, state: TrainState) -> TrainState:
        settings, step, stop = self.settings, self.saved, False
        batches = self.window.time_batches(self.stop.until_stopped(self._batches(step)))
        folder = self.folder.profile
        with profile_hook(settings.profiled_steps, folder, self.reporter.log) as profile:
            for batch in batches:
                program = self._compile_step(state, batch)
                if step == 0:
                    self._check_independence(state, batch)
                watchdog.record_progress(f"step {step}")
                state, sums = program(state, batch)
                step += 1
                self.checkpoints.check()
                self.window.add(step, sums, self.task.flops(batch))
                self.reporter.advance(step)
                last = step == settings.steps
                stop = self.stop.should_stop() and not last
                if step % settings.log_every == 0 or last:
                    self._report(state)
                due = step % settings.checkpoint_every == 0 or last
                if due or stop:
                    self._save(step, state, interim=not due)
                if self.validation.is_due(step) and not stop:
                    with self.window.pause_clock():
                        params = evaluate_at(state, self.evaluated).params
                        stop = not self.validation.run(step, params)
                for hook in (*self.hooks, profile):
                    hook(step, state, sums)
                if stop or self.validation.out_of_patience():
                    break
            self._end(step, state, stopped=stop)
        return state

    def _batches(self, step: int) -> Iterator[PyTree]:
        """Yields the batches of the remaining steps, already on the devices."""
        steps, accumulation = self.settings.steps, self.settings.gradient_accumulation
        for batch in itertools.islice(self.task.batches(step, self.shards), steps - step):
            yield to_devices(self.mesh, batch, accumulation)
            step += 1
        if step < steps:
            raise UserError(
                f"expected batches for {steps} steps, but there were only {step}; let "
                "Task.batches begin another epoch, or train for fewer steps"
            )

    def _compile_step(self, state: TrainState, batch: PyTree) -> CompiledStep:
        """Returns the step compiled for the shape of a batch; logs each compilation."""
        if (shape := _shape_of(batch)) in self.programs:
            return self.programs[shape]
        if self.shapes and shape not in self.shapes:
            raise UserError(f"expected a batch of one of Task.shapes, got {shape}")
        sizes = sorted({"x".join(map(str, leaf)) for leaf in shape if leaf})
        place = f"{len(self.programs) + 1}{f' of {len(self.shapes)}' if self.shapes else ''}"
        self.reporter.log(f"compiling the step for shape {place}: {', '.join(sizes)}")
        watchdog.record_progress("the start of the compilation", limited=False)
        began = time.monotonic()
        with self.window.pause_clock():
            self.programs[shape] = self.step.compile(state, batch)
        self.reporter.exclude_compilation(seconds := time.monotonic() - began)
        self.reporter.log(f"compiled it in {seconds:.0f} s")
        return self.programs[shape]

    def _check_independence(self, state: TrainState, batch: PyTree) -> None:
        """Logs a warning if the loss of a user's task depends on how rows are split."""
        if type(self.task).__module__.startswith("jaxformer."):
            return
        watchdog.record_progress("the check of the loss before the first step", limited=False)
        work = "checking that the rows of a batch are independent"
        with self.window.pause_clock(), announce(work):
            found = describe_dependence(
                self.task.loss, state.params, batch, self.mesh, self.settings.gradient_accumulation
            )
        if found:
            self.reporter.log(f"warning: {found}")

    def _report(self, state: TrainState) -> None:
        """Reports the means of the window and its skipped batches; raises after too many."""
        step, spike = int(state.step), self.window.describe_spike()
        skipped = self.window.totals().skipped
        means = self.window.means(updates=updates_of_schedule(state))
        self.reporter.write(step, "train", means)
        if spike:
            self.reporter.log(spike)
        for number in skipped:
            examples = list(self.task.example_ids(number - 1))
            batch = self.task.describe_batch(number - 1)
            self.reporter.report_skipped(number, batch, examples, now=step)
        in_row = int(state.skipped_in_row)
        if in_row >= _MAX_SKIPPED_IN_ROW:
            raise FloatingPointError(
                f"updates were NaN or Inf for the last {in_row} steps{_float16_hint(state)}; "
                f"{self._newest_checkpoint()}"
            )

    def _newest_checkpoint(self) -> str:
        steps = self.checkpoints.steps()
        return f"the newest checkpoint is of step {max(steps)}" if steps else "nothing is saved yet"

    def _save(self, step: int, state: TrainState, *, interim: bool) -> None:
        """Saves a finite state in the background, together with the unfinished report."""
        with self.window.pause_clock(), announce(f"saving step {step}"):
            if not is_finite(state.params, state.opt_state):
                raise FloatingPointError(
                    f"the parameters or the optimizer's state are NaN or Inf at step {step}, which "
                    f"is not saved; {self._newest_checkpoint()}"
                )
            history = self.validation.history
            window = dataclasses.asdict(self.window.totals())
            metadata = {**self.metadata, _WINDOW: window, _VALIDATIONS: history}
            watchdog.record_progress(f"step {step} and the start of its save")
            kept = evaluate_at(state, self.evaluated)
            self.checkpoints.save(step, kept, metadata=metadata, interim=interim)
        self.saved = step

    def _end(self, step: int, state: TrainState, *, stopped: bool) -> None:
        """Completes the last save; logs or raises the reason for an early end."""
        if self.saved < step:
            self._save(step, state, interim=True)
        with announce(f"completing the save of step {self.saved}"):
            self.checkpoints.wait()
        if reason := self.validation.out_of_patience():
            self.reporter.log(f"stopped early at step {step}: {reason}")
        elif stopped or step < self.settings.steps:
            self.stop.end_run(step)


def _shape_of(batch: PyTree) -> tuple[tuple[int, ...], ...]:
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


def _float16_hint(state: TrainState) -> str:
    """Returns a likely cause of updates that are not finite if parameters are float16, else ""."""
    if not any(leaf.dtype == "float16" for leaf in jax.tree.leaves(state.params)):
        return ""
    return (
        ", with parameters in float16, where squares of small gradients and Adam's epsilon of 1e-8 "
        "become 0; let Task.init return float32 or bfloat16, and convert them in the loss"
    )
