"""Parameters of a trained model: choosing a checkpoint, and averaging several."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.checkpoint import Checkpoints
from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.nn.transformer import Transformer
from jaxformer.workdir import Workdir


def abstract_params(config: ModelConfig) -> PyTree:
    """Shapes and dtypes of the model's parameters; nothing is computed."""
    tokens = jnp.ones((1, 1), jnp.int32)
    return jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens, tokens)["params"]


def load_params(folder: Workdir, config: ModelConfig, weights: str) -> tuple[PyTree, str]:
    """Reads parameters from a workdir.

    Args:
      folder: The workdir.
      config: The architecture that the parameters must fit.
      weights: "averaged", "best", "latest", a step, or "auto": averaged if there is an average,
        else latest.

    Returns:
      The parameters, and in words which ones they are.

    Raises:
      UserError: There are no such weights, or they are damaged or of another model.
    """
    if weights == "auto":
        weights = "averaged" if folder.averaged.is_dir() else "latest"
    template = abstract_params(config)
    if weights == "averaged":
        restored = _open(folder.averaged, "jaxformer average").restore_params(template)
        steps = ", ".join(map(str, restored.metadata["averaged_steps"]))
        return restored.params, f"average of steps {steps}"
    checkpoints = _open(folder.checkpoints, "train.py")
    if weights == "latest":
        restored = checkpoints.restore_params(template)
    elif weights == "best":
        restored = checkpoints.restore_params(template, step=checkpoints.best_step())
    else:
        restored = checkpoints.restore_params(template, step=_known_step(checkpoints, weights))
    return restored.params, f"step {restored.step}"


def average(folder: Workdir, last: int) -> list[int]:
    """Averages the parameters of the newest checkpoints (section 6.1) into ``folder.averaged``.

    Sums are float64, so that the order does not matter.

    Returns:
      The steps that were averaged.

    Raises:
      UserError: There are fewer checkpoints, or one of them is damaged.
    """
    if last < 1:
        raise UserError(f"--last must be at least 1: got {last}")
    template = abstract_params(folder.load_config().model)
    checkpoints = _open(folder.checkpoints, "train.py")
    steps = checkpoints.newest_steps()[-last:]
    if len(steps) < last:
        raise UserError(
            f"{folder.checkpoints}: expected {last} checkpoints to average, found {len(steps)}; "
            f"use --last {len(steps)}, or train with --config.training.keep_checkpoints={last}"
        )
    total = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), template)
    for step in steps:
        params = jax.device_get(checkpoints.restore_params(template, step=step).params)
        total = jax.tree.map(np.add, total, params)
    mean = jax.tree.map(lambda leaf: jnp.asarray(leaf / last, jnp.float32), total)
    Checkpoints.write_single(
        folder.averaged, steps[-1], {"params": mean}, {"averaged_steps": steps}
    )
    return steps


def _open(directory: pathlib.Path, made_by: str) -> Checkpoints:
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder; it is made by {made_by}")
    return Checkpoints(directory)


def _known_step(checkpoints: Checkpoints, weights: str) -> int:
    steps = checkpoints.steps()
    if not weights.isdigit() or int(weights) not in steps:
        known = ", ".join(map(str, steps))
        raise UserError(
            f"--weights must be averaged, best, latest, auto or one of the steps {known}: "
            f"got {weights}"
        )
    return int(weights)
