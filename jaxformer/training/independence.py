"""Checks before the first step that the loss does not depend on how rows are split."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from jaxformer.layout import global_mesh
from jaxformer.runs.reporting import describe_error
from jaxformer.training.mesh import AXES, DATA_AXIS
from jaxformer.training.placement import BatchShards, replicated
from jaxformer.training.step import global_sums, step_key
from jaxformer.training.task import Loss, Randomness, Sums, cached_by_function

_ROUNDING = 5e-3  # largest relative difference that rounding explains, even in bfloat16
# The program runs only once, so compile time matters more than run time.
_COMPILER_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def describe_dependence(
    loss: Loss,
    params: PyTree,
    batch: PyTree,
    mesh: Mesh,
    gradient_accumulation: int,
) -> str:
    """Describes how the loss of a few rows depends on shards and micro-batches; "" if it does not.

    Uses only one row of each micro-batch of each shard, so that they fit in one batch.
    """
    is_split = mesh.shape[DATA_AXIS] * gradient_accumulation > 1
    if not is_split or jax.config.jax_disable_jit:
        return ""

    try:
        with global_mesh(None):
            mean_losses = _make_mean_losses(loss, mesh, gradient_accumulation)
            lowered = mean_losses.lower(params, batch)
            program = lowered.compile(compiler_options=_COMPILER_OPTIONS)
            split, whole, magnitude = map(float, program(params, batch))
    except Exception as error:  # such as a loss for batches of one size
        return f"could not check that the rows of a batch are independent: {describe_error(error)}"

    # Also false for NaN, which the step itself reports.
    is_different = abs(split - whole) > _ROUNDING * magnitude
    if not is_different:
        return ""
    return (
        f"the loss of the same rows is {whole:.4g} in one batch, but {split:.4g} in the shards and "
        "micro-batches of this run. Return sums over independent rows, with random numbers from "
        "randomness.row_ids. A loss over the whole batch needs jax.lax.all_gather over 'data', or "
        "a mesh with data=1, and gradient_accumulation=1; see docs/training.md"
    )


@cached_by_function
def _make_mean_losses(loss: Loss, mesh: Mesh, gradient_accumulation: int) -> jax.stages.Wrapped:
    """Returns a jitted function: mean loss of split rows, mean loss of one batch, magnitude."""
    # The same devices, with all of the batch in one shard: axes "data" of size 1, "fsdp", "tensor".
    devices = mesh.devices.reshape(1, -1, mesh.shape["tensor"])
    one_shard = Mesh(devices, AXES, axis_types=mesh.axis_types)

    def with_magnitude(params: PyTree, batch: PyTree, randomness: Randomness | None) -> Sums:
        sums = loss(params, batch, randomness)
        loss_sum = jnp.asarray(sums["loss"], jnp.float32)
        count = jnp.asarray(sums["count"], jnp.float32)
        return {
            "loss": loss_sum,
            "count": count,
            "size": jnp.abs(loss_sum),
        }

    split_sums = global_sums(with_magnitude, mesh, gradient_accumulation)
    whole_sums = global_sums(with_magnitude, one_shard, gradient_accumulation=1)

    def first_rows(array: Array) -> Array:
        """Returns one row of each micro-batch of each shard."""
        row_shape = array.shape[1:]
        shard_count = BatchShards.of(mesh).shard_count
        shards = array.reshape(shard_count, -1, *row_shape)  # [shards, rows of a shard, ...]
        first = shards[:, :gradient_accumulation]
        return first.reshape(-1, *row_shape)

    def mean_losses(params: PyTree, batch: PyTree) -> tuple[Array, Array, Array]:
        rows = jax.tree.map(first_rows, batch)
        key = step_key(0, jnp.zeros((), jnp.int32))

        _, split = split_sums(params, rows, key)
        _, whole = whole_sums(params, rows, key)

        split_magnitude = split["size"] / split["count"]
        whole_magnitude = whole["size"] / whole["count"]
        magnitude = jnp.maximum(split_magnitude, whole_magnitude)

        split_mean = split["loss"] / split["count"]
        whole_mean = whole["loss"] / whole["count"]
        return split_mean, whole_mean, magnitude

    return jax.jit(mean_losses, out_shardings=replicated(mesh))
