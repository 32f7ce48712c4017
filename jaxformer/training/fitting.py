"""The training loop: :func:`fit` trains any task."""

import dataclasses
import functools
import itertools
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import StoppedError, UserError
from jaxformer.files import run_path
from jaxformer.layout import global_mesh
from jaxformer.nn.backend import peak_flops
from jaxformer.training import hosts, watchdog
from jaxformer.training.hooks import Hook
from jaxformer.training.independence import describe_dependence
from jaxformer.training.mesh import BatchShards, check_mesh, make_mesh, to_devices
from jaxformer.training.optimizer import path_of
from jaxformer.training.profiling import profiling
from jaxformer.training.reporting import Reporter, Window
from jaxformer.training.run_directory import (
    begin,
    check_identity,
    check_metadata,
    check_workdir,
    describe_run,
    initialize_workdir,
    mirrored,
    only_run_in,
)
from jaxformer.training.settings import FitConfig, Settings
from jaxformer.training.signals import StopSignals, stop_signals
from jaxformer.training.state import StartFrom, TrainState, abstract_state, init_state
from jaxformer.training.step import TrainStep, all_finite, make_train_step
from jaxformer.training.task import Sums, Task
from jaxformer.training.writers import Writer
from jaxformer.workdir import Workdir

# A run that has skipped this many steps in a row will not recover on its own.
_MOST_SKIPPED_IN_ROW = 10
# Names in the metadata of a checkpoint, beside the names of the identity: the unfinished report,
# and the best score, higher being better, with the number of validations after it.
_WINDOW, _VALIDATIONS = "since_last_report", "best_and_validations_since"
# Values whose direction is known.
_DIRECTIONS = {
    **dict.fromkeys(("loss", "perplexity", "nats_per_character", "bits_per_character"), "min"),
    **dict.fromkeys(("bleu", "f1", "exact_match", "accuracy"), "max"),
}
_all_finite = jax.jit(all_finite)


class _ValidationStoppedError(Exception):
    """Ends a validation when the run has been asked to stop."""


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
) -> TrainState:
    """Trains a task in ``workdir``, or resumes the run that is there.

    Training resumes exactly: after any interruption, even kill -9, batches and random numbers
    continue as if nothing had happened. SIGTERM, SIGINT and SIGHUP save a checkpoint first.

    Args:
      task: Parameters, loss, batches and evaluation.
      optimizer: Any gradient transformation; some need :func:`~jaxformer.per_layer`. A resumed run
        must be given the same one.
      workdir: Run directory: checkpoints, metrics, identity.
      settings: Length of the training, and intervals of reports, validations and checkpoints.
      mesh: Devices, from :func:`~jaxformer.training.mesh.make_mesh`. None puts all of them along
        "data".
      config: Your own config that contains the settings: any object with ``to_dict`` and
        ``from_dict``. It is saved, and a resumed run must match it. When None, a resumed run must
        match the seed of the settings.
      learning_rate: Schedule of the optimizer, used only in reports.
      start_from: Returns the parameters that a new run starts from, given the ones that
        ``task.init`` has created; with ``lambda fresh: params``, the run continues from ``params``.
        A resumed run does not call it.
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
      FloatingPointError: Updates were not finite for many steps in a row, or the parameters are
        not finite.
      KeyboardInterrupt: The run was asked to stop. If it has taken steps, their state is saved.
    """
    _check_task(task)
    folder, settings = Workdir(run_path(workdir)), settings or FitConfig()
    best = _best_metric(task, settings)
    mesh = make_mesh() if mesh is None else mesh
    check_mesh(mesh)
    begin(folder, config or settings, settings.mirror)
    identity = task.identity()
    hosts.check_agreement(identity)
    keep = settings.keep_checkpoints

    def on_commit(step: int) -> None:
        folder.record_commit(step)
        update_mirror()

    with (
        global_mesh(mesh),
        watchdog.watch(settings.stall_timeout),
        only_run_in(folder),
        stop_signals() as stop,
        mirrored(folder, settings.mirror, identity) as update_mirror,
        Checkpoints(folder.checkpoints, keep=keep, on_commit=on_commit) as checkpoints,
        watchdog.announcing_errors(),
    ):
        # Checked again: another run may have used the workdir while this one read its data.
        check_workdir(folder, config or settings)
        check_identity(folder, identity)
        metadata = describe_run(identity, config or settings)
        with stop.at_once():
            state, saved = _restore_or_initialize(
                task, optimizer, mesh, settings.seed, folder, checkpoints, metadata, start_from
            )
            start = int(state.step)
        done = start >= settings.steps
        if hosts.is_primary():
            if not done or not folder.config.exists():
                initialize_workdir(folder, config or settings, task)
            if start:  # an earlier version may have made the workdir without this record
                folder.record_commit(start)
                update_mirror()
        with Reporter(
            folder,
            start=start,
            steps=settings.steps,
            writers=writers,
            formats=task.log_formats,
        ) as reporter:
            _log_summary(reporter, task, mesh, state)
            for line in _other_hyperparameters(optimizer, state) if start else ():
                reporter.log(line)
            run = Run(task, settings, mesh, optimizer, checkpoints, metadata, reporter, stop, best)
            if start:
                run.validations = saved.get(_VALIDATIONS, ())
                run.resume_validation(state, start)
            if done or run.out_of_patience():
                section = "training" if config else "fit"
                reason = run.out_of_patience() or f"{section}.steps={settings.steps} are done"
                reporter.log(f"nothing to do: {reason}")
                return state
            window = Window(learning_rate, saved.get(_WINDOW), _peak_flops(mesh))
            steps = settings.profiled_steps
            with profiling(steps, folder.profile, reporter.log) as profile:
                return run.steps(state, start, window, [*hooks, profile])


def _check_task(task: Any) -> None:
    if isinstance(task, type):
        raise UserError(
            f"expected a Task, got the class {task.__name__}; give {task.__name__}(...)"
        )
    if not isinstance(task, Task):
        names = [name for name in dir(Task) if not name.startswith("_") and not hasattr(task, name)]
        raise UserError(
            f"expected a Task, got {type(task).__name__}, which has no {', '.join(names)}; derive "
            "it from jaxformer.Task"
        )


def _best_metric(task: Task, settings: FitConfig) -> tuple[str, str]:
    """Returns the name of the value that selects the best checkpoint, and "min" or "max".

    Raises:
      UserError: The direction is not known.
    """
    if settings.best_metric is None:
        return task.best
    name, _, mode = settings.best_metric.rpartition(":")
    if mode not in ("min", "max"):
        name, known = settings.best_metric, _DIRECTIONS | dict([task.best])
        if name not in known:
            raise UserError(
                f"best_metric={name}: expected one of {', '.join(known)}, or a value of evaluate "
                f"with its direction, {name}:min or {name}:max"
            )
        mode = known[name]
    return name, mode


def _restore_or_initialize(
    task: Task,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    seed: int,
    folder: Workdir,
    checkpoints: Checkpoints,
    metadata: dict[str, Any],
    start_from: StartFrom | None,
) -> tuple[TrainState, dict[str, Any]]:
    """Returns the newest state and its metadata, or a fresh state."""
    if jax.process_count() > 1:
        newest = checkpoints.newest_good_step()
        hosts.check_agreement({"newest undamaged checkpoint in the workdir": str(newest)})
    template = abstract_state(task.init, optimizer, mesh, task.describe)
    _check_parameters(template)
    restored = checkpoints.restore(template)
    if restored is None:
        state = init_state(task.init, optimizer, mesh, seed, task.describe, start_from)
        _check_finite(state)
        return state, {}
    check_metadata(folder, metadata, restored.metadata)
    return restored.state, restored.metadata


def _check_parameters(state: TrainState) -> None:
    for path, leaf in jax.tree.leaves_with_path(state):
        if leaf.size == 0:
            raise UserError(
                f"expected arrays with at least one element, since no others can be saved: got "
                f"{path_of(path)} of shape {leaf.shape}"
            )
    for path, leaf in jax.tree.leaves_with_path(state.params):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise UserError(
                "expected parameters of floating-point numbers, which have gradients: got "
                f"{path_of(path)} of dtype {leaf.dtype}; keep it in the task or in the optimizer's "
                "state"
            )


def _check_finite(state: TrainState) -> None:
    if _all_finite(state.params, state.opt_state):
        return
    for path, leaf in jax.tree.leaves_with_path(state.params):
        if not jnp.isfinite(leaf).all():
            raise UserError(
                f"expected finite parameters: {path_of(path)} holds NaN or Inf before the first "
                "step; add constants such as masks in the loss"
            )


@dataclasses.dataclass
class Run:
    """Everything that the steps of a run need."""

    task: Task
    settings: FitConfig
    mesh: Mesh
    optimizer: optax.GradientTransformation
    checkpoints: Checkpoints
    metadata: dict[str, Any]
    reporter: Reporter
    stop: StopSignals
    best: tuple[str, str]  # name of the value that selects the best checkpoint, "min" or "max"
    validations: Sequence[Any] = ()  # best score and number of validations after it, or none yet
    programs: dict[Any, Any] = dataclasses.field(default_factory=dict)  # steps by shape of batch

    def steps(
        self, state: TrainState, start: int, window: Window, hooks: Sequence[Hook]
    ) -> TrainState:
        """Takes all steps after ``start``, and reports, validates and saves along the way."""
        settings, step, saved, stop = self.settings, start, start, False
        for batch in window.timed(self.stop.until_stopped(self.batches(start))):
            train_step = self.compiled(state, batch, window)
            # The rows of this package's tasks are independent.
            if step == 0 and not type(self.task).__module__.startswith("jaxformer."):
                with window.paused():
                    self.check_independence(state, batch)
            watchdog.progress(f"step {step}")
            state, sums = train_step(state, batch)
            step += 1
            self.checkpoints.check()
            window.add(step, sums, self.task.flops(batch))
            self.reporter.advance(step)
            last = step == settings.steps
            stop = self.stop.asked() and not last
            if step % settings.log_every == 0 or last:
                self.report(state, window)
            due = step % settings.checkpoint_every == 0 or last
            if due or stop:
                with window.paused():
                    self.save(step, state, window, interim=not due)
                    saved = step
                    if self.is_validated(step) and not stop:
                        stop = not self.validate(step, state)
            for hook in hooks:
                hook(step, state, sums)
            if stop or self.out_of_patience():
                break
        if saved < step:
            self.save(step, state, window, interim=True)
        self.checkpoints.wait()
        if reason := self.out_of_patience():
            self.reporter.log(f"stopped early at step {step}: {reason}")
        elif stop or step < settings.steps:
            self.end_early(step)
        return state

    def end_early(self, step: int) -> NoReturn:
        """Ends the run after its state has been saved, on all processes."""
        watchdog.stop_together()
        name = self.stop.received[0].name if self.stop.received else "SIGTERM"
        saved = f"step {step} is saved" if step else "no step was taken"
        raise StoppedError(f"{name}: {saved}; the same command resumes there")

    def is_validated(self, step: int) -> bool:
        """Returns whether the run validates after this step."""
        return step % self.settings.eval_every == 0 or step == self.settings.steps

    def validate(self, step: int, state: TrainState) -> bool:
        """Validates a state that is saved or being saved, and attaches the score to its checkpoint.

        Returns:
          Whether the validation ended. Otherwise it was stopped, and runs again after resuming.
        """
        values, (name, mode) = self.evaluate(step, state), self.best
        if not values:
            return values is not None
        # Wait first: a process killed while it waits must not report this validation twice.
        self.checkpoints.wait()
        best_first = sorted(values.items(), key=lambda item: item[0] != name)
        self.reporter.write(step, "valid", dict(best_first))
        if name in values:
            score = values[name] if mode == "max" else -values[name]
            self.checkpoints.attach_score(step, score)
            self.count(score)
        return True

    def evaluate(self, step: int, state: TrainState) -> dict[str, float] | None:
        """Returns the values of a validation, or None if it was stopped.

        A validation that fails ends the run if none succeeded before. A later failure is reported,
        and training continues. With several processes, every failure ends the run: the others wait
        for the failed process in the middle of a computation.
        """
        failures = []

        def check_stop() -> None:
            watchdog.progress(f"a batch of the validation of step {step}")
            try:
                self.checkpoints.check()  # copies the step to the mirror once it is saved
            except Exception as error:
                failures.append(error)
                raise
            if self.stop.asked():
                raise _ValidationStoppedError

        values, stopped = {}, False
        try:
            found = self.task.evaluate(state.params, self.mesh, check_stop)
            values = {each: float(value) for each, value in found.items()}
            needed = values or self.settings.patience or self.settings.best_metric
            if needed and self.best[0] not in values:
                raise UserError(
                    f"expected {self.best[0]!r}, which selects the best checkpoint (Task.best, "
                    f"best_metric), among the values of evaluate: got {', '.join(values) or 'none'}"
                )
        except _ValidationStoppedError:
            stopped = True
        except Exception as error:
            if not self.validations or jax.process_count() > 1 or failures:
                raise
            self.reporter.failed_validation(step, error)
        if failures:  # the task has caught it
            raise failures[0]
        return None if self.stop.agree(stopped) else values

    def count(self, score: float) -> None:
        """Counts the validations since the best one."""
        score, (best, since) = hosts.all_gather(score)[0], self.validations or (-math.inf, 0)
        self.validations = (score, 0) if score > best else (best, since + 1)

    def out_of_patience(self) -> str:
        """Returns why the run ends before its last step; "" if it does not."""
        since = self.validations[1] if self.validations else 0
        ended = 0 < self.settings.patience <= since
        return f"no better {self.best[0]} in the last {since} validations" if ended else ""

    def resume_validation(self, state: TrainState, start: int) -> None:
        """Counts the validation of the checkpoint that the run resumes from.

        Repeats it if it was due and was interrupted.
        """
        due = start <= self.settings.steps and self.is_validated(start)
        scored, score = self.checkpoints.score(start)
        if scored:
            self.count(math.nan if score is None else score)
        elif due and not self.validate(start, state):
            self.end_early(start)

    def compiled(
        self, state: TrainState, batch: PyTree, window: Window
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
        with window.paused():
            self.programs[shape] = self.train_step.compile(state, batch)
        self.reporter.log(f"compiled it in {time.monotonic() - began:.0f} s")
        return self.programs[shape]

    def check_independence(self, state: TrainState, batch: PyTree) -> None:
        """Logs a warning if the loss depends on how the rows of a batch are split."""
        watchdog.progress("the check of the loss before the first step", limited=False)
        accumulation = self.settings.gradient_accumulation
        if found := describe_dependence(
            self.task.loss, state.params, batch, self.mesh, accumulation
        ):
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
        skipped, spike = window.skipped(), window.spike()
        step = int(state.step)
        self.reporter.write(step, "train", window.means(updates=step - int(state.skipped)))
        if spike:
            self.reporter.log(spike)
        for number in skipped:
            examples = list(self.task.example_ids(number - 1))
            batch = self.task.describe_batch(number - 1)
            self.reporter.skipped(number, batch, examples, now=step)
        in_row = int(state.skipped_in_row)
        if in_row >= _MOST_SKIPPED_IN_ROW:
            raise FloatingPointError(
                f"updates were NaN or Inf for the last {in_row} steps; {self.newest_checkpoint()}"
            )

    def newest_checkpoint(self) -> str:
        """Returns a clause on the newest checkpoint."""
        steps = self.checkpoints.steps()
        return f"the newest checkpoint is of step {max(steps)}" if steps else "nothing is saved yet"

    def save(self, step: int, state: TrainState, window: Window, *, interim: bool) -> None:
        """Saves a checkpoint in the background, with the report that is not due yet.

        Raises:
          FloatingPointError: The state is not finite. Older checkpoints are kept.
        """
        if not _all_finite(state.params, state.opt_state):
            raise FloatingPointError(
                f"the parameters or the optimizer's state are NaN or Inf at step {step}, which is "
                f"not saved; {self.newest_checkpoint()}"
            )
        metadata = {**self.metadata, _WINDOW: window.saved(), _VALIDATIONS: self.validations}
        watchdog.progress(f"step {step} and the start of its save")
        self.checkpoints.save(step, state, metadata=metadata, interim=interim)


def _shape_of(batch: PyTree) -> tuple[tuple[int, ...], ...]:
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


def _peak_flops(mesh: Mesh) -> float | None:
    """Returns the peak FLOP/s of all devices together, if known."""
    peak = peak_flops(mesh.devices.flat[0].device_kind)
    return peak and mesh.size * peak


def _log_summary(reporter: Reporter, task: Task, mesh: Mesh, state: TrainState) -> None:
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    summary, start = task.summary(), int(state.step)
    reporter.log(
        f"{parameters:,} parameters on {mesh.size} {mesh.devices.flat[0].device_kind} "
        f"{'device' if mesh.size == 1 else 'devices'}{'; ' if summary else ''}{summary}"
    )
    reporter.log(f"{'resumed from' if start else 'starting at'} step {start}")


def _other_hyperparameters(
    optimizer: optax.GradientTransformation, state: TrainState
) -> Iterator[str]:
    """Yields a line for each injected hyperparameter whose saved value replaces another one."""

    def injected(opt_state: PyTree) -> list[dict[str, Any]]:
        nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: hasattr(node, "hyperparams"))
        return [
            {k: v for k, v in node.hyperparams.items() if k not in node.hyperparams_states}
            for node in nodes
            if hasattr(node, "hyperparams")
        ]

    kept = injected(state.opt_state)
    given = kept and jax.jit(lambda params: injected(optimizer.init(params)))(state.params)
    for old, new in zip(*jax.device_get((kept, given)), strict=True):
        for name in (name for name in old if (old[name] != new[name]).any()):
            yield (
                f"optax.inject_hyperparams: {name} stays {old[name]:.4g}, as in the checkpoint, "
                f"instead of {new[name]:.4g}; give a new workdir and start_from to change it"
            )
