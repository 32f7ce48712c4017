"""The training loop: :func:`train` reads like a table of contents."""

import dataclasses
import functools
import hashlib
import json
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import optax
from jax.sharding import Mesh

from jaxformer import config as config_lib
from jaxformer.checkpoint import Checkpoints
from jaxformer.config import Config
from jaxformer.data.batch import Batch
from jaxformer.data.loader import load_batches, padded_shapes
from jaxformer.data.store import TokenStore
from jaxformer.errors import UserError
from jaxformer.files import local_path
from jaxformer.models.transformer import Transformer
from jaxformer.training import hosts
from jaxformer.training.dataset import Dataset, check_identity, open_dataset
from jaxformer.training.mesh import make_mesh, row_parts, row_shards, to_devices
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.reporting import Reporter, Window
from jaxformer.training.run_directory import (
    check_vocabulary,
    check_workdir,
    initialize_workdir,
    only_run_in,
)
from jaxformer.training.signals import asked_to_stop, stop_signals
from jaxformer.training.step import (
    Metrics,
    TrainState,
    abstract_batch,
    abstract_state,
    init_state,
    make_train_step,
)
from jaxformer.training.validation import Validation
from jaxformer.workdir import Workdir, code_digest, use_compilation_cache

# A run in which this many steps in a row were skipped does not recover by itself.
_MOST_SKIPPED_IN_ROW = 10


def train(config: Config, workdir: str | pathlib.Path) -> TrainState:
    """Trains the model of ``config`` in ``workdir``, or goes on where an earlier run stopped.

    A run that was interrupted, even by kill -9, gets exactly the batches and random numbers that
    it would have got. SIGTERM, SIGINT and SIGHUP save a checkpoint first.

    Returns:
      The final state.

    Raises:
      UserError: The workdir belongs to another experiment, or another process trains in it, or its
        checkpoints are missing; or data is missing or malformed.
      FloatingPointError: Updates were not finite for many steps in a row.
      KeyboardInterrupt: The run was asked to stop, and has saved its state.
    """
    config_lib.check_config(config)
    folder = Workdir(local_path(workdir))
    if config.model.compute_dtype == "int8":
        raise UserError(
            "model.compute_dtype=int8 is only to decode with: train in float32 or bfloat16, then "
            "round the parameters with jaxformer quantize"
        )
    use_compilation_cache()
    hosts.check_agreement({"config": _digest(config), "jaxformer": code_digest()})
    check_workdir(folder, config)
    with hosts.first_before_others("data"):
        data = open_dataset(config, folder)
    hosts.check_agreement(data.identity)
    mesh = make_mesh(config.mesh)
    optimizer = make_optimizer(config)
    keep, on_commit = config.training.keep_checkpoints, folder.record_commit
    with (
        only_run_in(folder),
        Checkpoints(folder.checkpoints, keep=keep, on_commit=on_commit) as checkpoints,
    ):
        # Once more: while this run read its data, another may have come and gone.
        check_workdir(folder, config)
        check_identity(data.identity, folder)
        state = _restore_or_initialize(config, folder, data, mesh, optimizer, checkpoints)
        start = int(state.step)
        if hosts.is_first():
            initialize_workdir(folder, config, data)
            if start:  # in a workdir that an earlier version made, too
                folder.record_commit(start)
        with Reporter(folder, start=start, steps=config.training.steps) as reporter:
            _introduce(reporter, config, data, mesh, state, start)
            run = Run(config, data, mesh, optimizer, checkpoints, reporter)
            if start:
                run.resume_validation(state, start)
            if start >= config.training.steps:
                reporter.say(f"nothing to do: training.steps={config.training.steps} are done")
                return state
            return run.steps(state, start)


def _restore_or_initialize(
    config: Config,
    folder: Workdir,
    data: Dataset,
    mesh: Mesh,
    optimizer: optax.GradientTransformation,
    checkpoints: Checkpoints,
) -> TrainState:
    """Restores the newest good checkpoint, or initializes a state if there is none yet."""
    if jax.process_count() > 1:
        newest = checkpoints.newest_good_step()
        hosts.check_agreement({"newest undamaged checkpoint in the workdir": str(newest)})
    model = Transformer(config.model)
    restored = checkpoints.restore(abstract_state(model, optimizer, mesh))
    if restored is None:
        return init_state(model, optimizer, mesh, config.training.seed)
    check_vocabulary(folder, data, restored.metadata)
    return restored.state


@dataclasses.dataclass
class Run:
    """The parts of a run that its steps need."""

    config: Config
    data: Dataset
    mesh: Mesh
    optimizer: optax.GradientTransformation
    checkpoints: Checkpoints
    reporter: Reporter

    def steps(self, state: TrainState, start: int) -> TrainState:
        """Takes all steps from ``start`` on, and reports, validates and saves on the way."""
        training = self.config.training
        train_step = self.compile_train_step(state)
        window = Window(self.config)
        with stop_signals() as stopped:
            batches = window.timed(self.batches(start))
            for step, batch in enumerate(batches, start=start + 1):
                state, metrics = train_step(state, batch)
                self.checkpoints.check()
                window.add(step, metrics)
                self.reporter.advance(step)
                last = step == training.steps
                stop = asked_to_stop(stopped, step) and not last
                if step % training.log_every == 0 or last:
                    self.report(state, window)
                due = step % training.checkpoint_every == 0 or last
                if due or stop:
                    with window.paused():
                        self.save(step, state, interim=not due)
                        # A preempted run skips validation, except the final one.
                        if self.is_validated(step) and not stop:
                            self.validate(step, state, stopped if not last else ())
                        stop = stop or (bool(stopped) and not last)  # asked while it validated
                if stop:
                    self.checkpoints.wait()
                    name = stopped[0].name if stopped else "SIGTERM"
                    raise KeyboardInterrupt(
                        f"{name}: step {step} is saved; the same command goes on there"
                    )
            self.checkpoints.wait()
        return state

    def is_validated(self, step: int) -> bool:
        """Returns whether there is a validation after this step."""
        training = self.config.training
        return step % training.eval_every == 0 or step == training.steps

    def validate(
        self, step: int, state: TrainState, stopped: Sequence[signal.Signals] = ()
    ) -> None:
        """Validates a state that is saved or being saved, and attaches the score to it.

        A validation that fails is reported and costs nothing else. With several processes it ends
        the run: where one of them fails, the others wait for it in the middle of a computation.
        """
        try:
            values = self.validation(state.params, stopped=stopped)
        except Exception as error:
            if jax.process_count() > 1:
                raise
            self.reporter.failed_validation(step, error)
            return
        if values is None:
            return
        # First, so that a process killed while it waits does not report this validation twice.
        self.checkpoints.wait()
        self.reporter.valid(step, values)
        self.checkpoints.attach_score(step, -values["loss"])

    def resume_validation(self, state: TrainState, start: int) -> None:
        """Validates the checkpoint that the run resumes from, if its validation was cut short."""
        due = start <= self.config.training.steps and self.is_validated(start)
        if due and not self.checkpoints.is_scored(start):
            self.validate(start, state)

    @functools.cached_property
    def validation(self) -> Validation:
        """Compiles its programs at the first use."""
        return Validation(self.config, self.data, self.mesh)

    def compile_train_step(
        self, state: TrainState
    ) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
        """Compiles the step for every shape that the plan has; another one is an error."""
        began = time.monotonic()
        train_step = make_train_step(self.config, self.optimizer, self.mesh)
        programs = {}
        for shape in self.shapes():
            batch = abstract_batch(*shape)
            programs[batch.src.shape, batch.tgt_in.shape] = train_step.lower(state, batch).compile()
        self.reporter.say(
            f"compiled the step for {len(programs)} shapes in {time.monotonic() - began:.0f} s"
        )
        return lambda state, batch: programs[batch.src.shape, batch.tgt_in.shape](state, batch)

    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Every shape of a training batch: rows, source length, target length."""
        return padded_shapes(self.data.plan, self.row_multiple)

    @property
    def row_multiple(self) -> int:
        """What the rows of a batch must be divisible by."""
        return row_shards(self.mesh) * self.config.training.accumulation

    def batches(self, start: int) -> Iterator[Batch]:
        """The batches of the remaining steps, on the devices."""
        local = load_batches(
            self.data.train,
            self.data.plan,
            start=start,
            stop=self.config.training.steps,
            row_multiple=self.row_multiple,
            parts=row_parts(self.mesh),
            part_count=row_shards(self.mesh),
        )
        return map(functools.partial(to_devices, self.mesh), local)

    def report(self, state: TrainState, window: Window) -> None:
        """Reports the window's means, and the examples of skipped steps.

        Raises:
          FloatingPointError: Too many steps in a row were skipped.
        """
        skipped = window.skipped()
        step = int(state.step)
        self.reporter.train(step, window.means(updates=step - int(state.skipped)))
        for number in skipped:
            ids = sorted(i for row in self.data.plan.rows(number - 1)[1] for i in row)
            self.reporter.say(
                f"step {number} skipped: its update was NaN or Inf; it had {len(ids)} "
                f"examples: {', '.join(map(str, ids[:10]))}{', ...' if ids[10:] else ''} of the "
                "training pairs that were not left out, the first being 0"
            )
        in_row = int(state.skipped_in_row)
        if in_row >= _MOST_SKIPPED_IN_ROW:
            newest = max(self.checkpoints.steps(), default=None)
            raise FloatingPointError(
                f"updates were NaN or Inf for the last {in_row} steps; the newest checkpoint is "
                f"of step {newest}. Begin again in another --workdir, with a lower "
                "training.learning_rate_scale, more training.warmup_steps, or "
                "training.clip_norm=1.0"
            )

    def save(self, step: int, state: TrainState, *, interim: bool) -> None:
        """Saves a checkpoint in the background."""
        metadata = {"tokenizer": self.data.tokenizer.sha256}
        self.checkpoints.save(step, state, metadata=metadata, interim=interim)


def _introduce(
    reporter: Reporter, config: Config, data: Dataset, mesh: Mesh, state: TrainState, start: int
) -> None:
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    reporter.say(
        f"{parameters:,} parameters on {mesh.size} {mesh.devices.flat[0].device_kind} device(s); "
        f"{len(data.train):,} training pairs, {_skipped(data.train, config.data.max_length)}; "
        f"{len(data.valid):,} validation pairs, {_skipped(data.valid, config.model.max_length)}"
    )
    reporter.say(
        f"{data.plan.batches_per_epoch:,} batches an epoch in {len(data.plan.shapes)} shapes, "
        f"{data.plan.efficiency:.1%} of them tokens, the rest padding"
    )
    reporter.say(f"{'resumed from' if start else 'starting at'} step {start}")


def _skipped(store: TokenStore, max_length: int) -> str:
    return (
        f"{store.skipped_long + store.skipped_empty:,} skipped ({store.skipped_long:,} longer "
        f"than {max_length} tokens, {store.skipped_empty:,} with an empty side)"
    )


def _digest(config: Config) -> str:
    return hashlib.sha256(json.dumps(config_lib.to_dict(config)).encode()).hexdigest()
