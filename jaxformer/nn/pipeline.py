"""Pipelines of layers: stages on different devices work on different micro-batches at a time.

This is GPipe (Huang et al. 2019), written as one program for all devices. The state of the stages
is an array with a leading axis of stages, which moves on by one with every tick. The compiler turns
that into a transfer from each device to the next.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped

from jaxformer.errors import UserError
from jaxformer.nn.parameters import LAYERS
from jaxformer.nn.sharding import num_shards, shard

_micro_batches: contextvars.ContextVar[int] = contextvars.ContextVar("micro_batches", default=1)

# (layers of the stage, activations of a micro-batch, its part of the context) -> activations
Stage = Callable[[PyTree, Array, PyTree], Array]
_Arrays = list[Array | None]


@contextlib.contextmanager
def in_micro_batches(count: int) -> Iterator[None]:
    """Splits batches into ``count`` micro-batches in stacks whose layers are sharded."""
    token = _micro_batches.set(count)
    try:
        yield
    finally:
        _micro_batches.reset(token)


def idle_fraction(stages: int, micro_batches: int) -> float:
    """Returns the fraction of the time in which a stage has no micro-batch, GPipe's bubble."""
    return (stages - 1) / (micro_batches + stages - 1)


def run_stages(
    stage: Stage,
    layers: PyTree,
    x: Float[Array, "B T D"],
    context: PyTree,
) -> Float[Array, "B T D"]:
    """Runs micro-batches through the layers, which the mesh splits into stages.

    Args:
      stage: Runs some consecutive layers.
      layers: Arrays with a leading axis of all layers.
      x: Activations of all micro-batches.
      context: What else all layers need. Arrays with as many rows as x go along with their
        micro-batch; all others are the same for every micro-batch.

    Returns:
      The output of the last layer for all rows.

    Raises:
      UserError: The number of micro-batches does not divide the rows.
    """
    stages = num_shards(LAYERS)
    count = _micro_batches_of(x)
    arrays, structure = jax.tree.flatten(context)
    rows, shared = _partition(arrays, x)

    def run(own_layers: PyTree, x: Array, rows: _Arrays) -> Array:
        own_arrays = map(_first_given, rows, shared)
        return stage(own_layers, x, structure.unflatten(own_arrays))

    def tick(state: PyTree, entering: PyTree) -> tuple[PyTree, Array]:
        x, rows = _on_stages(_enter_first(entering, state))
        x = run_all(of_stages, x, rows)
        moved = jax.tree.map(_move_on, (x, rows))
        return _on_stages(moved), x

    # Without spmd_axis_name, which JAX 0.12 takes for an axis of the shard_map around the step.
    run_all = jax.vmap(run)
    of_stages = jax.tree.map(lambda array: array.reshape(stages, -1, *array.shape[1:]), layers)
    entering = jax.tree.map(lambda array: _by_tick(array, stages, count), (x, rows))
    start = jax.tree.map(lambda array: array[0], entering)
    _, outputs = jax.lax.scan(tick, _on_stages(start), entering)
    return _leave_last(outputs)


def _micro_batches_of(x: Array) -> int:
    """Returns the number of micro-batches, which divides the rows."""
    count = _micro_batches.get()
    if x.shape[0] % count:
        raise UserError(
            f"mesh.pipe: expected a number of rows that the {count} micro-batches of "
            f"gradient_accumulation divide, got {x.shape[0]}"
        )
    return count


def _partition(arrays: Sequence[Array], x: Array) -> tuple[_Arrays, _Arrays]:
    """Returns the arrays with the rows of x, and all others, with None for the rest in each."""
    rows: _Arrays = []
    shared: _Arrays = []
    for array in arrays:
        has_rows = array.shape[:1] == x.shape[:1]
        rows.append(array if has_rows else None)
        shared.append(None if has_rows else array)
    return rows, shared


def _first_given(first: Array | None, second: Array | None) -> Array | None:
    return second if first is None else first


def _by_tick(array: Shaped[Array, "B ..."], stages: int, count: int) -> Shaped[Array, "N S ..."]:
    """Returns the micro-batch of each tick, a copy for each stage.

    While the last micro-batches leave, copies of one enter that never arrive.
    """
    # Strided, so that each micro-batch has rows of every device.
    parts = array.reshape(-1, count, *array.shape[1:]).swapaxes(0, 1)
    surplus = jnp.broadcast_to(parts[-1:], (stages - 1, *parts.shape[1:]))
    parts = jnp.concatenate([parts, surplus])
    return jnp.broadcast_to(parts[:, None], (len(parts), stages, *parts.shape[1:]))


def _enter_first(entering: PyTree, state: PyTree) -> PyTree:
    """Returns the state of the stages with a new micro-batch in the first."""

    def choose(new: Array, old: Array) -> Array:
        ones = [1] * (old.ndim - 1)
        is_first = jnp.arange(len(old)).reshape(-1, *ones) == 0
        return jnp.where(is_first, new, old)

    return jax.tree.map(choose, entering, state)


def _move_on(array: Array) -> Array:
    """Returns the rows of each stage at the next one."""
    return jnp.roll(array, 1, axis=0)


def _leave_last(outputs: Float[Array, "N S M T D"]) -> Float[Array, "B T D"]:
    """Returns the output of the last stage for all rows, in their order."""
    _, stages, *shape = outputs.shape
    # The first micro-batch arrives there after as many ticks as the model has stages.
    outputs = outputs[stages - 1 :]
    is_last = jnp.arange(stages)[:, None, None, None] == stages - 1
    # A sum, since a slice would not say how the other devices get the output.
    parts = jnp.where(is_last, outputs, 0).sum(1)
    return parts.swapaxes(0, 1).reshape(-1, *shape[1:])


def _on_stages(state: PyTree) -> PyTree:
    """Constrains the rows of each stage to be on its devices."""

    def constrain(array: Array) -> Array:
        others = [None] * (array.ndim - 2)
        return shard(array, LAYERS, "batch", *others)

    return jax.tree.map(constrain, state)
