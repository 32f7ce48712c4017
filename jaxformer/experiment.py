"""Training from a config: builds the task, the optimizer and the settings of the training loop."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence

import jax
import optax
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from jaxformer.config import Config, TrainingConfig, check_config, read_config
from jaxformer.data.corpus import Corpus
from jaxformer.errors import UserError
from jaxformer.files import model_path, run_path
from jaxformer.kinds.kind import Kind
from jaxformer.kinds.model_parameters import describe_model
from jaxformer.models.architecture import Architecture
from jaxformer.nn.backend import emulates
from jaxformer.runs import processes, watchdog
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.run_directory import check_identity, prepare_run
from jaxformer.runs.signals import StopSignals
from jaxformer.runs.workdir import Workdir, use_compilation_cache
from jaxformer.runs.writers import Writer
from jaxformer.tasks.attention_distillation import check_teacher
from jaxformer.tasks.initialization import check_initialization, make_start_from
from jaxformer.tasks.token_task import NetworkTask, task_class
from jaxformer.training.averaging import EvaluatedParams, ema_params, with_ema
from jaxformer.training.fitting import Run
from jaxformer.training.freezing import freeze
from jaxformer.training.hooks import Hook
from jaxformer.training.low_rank import describe_trained, with_lora
from jaxformer.training.mesh import make_mesh
from jaxformer.training.optimizer import configured_optimizer, configured_schedule
from jaxformer.training.replay import ReplayedStep, replay_step
from jaxformer.training.settings import DECAYING, FitConfig
from jaxformer.training.train_state import TrainState
from jaxformer.waits import announce, log_stream


def train(
    config: Config,
    workdir: str | pathlib.Path,
    *,
    corpus: Corpus | None = None,
    optimizer: optax.GradientTransformation | None = None,
    hooks: Sequence[Hook] = (),
    writers: Sequence[Writer] = (),
    evaluated: EvaluatedParams | None = None,
) -> TrainState:
    """Trains the model of ``config`` in ``workdir``, or resumes a run, as :func:`~jaxformer.fit`.

    Args:
      config: The experiment.
      workdir: Directory of the run.
      corpus: Your own sentence pairs, instead of the config's; ``data.train`` and ``data.valid``
        name its splits. A resumed run must be given the same corpus.
      optimizer: Any optax transformation, instead of the config's; some need
        :func:`~jaxformer.per_layer`. ``training.freeze``, ``training.lora`` and
        ``training.ema_decay`` apply to it, too. A resumed run must be given the same one.
      hooks: As for :func:`~jaxformer.fit`.
      writers: As for :func:`~jaxformer.fit`.
      evaluated: As for :func:`~jaxformer.fit`, for your own ``optimizer``.

    Returns:
      The final state.

    Raises:
      UserError: The workdir belongs to another experiment, is in use by another process, or lacks
        its checkpoints; or data is missing or malformed.
      FloatingPointError, KeyboardInterrupt: As in :func:`~jaxformer.fit`.
    """
    check_config(config)
    folder = Workdir(run_path(workdir))
    training = config.training

    with watchdog.watch(training.stall_timeout):
        optimizer, schedule = _optimizer_and_schedule(config, optimizer)
        evaluated = _evaluated_params(training, evaluated)
        check_experiment(config, folder)
        with StopSignals() as stop, stop.raise_at_once():
            task = make_task(config, folder, corpus)

        try:
            run = Run(
                task=task,
                optimizer=optimizer,
                folder=folder,
                settings=training,
                mesh=make_mesh(config.mesh),
                config=config,
                learning_rate=schedule,
                start_from=make_start_from(config, task.tokenizer, folder),
                hooks=hooks,
                writers=writers,
                evaluated=evaluated,
            )
            return run.train()
        except FloatingPointError as error:
            rate = "learning_rate_scale" if training.learning_rate is None else "learning_rate"
            raise FloatingPointError(
                f"{error}. Begin again in another --workdir, with a lower training.{rate}, more "
                "training.warmup_steps, or training.clip_norm=1.0"
            ) from None


def _evaluated_params(
    training: TrainingConfig,
    given: EvaluatedParams | None,
) -> EvaluatedParams | None:
    """Returns the config's choice of evaluated parameters, or the given one."""
    if given is None:
        return ema_params if training.ema_decay else None

    if training.freeze or training.lora or training.ema_decay:
        raise UserError(
            "evaluated: expected training.freeze, training.lora and training.ema_decay to be left "
            "out, since they wrap the state of the optimizer; build them into the optimizer"
        )
    return given


def _optimizer_and_schedule(
    config: Config,
    given: optax.GradientTransformation | None,
) -> tuple[optax.GradientTransformation, optax.Schedule | None]:
    """Returns the config's optimizer, or the given one, whose learning rate is unknown."""
    if given is None:
        optimizer = make_optimizer(config)
        schedule = configured_schedule(config.training, config.model.d_model)
        return optimizer, schedule

    describe = functools.partial(describe_model, config.model, config.kind)
    return _complete(given, config.training, describe), None


def check_experiment(config: Config, folder: Workdir) -> None:
    """Checks a run and prints warnings before it reads its data, which can take long."""
    if config.model.compute_dtype == "int8":
        raise UserError(
            "model.compute_dtype=int8 is for decoding only: train in float32 or bfloat16, then "
            "quantize the parameters with jaxformer quantize"
        )
    config.data.check_named()

    prepare_run(folder, config, config.facts(), config.training.mirror)

    check_teacher(config)
    is_new = not folder.config.exists()
    if is_new:
        check_initialization(config)
        advice = _advise_new_run(config.training)
    else:
        advice = _advise_resumed_run(config.training, folder)

    compute_dtype = config.model.compute_dtype
    if emulates(compute_dtype):
        advice.append(
            f"this CPU has no instructions for {compute_dtype}: a new run is faster with "
            "--config.model.compute_dtype=float32"
        )
    if processes.is_primary():
        for line in advice:
            print(line, file=log_stream())


def _advise_new_run(training: TrainingConfig) -> list[str]:
    if training.warmup_steps < training.steps:
        return []
    return [
        f"note: training.warmup_steps={training.warmup_steps} is not less than "
        f"training.steps={training.steps}: the learning rate never reaches its peak; "
        f"usual are about {max(1, training.steps // 20)}"
    ]


def _advise_resumed_run(training: TrainingConfig, folder: Workdir) -> list[str]:
    if training.schedule not in DECAYING:
        return []

    earlier_steps = read_config(folder).training.steps
    if training.steps == earlier_steps:
        return []
    return [
        f"training.steps was {earlier_steps}: the {training.schedule} schedule now falls to 0 "
        f"after step {training.steps}, so the learning rate changes at once"
    ]


def replay(workdir: str | pathlib.Path, step: int) -> ReplayedStep:
    """Repeats one step of a run and measures its examples; changes nothing in the workdir."""
    use_compilation_cache()
    folder = Workdir(model_path(workdir))
    config = read_config(folder)
    mesh = make_mesh(config.mesh)
    task = make_task(config, folder)
    optimizer = make_optimizer(config)

    with Checkpoints(folder.checkpoints) as checkpoints:
        return replay_step(
            task,
            optimizer,
            checkpoints,
            mesh=mesh,
            settings=config.training,
            step=step,
            start_from=make_start_from(config, task.tokenizer, folder),
            evaluated=_evaluated_params(config.training, None),
        )


def make_validation_loss(workdir: str | pathlib.Path) -> Callable[[PyTree], float]:
    """Returns a function that computes the validation loss of parameters, as a run does.

    Raises:
      UserError, OSError: The data of the run cannot be read, or has changed.
    """
    use_compilation_cache()
    folder = Workdir(model_path(workdir))
    config = read_config(folder)

    # Decoding for BLEU or F1 takes longer than the loss.
    training = dataclasses.replace(config.training, eval_sentences=0)
    task = make_task(dataclasses.replace(config, training=training), folder)
    # Not the mesh of the run, whose devices may not be here.
    devices = jax.local_devices()[:1]
    mesh = make_mesh(devices=devices)

    def validation_loss(params: PyTree) -> float:
        metrics = task.evaluate(params, mesh, lambda: None)
        return float(metrics["loss"])

    return validation_loss


def make_task(config: Config, folder: Workdir, corpus: Corpus | None = None) -> NetworkTask:
    """Opens the data of a config, on process 0 first, which leaves files; returns its task."""
    # The others find what process 0 has written.
    if not processes.is_primary():
        with announce("waiting for process 0, which reads the data"):
            multihost_utils.sync_global_devices("data")

    try:
        with announce("reading the data"):
            task = task_class(config).open(config, folder, corpus)
        check_identity(folder, task.identity())
        return task
    finally:
        if processes.is_primary():
            multihost_utils.sync_global_devices("data")


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Returns the optimizer of a config; by default Adam with the learning rate of equation 3.

    Section 5.3 of the paper: beta1 = 0.9, beta2 = 0.98 and epsilon = 1e-9. The learning rate also
    depends on the width of the model, so ``config.training`` alone is not enough.

    Raises:
      UserError: The argument is not a ``Config``.
    """
    check_config(config)
    training = config.training

    # Equal optimizers share compiled steps, so the settings of the loop must not distinguish them.
    loop_settings = {field.name: field.default for field in dataclasses.fields(FitConfig)}
    if training.schedule in DECAYING:
        loop_settings["steps"] = training.steps
    if training.lora:
        loop_settings["seed"] = training.seed
    training = dataclasses.replace(training, **loop_settings)
    return _make_optimizer(training, config.model, config.kind)


@functools.lru_cache
def _make_optimizer(
    training: TrainingConfig,
    model: Architecture,
    kind: Kind,
) -> optax.GradientTransformation:
    describe = functools.partial(describe_model, model, kind)
    describe_own = describe
    if training.lora:
        describe_own = functools.partial(describe_trained, describe(), training.lora_matrices)
    optimizer = configured_optimizer(training, model.d_model, describe_own)
    return _complete(optimizer, training, describe)


def _complete(
    optimizer: optax.GradientTransformation,
    training: TrainingConfig,
    describe: Callable[[], PyTree],
) -> optax.GradientTransformation:
    """Returns the optimizer with the settings that apply to any: freezing, adapters, an average."""
    optimizer = freeze(optimizer, training.freeze, describe)
    if training.lora:
        optimizer = with_lora(
            optimizer,
            describe(),
            training.lora,
            alpha=training.lora_alpha,
            matrices=training.lora_matrices,
            seed=training.seed,
        )
    if training.ema_decay is None:
        return optimizer
    return with_ema(optimizer, training.ema_decay)
