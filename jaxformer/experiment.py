"""An experiment from its config: task, optimizer and settings, handed to the training loop."""

import functools
import pathlib
from collections.abc import Sequence

import optax

from jaxformer.config import Config, StreamConfig, check_config, model_of
from jaxformer.data.corpus import Corpus
from jaxformer.errors import UserError
from jaxformer.files import local_path
from jaxformer.models.selection import describe_model
from jaxformer.tasks.dataset import open_dataset
from jaxformer.tasks.language_modeling import LanguageModeling, open_stream
from jaxformer.tasks.parsing.task import Parsing
from jaxformer.tasks.parsing.treebank import TreesCorpus
from jaxformer.tasks.translation import Translation
from jaxformer.training import hosts
from jaxformer.training.fitting import fit
from jaxformer.training.hooks import Hook
from jaxformer.training.mesh import make_mesh
from jaxformer.training.optimizer import configured_optimizer, configured_schedule
from jaxformer.training.run_directory import begin
from jaxformer.training.step import TrainState
from jaxformer.training.task import Task
from jaxformer.training.writers import Writer
from jaxformer.workdir import Workdir


def train(
    config: Config,
    workdir: str | pathlib.Path,
    *,
    corpus: Corpus | None = None,
    optimizer: optax.GradientTransformation | None = None,
    hooks: Sequence[Hook] = (),
    writers: Sequence[Writer] = (),
) -> TrainState:
    """Trains the model of ``config`` in ``workdir``, or resumes a run where it stopped.

    A run that was interrupted, even by kill -9, gets exactly the batches and random numbers that
    it would have got. SIGTERM, SIGINT and SIGHUP save a checkpoint first.

    Args:
      config: The experiment.
      workdir: Folder of the run.
      corpus: Sentence pairs of one's own, in the place of the config's; its splits are asked for by
        ``data.train`` and ``data.valid``. A resumed run must be given the same.
      optimizer: Any optax transformation, in the place of the config's. A resumed run must be given
        the same.
      hooks: As for :func:`~jaxformer.fit`.
      writers: As for :func:`~jaxformer.fit`.

    Returns:
      The final state.

    Raises:
      UserError: The workdir belongs to another experiment, or another process trains in it, or its
        checkpoints are missing; or data is missing or malformed.
      FloatingPointError: Updates were not finite for many steps in a row.
      KeyboardInterrupt: The run was asked to stop, and has saved its state.
    """
    check_config(config)
    folder, training = Workdir(local_path(workdir)), config.training
    if config.model.compute_dtype == "int8":
        raise UserError(
            "model.compute_dtype=int8 is only to decode with: train in float32 or bfloat16, then "
            "round the parameters with jaxformer quantize"
        )
    begin(folder, config)
    task = make_task(config, folder, corpus)
    schedule = None
    if optimizer is None:
        optimizer = make_optimizer(config)
        schedule = configured_schedule(training, config.model.d_model)
    try:
        return fit(
            task,
            optimizer,
            workdir,
            training,
            mesh=make_mesh(config.mesh),
            config=config,
            learning_rate=schedule,
            hooks=hooks,
            writers=writers,
        )
    except FloatingPointError as error:
        raise FloatingPointError(
            f"{error}. Begin again in another --workdir, with a lower "
            "training.learning_rate_scale, more training.warmup_steps, or training.clip_norm=1.0"
        ) from None


def make_task(config: Config, folder: Workdir, corpus: Corpus | None = None) -> Task:
    """The task of a config, its data opened, by the kind of its data.

    A text is a language model's, trees are a parser's, other sentence pairs are a translator's.

    Raises:
      UserError: Data is missing or malformed, or is not what the run began with.
    """
    with hosts.first_before_others("data"):
        if isinstance(config.data, StreamConfig):
            return LanguageModeling(config, open_stream(config, folder))
        if config.data.corpus == "trees":
            return Parsing(config, open_dataset(config, folder, corpus or TreesCorpus()))
        return Translation(config, open_dataset(config, folder, corpus))


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """The optimizer of a config: Adam (beta1 0.9, beta2 0.98, epsilon 1e-9) under equation 3.

    Raises:
      UserError: This is no ``Config``: the learning rate depends on the model's width, too.
    """
    check_config(config)
    describe = functools.partial(describe_model, config.model, model_of(config))
    return configured_optimizer(config.training, config.model.d_model, describe)
