"""The state that a run begins with: its newest checkpoint, or fresh parameters."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.runs import processes
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.training.optimizer import path_of
from jaxformer.training.state import StartFrom, TrainState, abstract_state, init_state
from jaxformer.training.step import all_finite
from jaxformer.training.task import Task

is_finite = jax.jit(all_finite)


def restore_or_initialize(
    task: Task,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    seed: int,
    checkpoints: Checkpoints,
    start_from: StartFrom | None,
    *,
    before: int | None = None,
) -> tuple[TrainState, dict[str, Any]]:
    """Returns the newest state and its metadata, or a fresh state and none.

    ``before`` excludes this checkpoint and all later ones.
    """
    if jax.process_count() > 1:
        newest = checkpoints.newest_good_step()
        processes.check_agreement({"newest undamaged checkpoint in the workdir": str(newest)})
    template = abstract_state(task.init, optimizer, mesh, task.describe)
    _check_parameters(template)
    steps = [step for step in checkpoints.steps() if before is None or step < before]
    if not steps:
        state = init_state(task.init, optimizer, mesh, seed, task.describe, start_from)
        _check_finite(state)
        return state, {}
    restored = checkpoints.restore(template, step=None if before is None else steps[-1])
    assert restored is not None
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
    if is_finite(state.params, state.opt_state):
        return
    for path, leaf in jax.tree.leaves_with_path(state.params):
        if not jnp.isfinite(leaf).all():
            raise UserError(
                f"expected finite parameters: {path_of(path)} holds NaN or Inf before the first "
                "step; add constants such as masks in the loss"
            )


def other_hyperparameters(
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
