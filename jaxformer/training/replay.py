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
from jaxformer.training.mesh import DATA_AXIS, make_mesh
from jaxformer.training.placement import BatchShards, sum_over_data, to_devices
from jaxformer.training.settings import FitConfig
from jaxformer.training.step import global_norm, gradients_of, make_train_step, step_key
from jaxformer.training.task import Example, Loss, Randomness, Sums, Task
from jaxformer.training.train_state import StartFrom, restore_or_initialize


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
    _check_taken(step, checkpoints, settings)
    state, _ = restore_or_initialize(
        task,
        optimizer,
        mesh,
        seed=settings.seed,
        checkpoints=checkpoints,
        start_from=start_from,
        before=step,
        evaluated=evaluated,
    )
    start = int(state.step)
    accumulation = settings.gradient_accumulation
    train_step = make_train_step(
        task.training_loss,
        optimizer,
        mesh,
        seed=settings.seed,
        gradient_accumulation=accumulation,
    )

    # Repeat the steps since the checkpoint. The number of a batch is one less than its step's.
    batches = task.batches(start, BatchShards.of(mesh, accumulation))
    number = step - 1
    num_before = number - start
    before = itertools.islice(batches, num_before)
    description = f"steps {start + 1} to {number}"
    for batch in ProgressBar(before, desc=description, total=num_before, leave=False):
        on_devices = to_devices(mesh, batch, accumulation)
        state, _ = train_step(state, on_devices)

    # The step donates the parameters, so they are copied first.
    batch = next(batches)
    params = jax.device_get(state.params)
    on_devices = to_devices(mesh, batch, accumulation)
    _, sums = train_step(state, on_devices)
    on_host = jax.device_get(sums)
    sums = {name: float(value) for name, value in on_host.items()}

    key = step_key(settings.seed, jnp.asarray(number))
    examples = task.examples(number, batch)
    contributions = _contributions(task.training_loss, params, key, examples=examples)
    contributions.sort(key=_order)
    return ReplayedStep(start, sums, contributions)


def _check_taken(step: int, checkpoints: Checkpoints, settings: FitConfig) -> None:
    """Refuses a step that the run cannot have taken."""
    # A run takes at most this many steps after its newest checkpoint.
    newest = max(checkpoints.steps(), default=0)
    last = min(settings.steps, newest + settings.checkpoint_every)
    if not 1 <= step <= last:
        raise UserError(f"expected a step that the run has taken, from 1 to {last}: got {step}")


def _order(contribution: Contribution) -> float:
    """Returns a key that sorts NaN and infinity first, and then the largest gradients."""
    if not math.isfinite(contribution.grad_norm + contribution.loss):
        return -math.inf
    return -contribution.grad_norm


def _contributions(
    loss: Loss,
    params: PyTree,
    key: Array,
    examples: Iterable[Example],
) -> list[Contribution]:
    def sums_and_norm(
        params: PyTree,
        batch: PyTree,
        randomness: Randomness,
    ) -> tuple[Sums, Float[Array, ""]]:
        gradients, sums = gradients_of(loss, params, batch, randomness)
        return sums, global_norm(gradients)

    mesh = make_mesh(devices=jax.local_devices()[:1])
    specs = (PartitionSpec(DATA_AXIS), PartitionSpec())
    measure = jax.jit(sum_over_data(mesh, sums_and_norm, specs))

    found = []
    for example in examples:
        randomness = Randomness(key, jnp.array([example.row]))
        measured = measure(params, example.batch, randomness)
        sums, norm = jax.device_get(measured)
        count = float(sums["count"])
        if not count and not norm:
            continue  # an empty row, which only makes the batch divisible
        contribution = Contribution(
            text=example.text,
            count=count,
            loss=float(sums["loss"]) / (count or math.nan),
            grad_norm=float(norm),
        )
        found.append(contribution)

    # Not the count of the batch, which may be NaN because of one example.
    finite_counts = [each.count for each in found if math.isfinite(each.count)]
    total = sum(finite_counts) or math.nan
    return [each._replace(grad_norm=each.grad_norm / total) for each in found]
