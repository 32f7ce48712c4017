"""Runs one step of training again, and measures what each of its examples contributed."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, PyTree
from tqdm import tqdm

from jaxformer.errors import UserError
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.training.mesh import (
    DATA_AXIS,
    BatchShards,
    make_mesh,
    sum_over_data,
    to_devices,
)
from jaxformer.training.settings import FitConfig
from jaxformer.training.state import StartFrom, TrainState, abstract_state, init_state
from jaxformer.training.step import global_norm, local_gradients, make_train_step, step_key
from jaxformer.training.task import Loss, Randomness, Sums, Task


class Contribution(NamedTuple):
    """The contribution of one example to a step.

    Attributes:
      text: The example.
      count: Its "count", such as target tokens.
      loss: Its loss, divided by its own count.
      grad_norm: Norm of the gradient of its loss, divided by the count of the batch. These
        gradients sum to the gradient of the step.
    """

    text: str
    count: float
    loss: float
    grad_norm: float


class Replayed(NamedTuple):
    """A step that was taken again.

    Attributes:
      start: Step of the checkpoint from which the state was computed again; 0 without one.
      sums: Sums of the step, as in training.
      contributions: What the examples contributed: first those that are NaN or infinite, then those
        with the largest gradients.
    """

    start: int
    sums: dict[str, float]
    contributions: list[Contribution]


def replay(
    task: Task,
    optimizer: optax.GradientTransformation,
    checkpoints: Checkpoints,
    mesh: Mesh,
    settings: FitConfig,
    step: int,
    start_from: StartFrom | None = None,
) -> Replayed:
    """Takes one step of a run again, from the newest checkpoint before it.

    On the same kind and number of devices, all numbers are the same bits as in training.

    Raises:
      UserError: There is no such step, or the checkpoint is damaged or does not match.
    """
    # A run takes no more steps than this after its newest checkpoint.
    most = min(settings.steps, max(checkpoints.steps(), default=0) + settings.checkpoint_every)
    if not 1 <= step <= most:
        raise UserError(f"expected a step that the run has taken, from 1 to {most}: got {step}")
    state = _newest_state(task, optimizer, checkpoints, mesh, settings.seed, step, start_from)
    start, accumulation = int(state.step), settings.gradient_accumulation
    train_step = make_train_step(
        task.loss, optimizer, mesh, seed=settings.seed, gradient_accumulation=accumulation
    )
    batches = task.batches(start, BatchShards.of(mesh, accumulation))
    before = itertools.islice(batches, step - 1 - start)
    for batch in tqdm(before, f"steps {start + 1} to {step - 1}", step - 1 - start, leave=False):
        state, _ = train_step(state, to_devices(mesh, batch, accumulation))
    batch = next(batches)
    # Examples are measured on one device.
    params, key = jax.device_get(state.params), step_key(settings.seed, jnp.asarray(step - 1))
    _, sums = train_step(state, to_devices(mesh, batch, accumulation))
    sums = {name: float(value) for name, value in jax.device_get(sums).items()}
    sums_and_norm = _on_one_device(task.loss)
    found = []
    for example in task.examples(step - 1, batch):
        randomness = Randomness(key, jnp.array([example.row]))
        own, norm = jax.device_get(sums_and_norm(params, example.batch, randomness))
        count = float(own["count"])
        if count == 0 and norm == 0:
            continue  # An empty row, which only makes the batch divisible.
        loss = float(own["loss"]) / (count or math.nan)
        found.append(Contribution(example.text, count, loss, float(norm)))
    # Not the count of the batch, which may be NaN because of one example.
    total = sum(each.count for each in found if math.isfinite(each.count)) or math.nan
    found = [each._replace(grad_norm=each.grad_norm / total) for each in found]
    return Replayed(start, sums, sorted(found, key=_rank))


def _newest_state(
    task: Task,
    optimizer: optax.GradientTransformation,
    checkpoints: Checkpoints,
    mesh: Mesh,
    seed: int,
    before: int,
    start_from: StartFrom | None,
) -> TrainState:
    steps = [step for step in checkpoints.steps() if step < before]
    if not steps:
        return init_state(task.init, optimizer, mesh, seed, task.describe, start_from)
    template = abstract_state(task.init, optimizer, mesh, task.describe)
    restored = checkpoints.restore(template, step=steps[-1])
    assert restored is not None
    return restored.state


def _on_one_device(
    loss: Loss,
) -> Callable[[PyTree, PyTree, Randomness], tuple[Sums, Float[Array, ""]]]:
    """Returns a function to the sums of a batch, and the norm of the gradient of its loss."""

    def sums_and_norm(
        params: PyTree, batch: PyTree, randomness: Randomness
    ) -> tuple[Sums, Float[Array, ""]]:
        gradients, sums = local_gradients(loss, params, batch, randomness, 1)
        return sums, global_norm(gradients)

    mesh = make_mesh(devices=jax.local_devices()[:1])
    specs = (PartitionSpec(DATA_AXIS), PartitionSpec())
    return jax.jit(sum_over_data(mesh, sums_and_norm, specs))


def _rank(contribution: Contribution) -> float:
    finite = math.isfinite(contribution.grad_norm) and math.isfinite(contribution.loss)
    return -contribution.grad_norm if finite else -math.inf
