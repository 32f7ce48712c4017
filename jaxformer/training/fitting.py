"""The training loop: :func:`fit` trains any task."""

import contextlib
import dataclasses
import itertools
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.files import run_path
from jaxformer.layout import global_mesh
from jaxformer.nn.pipeline import idle_fraction
from jaxformer.runs import processes, run_directory, watchdog
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.mirror import start_mirror
from jaxformer.runs.reporting import Reporter, ReportWindow, TimeUse
from jaxformer.runs.run_directory import Settings
from jaxformer.runs.signals import StopSignals
from jaxformer.runs.workdir import Workdir
from jaxformer.runs.writers import Writer
from jaxformer.training.averaging import EvaluatedParams
from jaxformer.training.flops import peak_flops
from jaxformer.training.hooks import Hook, profile_hook
from jaxformer.training.independence import describe_dependence
from jaxformer.training.mesh import check_mesh, make_mesh, num_stages
from jaxformer.training.placement import BatchShards, to_devices
from jaxformer.training.settings import FitConfig, facts_by_name
from jaxformer.training.step import CompiledStep, TrainStep, make_train_step
from jaxformer.training.task import Task, check_task
from jaxformer.training.train_state import (
    LOSS_SCALE,
    StartFrom,
    TrainState,
    changed_hyperparameters,
    evaluate_at,
    is_finite,
    restore_or_initialize,
    updates_of_schedule,
)
from jaxformer.training.validation import Validation, best_metric
from jaxformer.waits import announce

# A run that has skipped this many steps in a row will not recover on its own.
_MAX_SKIPPED_IN_ROW = 10
# Keys in the metadata of a checkpoint: the unfinished report, the history of validations, and the
# validation before the first step.
_WINDOW = "since_last_report"
_VALIDATIONS = "best_and_validations_since"
_INITIAL = "validation_on_start"

# Shapes of the arrays of a batch.
Shape = tuple[tuple[int, ...], ...]


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
    folder = Workdir(run_path(workdir))
    settings = settings or FitConfig()
    run = Run(
        task=task,
        optimizer=optimizer,
        folder=folder,
        settings=settings,
        mesh=make_mesh() if mesh is None else mesh,
        config=config or settings,
        learning_rate=learning_rate,
        start_from=start_from,
        hooks=hooks,
        writers=writers,
        evaluated=evaluated,
    )
    with watchdog.watch(settings.stall_timeout):
        facts = facts_by_name(run.config)
        run_directory.prepare_run(folder, run.config, facts, settings.mirror)
        return run.train()


@dataclasses.dataclass(frozen=True)
class Run:
    """The arguments of :func:`fit`, for a folder that is prepared."""

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
        best_metric(self.task, self.settings)  # refuses metrics of unknown direction

    def train(self) -> TrainState:
        """Opens the folder, begins or resumes its run, and returns the final state."""
        time_use = TimeUse()
        task = self.task
        folder = self.folder
        settings = self.settings
        identity = task.identity()
        processes.check_agreement(identity)
        evaluated = self.evaluated and jax.jit(self.evaluated)

        # The mirror ends after the checkpoints, since it also copies the last one.
        with (
            global_mesh(self.mesh),
            run_directory.only_run_in(folder),
            StopSignals() as stop,
            _open_checkpoints(folder, settings) as (checkpoints, record_commit),
        ):
            # Checked again, since another run may have used the workdir in the meantime.
            run_directory.check_workdir(folder, self.config, facts_by_name(self.config))
            run_directory.check_identity(folder, identity)

            # The newest state, or a fresh one.
            metadata = self._describe_model(identity)
            with time_use.measure("start"):
                state, saved = self._restore(checkpoints, stop, evaluated)
            start = int(state.step)
            if start:
                run_directory.check_metadata(folder.checkpoints, metadata, saved)

            if processes.is_primary():
                self._write_files(identity, start)
                if start:  # an earlier version may have omitted this record
                    record_commit(start)

            with Reporter(
                folder,
                start=start,
                steps=settings.steps,
                writers=self.writers,
                formats=task.log_formats,
            ) as reporter:
                loop = self._make_loop(
                    saved,
                    start,
                    evaluated=evaluated,
                    metadata=metadata,
                    checkpoints=checkpoints,
                    reporter=reporter,
                    stop=stop,
                    time_use=time_use,
                )
                self._log_start(state, start, reporter)
                if start:
                    loop.resume_validation(state, start)

                # A resumed validation may be the last one.
                done = self._describe_finished(loop.validation, start)
                if done:
                    loop.validation.report_change()
                    reporter.log(done)
                    return state
                return loop.take_steps(state, start)

    def _write_files(self, identity: dict[str, str], start: int) -> None:
        """Writes the files of a run that is new, or takes more steps, perhaps with a new config."""
        takes_steps = start < self.settings.steps
        if takes_steps or not self.folder.config.exists():
            run_directory.initialize_workdir(
                self.folder,
                self.config,
                identity,
                save=self.task.save,
            )

    def _describe_model(self, identity: dict[str, str]) -> dict[str, Any]:
        """Returns what a checkpoint records about its data and its model."""
        # Parameters do not determine a model: an activation has none.
        model = self.config.to_dict().get("model")
        if model is None:
            return identity
        return {**identity, "model": model}

    def _restore(
        self,
        checkpoints: Checkpoints,
        stop: StopSignals,
        evaluated: EvaluatedParams | None,
    ) -> tuple[TrainState, dict[str, Any]]:
        """Returns the newest state, or a fresh one, and the metadata of its checkpoint."""
        newest = max(checkpoints.steps(), default=None)
        work = "initializing the parameters"
        if newest is not None:
            work = f"verifying and restoring the checkpoint of step {newest}"

        with stop.raise_at_once(), announce(work):
            return restore_or_initialize(
                self.task,
                self.optimizer,
                self.mesh,
                seed=self.settings.seed,
                checkpoints=checkpoints,
                start_from=self.start_from,
                evaluated=evaluated,
            )

    def _make_loop(
        self,
        saved: dict[str, Any],
        start: int,
        *,
        evaluated: EvaluatedParams | None,
        metadata: dict[str, Any],
        checkpoints: Checkpoints,
        reporter: Reporter,
        stop: StopSignals,
        time_use: TimeUse,
    ) -> "_Loop":
        """Returns the loop from step ``start`` on, whose checkpoint has the ``saved`` metadata."""
        settings = self.settings
        shards = BatchShards.of(self.mesh, settings.gradient_accumulation)
        shapes = {_shape_of(batch) for batch in self.task.shapes(shards)}
        train_step = make_train_step(
            self.task.training_loss,
            self.optimizer,
            self.mesh,
            seed=settings.seed,
            gradient_accumulation=settings.gradient_accumulation,
        )

        # The unfinished report and the scores continue.
        peak = peak_flops(_device_kind(self.mesh))
        window = ReportWindow(
            self.learning_rate,
            saved=saved.get(_WINDOW),
            peak_flops=peak and self.mesh.size * peak,
            time_use=time_use,
        )
        validation = Validation(
            task=self.task,
            settings=settings,
            best=best_metric(self.task, settings),
            mesh=self.mesh,
            checkpoints=checkpoints,
            reporter=reporter,
            stop=stop,
            history=saved.get(_VALIDATIONS, ()),
            initial=saved.get(_INITIAL),
        )

        return _Loop(
            run=self,
            evaluated=evaluated,
            metadata=metadata,
            checkpoints=checkpoints,
            reporter=reporter,
            stop=stop,
            window=window,
            validation=validation,
            shards=shards,
            programs=_Programs(
                step=train_step,
                shapes=shapes,
                window=window,
                reporter=reporter,
            ),
            saved=start,
            time_use=time_use,
        )

    def _log_start(self, state: TrainState, start: int, reporter: Reporter) -> None:
        """Logs sizes, devices and data of the run, and its first step."""
        leaves = jax.tree.leaves(state.params)
        parameters = sum(leaf.size for leaf in leaves)
        count = self.mesh.size
        kind = _device_kind(self.mesh)
        devices = "device" if count == 1 else "devices"
        line = f"{parameters:,} parameters on {count} {kind} {devices}"

        summary = self.task.summary()
        if summary:
            line += f"; {summary}"
        reporter.log(line)

        stages = num_stages(self.mesh)
        if stages > 1:
            count = self.settings.gradient_accumulation
            idle = idle_fraction(stages, count)
            micro_batches = "micro-batch" if count == 1 else "micro-batches"
            reporter.log(f"{stages} stages of layers, {count} {micro_batches}: {idle:.0%} idle")

        reporter.log(f"resumed from step {start}" if start else "starting at step 0")
        if start:
            for line in changed_hyperparameters(self.optimizer, state):
                reporter.log(line)

    def _describe_finished(self, validation: Validation, step: int) -> str:
        """Returns a line about a run that takes no more steps, or "" for any other."""
        section = self.settings.section
        steps = self.settings.steps
        reason = validation.out_of_patience()
        if reason:
            longer = f"{section}.patience"
        elif step >= steps:
            reason = f"{section}.steps={steps} are done"
            longer = f"{section}.steps"
        else:
            return ""

        return (
            f"nothing to do: {reason}, and the parameters come from the checkpoint of step "
            f"{step} in {self.folder.path}; to train again after a change of code or data, use "
            f"another workdir; to train longer, raise {longer}"
        )


@contextlib.contextmanager
def _open_checkpoints(
    folder: Workdir,
    settings: FitConfig,
) -> Iterator[tuple[Checkpoints, Callable[[int], None]]]:
    """Yields the checkpoints of a run, and a function that records a step and mirrors it."""
    with start_mirror(folder, settings.mirror) as update_mirror:

        def record_commit(step: int) -> None:
            folder.record_commit(step)
            update_mirror()

        with Checkpoints(
            folder.checkpoints,
            keep=settings.keep_checkpoints,
            on_commit=record_commit,
        ) as checkpoints:
            yield checkpoints, record_commit


@dataclasses.dataclass
class _Programs:
    """The training step, compiled once for each shape of a batch."""

    step: TrainStep
    shapes: set[Shape]  # all that are allowed; empty allows any
    window: ReportWindow
    reporter: Reporter
    compiled: dict[Shape, CompiledStep] = dataclasses.field(default_factory=dict)

    def get(self, state: TrainState, batch: PyTree) -> CompiledStep:
        """Returns the step compiled for the shape of a batch; logs each compilation."""
        shape = _shape_of(batch)
        if shape in self.compiled:
            return self.compiled[shape]
        if self.shapes and shape not in self.shapes:
            raise UserError(f"expected a batch of one of Task.shapes, got {shape}")

        # The message has "2 of 5: 512, 64x8" for the second of five shapes.
        number = str(len(self.compiled) + 1)
        if self.shapes:
            number += f" of {len(self.shapes)}"
        sizes = {"x".join(map(str, leaf)) for leaf in shape if leaf}
        described = ", ".join(sorted(sizes))
        self.reporter.log(f"compiling the step for shape {number}: {described}")
        watchdog.record_progress("the start of the compilation", limited=False)

        began = time.monotonic()
        with self.window.pause_clock("compilation"):
            program = self.step.compile(state, batch)
        seconds = time.monotonic() - began
        self.reporter.exclude_compilation(seconds)
        self.reporter.log(f"compiled it in {seconds:.0f} s")

        self.compiled[shape] = program
        return program


@dataclasses.dataclass
class _Loop:
    """The loop over the steps of a run whose folder is open and whose state is restored."""

    run: Run
    evaluated: EvaluatedParams | None  # jitted
    metadata: dict[str, Any]  # data and model, for checkpoints
    checkpoints: Checkpoints
    reporter: Reporter
    stop: StopSignals
    window: ReportWindow
    validation: Validation
    shards: BatchShards
    programs: _Programs
    saved: int  # step of the newest checkpoint, 0 without one
    time_use: TimeUse

    def resume_validation(self, state: TrainState, start: int) -> None:
        """Counts the validation of the restored step, or repeats it if it was interrupted."""
        params = evaluate_at(state, self.evaluated).params
        if not self.validation.resume(params, start):
            self.stop.end_run(start)

    def take_steps(self, state: TrainState, step: int) -> TrainState:
        """Takes the steps after ``step``, and returns the final state."""
        settings = self.run.settings
        is_stopped = False
        if step == 0 and settings.eval_on_start:
            self._validate_on_start(state)

        batches = self.stop.until_stopped(self._batches(step))
        timed_batches = self.window.time_batches(batches)
        profile_folder = self.run.folder.profile
        with profile_hook(settings.profiled_steps, profile_folder, self.reporter.log) as profile:
            for batch in timed_batches:
                program = self.programs.get(state, batch)
                if step == 0:
                    self._check_independence(state, batch)
                watchdog.record_progress(f"step {step}")
                state, sums = program(state, batch)
                step += 1

                self.checkpoints.check()
                flops = self.run.task.flops(batch)
                self.window.add(step, sums, flops)
                self.reporter.advance(step)
                is_last = step == settings.steps
                is_stopped = self.stop.should_stop() and not is_last

                # In this order: a checkpoint contains the report of its step, and a validation
                # scores a checkpoint. Who asks for a stop does not wait for a validation.
                if step % settings.log_every == 0 or is_last:
                    self._report(state)
                is_due = step % settings.checkpoint_every == 0 or is_last
                if is_due or is_stopped:
                    self._save(step, state, interim=not is_due)
                if self.validation.is_due(step) and not is_stopped:
                    is_stopped = not self._validate(step, state)

                for hook in (*self.run.hooks, profile):
                    hook(step, state, sums)
                if is_stopped or self.validation.out_of_patience():
                    break

            self._end(step, state, is_stopped=is_stopped)
        return state

    def _batches(self, step: int) -> Iterator[PyTree]:
        """Yields the batches of the remaining steps, already on the devices."""
        settings = self.run.settings
        batches = self.run.task.batches(step, self.shards)
        for batch in itertools.islice(batches, settings.steps - step):
            yield to_devices(self.run.mesh, batch, settings.gradient_accumulation)
            step += 1

        if step < settings.steps:
            raise UserError(
                f"expected batches for {settings.steps} steps, but there were only {step}; let "
                "Task.batches begin another epoch, or train for fewer steps"
            )

    def _check_independence(self, state: TrainState, batch: PyTree) -> None:
        """Logs a warning if the loss of a user's task depends on how rows are split."""
        task = self.run.task
        if type(task).__module__.startswith("jaxformer."):
            return

        watchdog.record_progress("the check of the loss before the first step", limited=False)
        work = "checking that the rows of a batch are independent"
        with self.window.pause_clock("start"), announce(work):
            found = describe_dependence(
                task.loss,
                state.params,
                batch,
                mesh=self.run.mesh,
                gradient_accumulation=self.run.settings.gradient_accumulation,
            )
        if found:
            self.reporter.log(f"warning: {found}")

    def _report(self, state: TrainState) -> None:
        """Reports the means of the window and its skipped batches; raises after too many."""
        step = int(state.step)
        spike = self.window.describe_spike()
        skipped = self.window.totals().skipped
        means = self.window.means(updates=updates_of_schedule(state))  # begins a new window
        if state.loss_scale is not None:
            means["loss_scale"] = float(state.loss_scale.value)

        self.reporter.write(step, "train", means)
        if spike:
            self.reporter.log(spike)

        for skipped_step in skipped:
            number = skipped_step - 1  # of its batch
            examples = list(self.run.task.example_ids(number))
            description = self.run.task.describe_batch(number)
            self.reporter.report_skipped(skipped_step, description, examples, now=step)

        in_row = int(state.skipped_in_row)
        if in_row >= _MAX_SKIPPED_IN_ROW:
            raise FloatingPointError(
                f"updates were NaN or Inf for the last {in_row} steps{_float16_hint(state)}; "
                f"{self._describe_newest()}"
            )

    def _describe_newest(self) -> str:
        steps = self.checkpoints.steps()
        if not steps:
            return "nothing is saved yet"
        return f"the newest checkpoint is of step {max(steps)}"

    def _save(self, step: int, state: TrainState, *, interim: bool) -> None:
        """Saves a finite state in the background, together with the unfinished report."""
        with self.window.pause_clock("checkpoints"), announce(f"saving step {step}"):
            if not is_finite(state.params, state.opt_state):
                raise FloatingPointError(
                    f"the parameters or the optimizer's state are NaN or Inf at step {step}, which "
                    f"is not saved; {self._describe_newest()}"
                )

            metadata = {
                **self.metadata,
                _WINDOW: dataclasses.asdict(self.window.totals()),
                _VALIDATIONS: self.validation.history,
            }
            if self.validation.initial is not None:
                metadata[_INITIAL] = self.validation.initial
            if state.loss_scale is not None:
                metadata[LOSS_SCALE] = state.loss_scale.to_json()

            watchdog.record_progress(f"step {step} and the start of its save")
            kept = evaluate_at(state, self.evaluated)
            self.checkpoints.save(step, kept, metadata=metadata, interim=interim)
        self.saved = step

    def _validate(self, step: int, state: TrainState) -> bool:
        """Validates the state; returns False if the run is to stop."""
        with self.window.pause_clock("validation"):
            params = evaluate_at(state, self.evaluated).params
            return self.validation.run(step, params)

    def _validate_on_start(self, state: TrainState) -> None:
        """Validates the parameters that the run begins with."""
        with self.window.pause_clock("validation"):
            has_finished = self.validation.run_on_start(state.params)
        if not has_finished:
            self.stop.end_run(0)

    def _end(self, step: int, state: TrainState, *, is_stopped: bool) -> None:
        """Completes the last save; logs or raises the reason for an early end."""
        if self.saved < step:
            self._save(step, state, interim=True)
        saving = announce(f"completing the save of step {self.saved}")
        with self.time_use.measure("checkpoints"), saving:
            self.checkpoints.wait()
        self.reporter.report_time(step, self.time_use)

        reason = self.validation.out_of_patience()
        if reason:
            self.reporter.log(f"stopped early at step {step}: {reason}")
        elif is_stopped or step < self.run.settings.steps:
            self.stop.end_run(step)
        self.validation.report_change()


def _shape_of(batch: PyTree) -> Shape:
    leaves = jax.tree.leaves(batch)
    return tuple(leaf.shape for leaf in leaves)


def _device_kind(mesh: Mesh) -> str:
    return mesh.devices.flat[0].device_kind


def _float16_hint(state: TrainState) -> str:
    """Returns a likely cause of updates that are not finite if parameters are float16, else ""."""
    leaves = jax.tree.leaves(state.params)
    if not any(leaf.dtype == "float16" for leaf in leaves):
        return ""
    return (
        ", with parameters in float16, where squares of small gradients and Adam's epsilon of 1e-8 "
        "become 0; let Task.init return float32 or bfloat16, and convert them in the loss"
    )
