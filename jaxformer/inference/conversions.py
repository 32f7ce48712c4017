"""Models made of trained models: averages (section 6.1), models in int8, new workdirs."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.config import Config, read_config, save_config
from jaxformer.errors import UserError
from jaxformer.files import run_path, write_file
from jaxformer.inference.origins import ORIGIN, ROUNDED_FROM, name_folder
from jaxformer.inference.parameter_arrays import abstract_params, prepare_params
from jaxformer.inference.weights import LOSSES, TrainedModel, check_owner, open_checkpoints
from jaxformer.layout import global_mesh
from jaxformer.runs.checkpoints import write_single
from jaxformer.runs.workdir import Workdir, read_workdir_object
from jaxformer.waits import announce

# The command, in messages and workdirs.
_QUANTIZE = "jaxformer quantize"


@global_mesh(None)
def average(
    folder: Workdir,
    last: int,
    validation_loss: Callable[[PyTree], float] | None = None,
) -> list[int]:
    """Writes the average of the ``last`` newest checkpoints (section 6.1); returns their steps.

    Args:
      folder: The run directory.
      last: Number of checkpoints.
      validation_loss: Returns the loss of parameters on validation data. If the average has a
        higher loss than the newest checkpoint, it does not become the default of
        ``weights="auto"``. By default, it becomes the default without a comparison.
    """
    steps = steps_to_average(folder, last)
    run = read_config(folder)

    template = abstract_params(run.model, run.kind)
    total = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), template)
    newest = template
    metadata = {}

    with open_checkpoints(folder, folder.checkpoints) as checkpoints:
        for step in steps:
            with announce(f"verifying and reading step {step} in {folder.checkpoints}"):
                restored = checkpoints.restore_params(template, step=step)
            check_owner(
                folder,
                folder.checkpoints,
                run.model,
                metadata=restored.metadata,
            )
            newest = restored.params
            total = jax.tree.map(np.add, total, jax.device_get(newest))
            metadata = {**restored.metadata, "averaged_steps": steps}

    mean = jax.tree.map(lambda leaf: jnp.asarray(leaf / last, jnp.float32), total)
    if validation_loss is not None:
        metadata[LOSSES] = {
            "latest": validation_loss(newest),
            "averaged": validation_loss(mean),
        }
    write_single(
        folder.averaged,
        steps[-1],
        {"params": mean},
        metadata=metadata,
    )
    return steps


def steps_to_average(folder: Workdir, last: int) -> list[int]:
    """Returns the ``last`` newest steps of a run.

    Raises:
      UserError: There are fewer, or the run cannot be averaged.
    """
    if last < 1:
        raise UserError(f"--last must be at least 1: got {last}")

    run = read_config(folder)
    if run.model.compute_dtype == "int8":
        raise UserError(
            f"{folder.path}: is quantized to int8; average the run that it was made from, then "
            "quantize the average with jaxformer quantize"
        )

    with open_checkpoints(folder, folder.checkpoints) as checkpoints:
        steps = checkpoints.newest_steps()[-last:]
    if len(steps) == last:
        return steps

    advice = f"use --last {len(steps)}, or train longer" if steps else "train longer"
    if last > run.training.keep_checkpoints:
        advice += f" with --config.training.keep_checkpoints={last}"
    raise UserError(
        f"{folder.checkpoints}: expected {last} checkpoints to average, found {len(steps)}; "
        f"{advice}"
    )


def quantize(
    workdir: str | pathlib.Path,
    output: str | pathlib.Path,
    *,
    weights: str | int = "auto",
) -> tuple[int, int]:
    """Quantizes the parameters of a run to int8 and writes them to a new workdir.

    Every command accepts the new workdir. Matrices are stored as int8 with one float32 scale per
    output channel; biases and layer norms are unchanged. The inputs of matrix multiplications are
    quantized during decoding, row by row.

    Args:
      workdir: The run directory.
      output: The workdir to write, new or empty; an unfinished one is overwritten.
      weights: Checkpoint; see :func:`~jaxformer.load_model`.

    Returns:
      Bytes of the parameters before and after.

    Raises:
      UserError: The run is damaged or quantized already, or ``output`` is a workdir or a file, or
        holds files that this command would overwrite.
    """
    target = Workdir(run_path(output))
    target.check_writable(_QUANTIZE)

    trained = TrainedModel.load(workdir, weights=weights)
    config = trained.config
    if config.model.compute_dtype == "int8":
        raise UserError(f"{workdir}: expected a model to quantize, but it is int8 already")

    identity = read_workdir_object(trained.folder.identity)
    tokenizer = trained.tokenizer_file

    model = dataclasses.replace(config.model, compute_dtype="int8")
    quantized = prepare_params(model, trained.params, config.kind)

    made_from = f"{name_folder(trained.folder.path)}, {trained.weights}"
    metadata = {
        ROUNDED_FROM: trained.weights,
        ORIGIN: f"quantized from {made_from}",
    }
    write_model(
        target,
        _QUANTIZE,
        identity,
        tokenizer=tokenizer,
        config=dataclasses.replace(config, model=model),
        params=quantized,
        class_names=trained.folder.read_class_names(),
        **metadata,
    )
    return _num_bytes(trained.params), _num_bytes(quantized)


def _num_bytes(params: PyTree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(params))


def write_model(
    target: Workdir,
    command: str,
    identity: dict[str, Any],
    tokenizer: bytes | None,
    config: Config,
    params: PyTree,
    class_names: Sequence[str] = (),
    **metadata: Any,
) -> None:
    """Writes the workdir of a converted model, with additional metadata.

    The metadatum ``origin`` describes the model in logs, such as "imported from Marian: opus-mt".
    """
    target.create(command, identity)

    if tokenizer is not None:
        write_file(target.tokenizer, tokenizer)
    target.write_class_names(class_names)

    metadata = {
        "tokenizer": identity.get("tokenizer"),
        "model": dataclasses.asdict(config.model),
        **metadata,
    }
    write_single(
        target.checkpoints,
        0,
        {"params": params},
        metadata=metadata,
    )

    save_config(config, target.config)  # Last, since the config marks a complete workdir.
