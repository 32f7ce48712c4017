"""Repeats one training step and measures the contribution of each example."""

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, PyTree

from jaxformer.errors import UserError
from jaxformer.progress import ProgressBar
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.training.averaging import EvaluatedParams
from jaxformer.training.mesh import DATA_AXIS, BatchShards, make_mesh, sum_over_data, to_devices
from jaxformer.training.settings import FitConfig
from jaxformer.training.state import StartFrom, restore_or_initialize
from jaxformer.training.step import global_norm, gradients_of, make_train_step, step_key
from jaxformer.training.task import Example, Loss, Randomness, Sums, Task


class Contribution(NamedTuple):
    text: str  # the example
    count: float  # for example target tokens
    loss: float  # divided by its own count
    grad_norm: float  # of its share of the gradient of the step


class ReplayedStep(NamedTuple):
    start: int  # step of the checkpoint from which the state was recomputed; 0 without one
    sums: dict[str, float]
    contributions: list[Contribution]  # NaN and infinity first, then the largest gradients


def replay_step(
    task: Task,
    optimizer: optax.GradientTransformation,
    checkpoints: Checkpoints,
    mesh: Mesh,
    settings: FitConfig,
    step: int,
    start_from: StartFrom | None = None,
    evaluated: EvaluatedParams | None = None,
) -> ReplayedStep:
    """Repeats a step from the newest checkpoint before it, bit-identically on the same devices."""
    # A run takes at most this many steps after its newest checkpoint.
    last = min(settings.steps, max(checkpoints.steps(), default=0) + settings.checkpoint_every)
    if not 1 <= step <= last:
        raise UserError(f"expected a step that the run has taken, from 1 to {last}: got {step}")
    state, _ = restore_or_initialize(
        *(task, optimizer, mesh, settings.seed, checkpoints, start_from),
        before=step,
        evaluated=evaluated,
    )
    start, accumulation = int(state.step), settings.gradient_accumulation
    train_step = make_train_step(
        task.loss, optimizer, mesh, seed=settings.seed, gradient_accumulation=accumulation
    )
    batches = task.batches(start, BatchShards.of(mesh, accumulation))
    before = itertools.islice(batches, step - 1 - start)
    for batch in ProgressBar(
        before, f"steps {start + 1} to {step - 1}", step - 1 - start, leave=False
    ):
        state, _ = train_step(state, to_devices(mesh, batch, accumulation))
    batch, params = next(batches), jax.device_get(state.params)
    _, sums = train_step(state, to_devices(mesh, batch, accumulation))
    sums = {name: float(value) for name, value in jax.device_get(sums).items()}
    key = step_key(settings.seed, jnp.asarray(step - 1))
    found = _contributions(task.loss, params, key, task.examples(step - 1, batch))
    found.sort(key=lambda e: -e.grad_norm if math.isfinite(e.grad_norm + e.loss) else -math.inf)
    return ReplayedStep(start, sums, found)


def _contributions(
    loss: Loss, params: PyTree, key: Array, examples: Iterable[Example]
) -> list[Contribution]:
    def sums_and_norm(
        params: PyTree, batch: PyTree, randomness: Randomness
    ) -> tuple[Sums, Float[Array, ""]]:
        gradients, sums = gradients_of(loss, params, batch, randomness)
        return sums, global_norm(gradients)

    mesh = make_mesh(devices=jax.local_devices()[:1])
    specs = (PartitionSpec(DATA_AXIS), PartitionSpec())
    measure = jax.jit(sum_over_data(mesh, sums_and_norm, specs))
    found = []
    for example in examples:
        randomness = Randomness(key, jnp.array([example.row]))
        sums, norm = jax.device_get(measure(params, example.batch, randomness))
        count = float(sums["count"])
        if count or norm:  # otherwise an empty row, which only makes the batch divisible
            loss_per_count = float(sums["loss"]) / (count or math.nan)
            found.append(Contribution(example.text, count, loss_per_count, float(norm)))
    # Not the count of the batch, which may be NaN because of one example.
    total = sum(each.count for each in found if math.isfinite(each.count)) or math.nan
    return [each._replace(grad_norm=each.grad_norm / total) for each in found]
