"""One training step over all devices: ``jax.jit(jax.shard_map(...))`` along the data axis.

Losses return sums and counts. They are summed over the devices once, and divided by the global
count (of target tokens, for instance) once. A step therefore does not depend on the number of
devices or micro-batches, even if the rows of a batch have different lengths.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Integer, PyTree

from jaxformer.errors import UserError
from jaxformer.layout import global_mesh
from jaxformer.nn.backend import backend
from jaxformer.training.averaging import Optimizer
from jaxformer.training.mesh import DATA_AXIS, batch_sharding, replicated, sum_over_data
from jaxformer.training.optimizer import path_of
from jaxformer.training.state import TrainState, all_finite
from jaxformer.training.task import Loss, Randomness, Sums, cached_by_function

_ADDED = {"grad_norm", "skipped"}  # names that the step adds to the sums of a loss
# Some rows of a batch, and their numbers in the global batch.
Rows = tuple[PyTree, Int[Array, " B"]]
# (state, batch, seed) -> (next state, sums of the batch), and the same for one seed
StepFunction = Callable[[TrainState, PyTree, Integer[Array, ""]], tuple[TrainState, Sums]]
CompiledStep = Callable[[TrainState, PyTree], tuple[TrainState, Sums]]


class TrainStep:
    """A jitted step from :func:`make_train_step`: call it, or first :meth:`compile` it."""

    def __init__(self, function: StepFunction, mesh: Mesh, seed: int) -> None:
        # The seed is an argument of the program, so that other seeds need no compilation.
        self._function, self._mesh, self._seed = function, mesh, np.uint32(seed)
        self._jitted: jax.stages.Wrapped | None = None

    def __call__(self, state: TrainState, batch: PyTree) -> tuple[TrainState, Sums]:
        """Takes one step. The state is donated."""
        with global_mesh(self._mesh):
            return self._jit(state)(state, batch, self._seed_on_devices)

    def lower(self, state: TrainState, batch: PyTree) -> jax.stages.Lowered:
        """Lowers the step for these shapes, like ``jax.jit(...).lower``; the seed is an input."""
        with global_mesh(self._mesh):
            return self._jit(state).lower(state, batch, self._seed)

    def compile(self, state: TrainState, batch: PyTree) -> CompiledStep:
        """Returns the step compiled for these shapes; under ``jax.disable_jit()``, the step."""
        if jax.config.jax_disable_jit:
            return self
        program, seed = self.lower(state, batch).compile(), self._seed_on_devices
        return lambda state, batch: program(state, batch, seed)

    @functools.cached_property
    def _seed_on_devices(self) -> Array:
        with jax.transfer_guard_host_to_device("allow"):
            return jax.make_array_from_callback((), replicated(self._mesh), lambda _: self._seed)

    def _jit(self, state: TrainState) -> jax.stages.Wrapped:
        """Returns the step, jitted for the layout of the first state."""
        if self._jitted is None:
            whole = replicated(self._mesh)

            def sharding_of(leaf: object) -> NamedSharding:
                found = getattr(leaf, "sharding", None)
                if isinstance(found, NamedSharding) and found.mesh == self._mesh:
                    return found
                return whole

            layout = jax.tree.map(sharding_of, state)
            self._jitted = jax.jit(
                self._function,
                donate_argnums=0,
                in_shardings=(layout, batch_sharding(self._mesh), whole),
                out_shardings=(layout, whole),
                compiler_options=dict(backend().compiler_options),
            )
        return self._jitted


def make_train_step(
    loss: Loss, optimizer: Optimizer, mesh: Mesh, *, seed: int = 0, gradient_accumulation: int = 1
) -> TrainStep:
    """Returns the jitted step: forward, backward, one psum, one update. The state is donated.

    The rows of a batch must be divisible by ``BatchShards.of(mesh, ...).row_multiple``: the batch
    shards of the mesh times ``gradient_accumulation``.

    Departs from the paper: a step that would make parameters or optimizer state NaN or Inf changes
    neither, on any device. A step whose loss or gradient norm is not finite is skipped, too.

    Args:
      loss: Sums by name; "loss" over "count" is minimized. See :meth:`~jaxformer.Task.loss`.
      optimizer: Any gradient transformation.
      mesh: Mesh from :func:`~jaxformer.make_mesh`.
      seed: Seed of the key of :class:`~jaxformer.Randomness`, together with the step.
      gradient_accumulation: Micro-batches per step. They change the result only by floating-point
        rounding.

    Returns:
      A :class:`TrainStep`: ``(state, batch) -> (state, sums)``. The sums are over the global batch
      and include "grad_norm", the global norm of the gradient before clipping, and "skipped": 1 if
      the update was not finite, else 0.
    """
    return TrainStep(_make_step_function(loss, optimizer, mesh, gradient_accumulation), mesh, seed)


@cached_by_function
def _make_step_function(
    loss: Loss, optimizer: Optimizer, mesh: Mesh, gradient_accumulation: int
) -> StepFunction:
    gradients_and_sums = global_sums(loss, mesh, gradient_accumulation, gradients=True)
    only_sums = global_sums(loss, mesh, gradient_accumulation)

    def train_step(
        state: TrainState, batch: PyTree, seed: Integer[Array, ""]
    ) -> tuple[TrainState, Sums]:
        key = step_key(seed, state.step)
        gradients, sums = gradients_and_sums(state.params, batch, key)
        count = jnp.where(sums["count"] == 0, 1, sums["count"])

        def per_count(total: Array) -> Array:
            is_integer = jnp.issubdtype(count.dtype, jnp.integer)
            return total / (count.astype(total.dtype) if is_integer else count)

        # Before the division, whose result XLA would otherwise write to memory for its two uses.
        norm = per_count(global_norm(gradients))
        # An optimizer whose gradients are wider than its parameters would widen its state, too.
        gradients = jax.tree.map(
            lambda total, p: per_count(total).astype(p.dtype), gradients, state.params
        )

        def value_fn(params: PyTree) -> Array:
            return per_count(only_sums(params, batch, key)[1]["loss"])

        value = {"value": per_count(sums["loss"]), "grad": gradients, "value_fn": value_fn}
        state, skipped = _update(state, gradients, norm, optimizer, value)
        return state, sums | {"grad_norm": norm, "skipped": skipped}

    return train_step


def step_key(seed: int | Integer[Array, ""], step: Int[Array, ""]) -> Array:
    """Returns the key of the random numbers of the step after ``step``."""
    return jax.random.fold_in(jax.random.key(seed + 1), step)


def global_norm(gradients: PyTree) -> Float[Array, ""]:
    """Returns the norm of all gradients, in float32 or wider."""
    return optax.tree.norm(jax.tree.map(_widen, gradients))


def _widen(array: Array) -> Array:
    """Returns a floating-point array in float32 or wider, for sums; other arrays unchanged."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return array
    return array.astype(np.promote_types(array.dtype, np.float32))


def _update(
    state: TrainState,
    gradients: PyTree,
    norm: Float[Array, ""],
    optimizer: Optimizer,
    loss: dict[str, Any],
) -> tuple[TrainState, Int[Array, ""]]:
    """Returns the next state, and 1 if its update was skipped.

    ``loss`` is the loss's value, gradient and function under optax's names, for line searches and
    for transformations that adapt to it, such as ``optax.contrib.reduce_on_plateau``.
    """
    optimizer = optax.with_extra_args_support(optimizer)
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params, **loss)
    params = optax.apply_updates(state.params, updates)
    # Not the gradients: the square of a finite gradient above 1e19, Adam's second moment, is Inf.
    # Clipping would turn finite gradients, whose norm overflows, into an update of zero.
    finite = all_finite(params, opt_state) & jnp.isfinite(norm) & jnp.isfinite(loss["value"])
    new, old = (params, opt_state), (state.params, state.opt_state)
    _check_structure(new, old)
    params, opt_state = jax.tree.map(functools.partial(jnp.where, finite), new, old)
    _check_arrays(opt_state, state.opt_state)
    skipped = (~finite).astype(jnp.int32)
    in_row = jnp.where(finite, 0, state.skipped_in_row + 1)
    return TrainState(state.step + 1, params, opt_state, state.skipped + skipped, in_row), skipped


def _check_structure(new: PyTree, old: PyTree) -> None:
    expected, found = jax.tree.structure(old), jax.tree.structure(new)
    if found != expected:
        raise UserError(
            "optimizer: expected update to return parameters and a state with the structure "
            f"{expected!s:.300}: got {found!s:.300}"
        )


def _check_arrays(new: PyTree, old: PyTree) -> None:
    """Checks that the optimizer's state after an update can be the input of the next update."""
    for (path, after), before in zip(
        jax.tree.leaves_with_path(new), jax.tree.leaves(old), strict=True
    ):
        if (after.dtype, after.shape) != (before.dtype, before.shape):
            raise UserError(
                f"optimizer: expected {path_of(path)} in its state to stay {before.dtype} of shape "
                f"{before.shape}, but an update makes it {after.dtype} of shape {after.shape}; "
                "let init return what update does, or give all parameters one dtype"
            )


def gradients_of(
    loss: Loss, params: PyTree, batch: PyTree, randomness: Randomness
) -> tuple[PyTree, Sums]:
    """Returns the gradient of the sum "loss" of some rows, and all sums.

    Gradients are in float32 or wider, since they are yet to be summed over micro-batches and
    devices.
    """

    def sums(params: PyTree) -> tuple[Array, Sums]:
        sums = checked_sums(loss(params, batch, randomness))
        return sums["loss"], sums

    gradients, found = jax.grad(sums, has_aux=True)(params)
    return jax.tree.map(_widen, gradients), found


def global_sums(
    loss: Loss, mesh: Mesh, gradient_accumulation: int, *, gradients: bool = False
) -> Callable[[PyTree, PyTree, Array], tuple[PyTree, Sums]]:
    """Returns a function that sums a loss, and optionally gradients, over all micro-batches."""

    def on_shard(params: PyTree, batch: PyTree, key: Array) -> tuple[PyTree, Sums]:
        def on_rows(rows: Rows) -> tuple[PyTree, Sums]:
            randomness = Randomness(key, rows[1])
            if gradients:
                return gradients_of(loss, params, rows[0], randomness)
            return (), checked_sums(loss(params, rows[0], randomness))

        def add(total: PyTree, micro_batch: Rows) -> tuple[PyTree, Sums]:
            arrays, sums = on_rows(micro_batch)
            return jax.tree.map(jnp.add, total, arrays), sums

        size, count = jax.tree.leaves(batch)[0].shape[0], gradient_accumulation
        row_ids = jax.lax.axis_index(DATA_AXIS) * size + jnp.arange(size, dtype=jnp.int32)
        if count == 1:
            return on_rows((batch, row_ids))
        # Strided, so that each micro-batch has rows of every device.
        micro_batches = jax.tree.map(
            lambda a: a.reshape(-1, count, *a.shape[1:]).swapaxes(0, 1), (batch, row_ids)
        )
        total = jax.tree.map(lambda p: _widen(jnp.zeros_like(p)), params if gradients else ())
        total, stacked_sums = jax.lax.scan(add, total, micro_batches)
        return total, jax.tree.map(lambda a: a.sum(0), stacked_sums)

    return sum_over_data(mesh, on_shard, (PartitionSpec(DATA_AXIS), PartitionSpec()))


def checked_sums(sums: object) -> Sums:
    """Returns the sums of a loss as arrays, with "hits:count" for a pair "hits"; refuses others.

    Floating-point sums are converted to float32 or wider, before they are added up.
    """
    if not isinstance(sums, dict) or not {"loss", "count"} <= sums.keys() or _ADDED & sums.keys():
        found = sorted(sums) if isinstance(sums, dict) else type(sums).__name__
        raise UserError(
            'loss: expected a dict of sums with "loss", "count" and any others but "skipped" and '
            f'"grad_norm", got {found}'
        )
    for name, value in [*sums.items()]:
        is_pair = isinstance(value, tuple) and len(value) == 2 and name not in ("loss", "count")
        if ":" in name or (isinstance(value, tuple) and not is_pair):
            raise UserError(f"loss: expected a sum, or a pair of a sum and its count: got {name!r}")
        if isinstance(value, tuple):
            sums = sums | {name: value[0], f"{name}:count": value[1]}
    sums = {name: _widen(jnp.asarray(value)) for name, value in sums.items()}
    for name, value in sums.items():
        if value.ndim:
            raise UserError(
                f'loss: expected sums over the rows, got "{name}" of shape {value.shape}; sum it'
            )
    return sums
