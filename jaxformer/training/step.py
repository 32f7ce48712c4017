"""One training step over all devices: ``jax.jit(jax.shard_map(...))`` along the data axis.

Losses return sums and counts. They are summed over the devices once, and divided by the global
count (of target tokens, for instance) once. A step therefore does not depend on the number of
devices or micro-batches, even if the rows of a batch have different lengths.
"""

import functools
from collections.abc import Callable, Sequence
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
from jaxformer.nn.pipeline import in_micro_batches
from jaxformer.training.averaging import Optimizer
from jaxformer.training.mesh import DATA_AXIS, num_stages
from jaxformer.training.paths import path_of
from jaxformer.training.placement import batch_sharding, replicated, sum_over_data
from jaxformer.training.task import Loss, Randomness, Sums, cached_by_function
from jaxformer.training.train_state import TrainState, all_finite

_NEEDED = {"loss", "count"}  # names of sums that every loss returns
_ADDED = {"grad_norm", "skipped"}  # names that the step adds to the sums of a loss
# Some rows of a batch, and their numbers in the global batch.
Rows = tuple[PyTree, Int[Array, " B"]]
# (state, batch, seed, *constants of the loss) -> (next state, sums of the batch)
StepFunction = Callable[..., tuple[TrainState, Sums]]
# The same for one seed and some constants.
CompiledStep = Callable[[TrainState, PyTree], tuple[TrainState, Sums]]


class TrainStep:
    """A jitted step from :func:`make_train_step`: call it, or first :meth:`compile` it."""

    def __init__(
        self,
        function: StepFunction,
        mesh: Mesh,
        seed: int,
        constants: Sequence[PyTree] = (),
    ) -> None:
        # These are arguments of the program, so that others need no compilation.
        self._inputs = (np.uint32(seed), *constants)
        self._function = function
        self._mesh = mesh
        self._jitted: jax.stages.Wrapped | None = None

    def __call__(self, state: TrainState, batch: PyTree) -> tuple[TrainState, Sums]:
        """Takes one step. The state is donated."""
        with global_mesh(self._mesh):
            step = self._jit(state)
            return step(state, batch, *self._inputs_on_devices)

    def lower(self, state: TrainState, batch: PyTree) -> jax.stages.Lowered:
        """Lowers the step for these shapes, like ``jax.jit(...).lower``.

        The seed and the constants of the loss are inputs.
        """
        with global_mesh(self._mesh):
            step = self._jit(state)
            return step.lower(state, batch, *self._inputs)

    def compile(self, state: TrainState, batch: PyTree) -> CompiledStep:
        """Returns the step compiled for these shapes; under ``jax.disable_jit()``, the step."""
        if jax.config.jax_disable_jit:
            return self
        program = self.lower(state, batch).compile()
        inputs = self._inputs_on_devices
        return lambda state, batch: program(state, batch, *inputs)

    @functools.cached_property
    def _inputs_on_devices(self) -> PyTree:
        whole = replicated(self._mesh)

        def place(array: np.ndarray | np.generic) -> Array:
            values = np.asarray(array)
            return jax.make_array_from_callback(values.shape, whole, lambda _: values)

        with jax.transfer_guard_host_to_device("allow"):
            return jax.tree.map(place, self._inputs)

    def _jit(self, state: TrainState) -> jax.stages.Wrapped:
        """Returns the step, jitted for the layout of the first state."""
        if self._jitted is not None:
            return self._jitted

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
            in_shardings=(layout, batch_sharding(self._mesh), *[whole for _ in self._inputs]),
            out_shardings=(layout, whole),
            compiler_options=dict(backend().compiler_options),
        )
        return self._jitted


def make_train_step(
    loss: Loss,
    optimizer: Optimizer,
    mesh: Mesh,
    *,
    seed: int = 0,
    gradient_accumulation: int = 1,
) -> TrainStep:
    """Returns the jitted step: forward, backward, one psum, one update. The state is donated.

    The rows of a batch must be divisible by ``BatchShards.of(mesh, ...).row_multiple``: the batch
    shards of the mesh times ``gradient_accumulation``.

    Departs from the paper: a step that would make parameters or optimizer state NaN or Inf changes
    neither, on any device. A step whose loss or gradient norm is not finite is skipped, too.

    Args:
      loss: Sums by name; "loss" over "count" is minimized. See :meth:`~jaxformer.Task.loss` and
        :attr:`~jaxformer.Task.training_loss`.
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
    function = loss
    constants: Sequence[PyTree] = ()
    if isinstance(loss, jax.tree_util.Partial):
        function = loss.func
        constants = loss.args
    step_function = _make_step_function(function, optimizer, mesh, gradient_accumulation)
    return TrainStep(step_function, mesh, seed, constants)


@cached_by_function
def _make_step_function(
    loss: Loss,
    optimizer: Optimizer,
    mesh: Mesh,
    gradient_accumulation: int,
) -> StepFunction:
    gradients_and_sums = global_sums(loss, mesh, gradient_accumulation, gradients=True)
    only_sums = global_sums(loss, mesh, gradient_accumulation)

    def train_step(
        state: TrainState,
        batch: PyTree,
        seed: Integer[Array, ""],
        *constants: PyTree,
    ) -> tuple[TrainState, Sums]:
        key = step_key(seed, state.step)
        scale = None if state.loss_scale is None else state.loss_scale.value
        gradients, sums = gradients_and_sums(state.params, batch, key, scale, constants)
        # A batch without a count has sums of zero.
        count = jnp.where(sums["count"] == 0, 1, sums["count"])

        def per_count(total: Array) -> Array:
            if jnp.issubdtype(count.dtype, jnp.integer):
                return total / count.astype(total.dtype)
            return total / count

        def unscaled_mean(total: Array) -> Array:
            mean = per_count(total)
            return mean if scale is None else mean / scale

        # Before the division, whose result XLA would otherwise write to memory for its two uses.
        norm = unscaled_mean(global_norm(gradients))

        # An optimizer whose gradients are wider than its parameters would widen its state, too.
        gradients = jax.tree.map(
            lambda total, p: unscaled_mean(total).astype(p.dtype),
            gradients,
            state.params,
        )

        def value_fn(params: PyTree) -> Array:
            _, sums = only_sums(params, batch, key, constants=constants)
            return per_count(sums["loss"])

        loss_arguments = {
            "value": per_count(sums["loss"]),
            "grad": gradients,
            "value_fn": value_fn,
        }
        state, skipped = _update(
            state,
            gradients,
            norm,
            optimizer=optimizer,
            loss=loss_arguments,
        )
        return state, sums | {"grad_norm": norm, "skipped": skipped}

    return train_step


def step_key(seed: int | Integer[Array, ""], step: Int[Array, ""]) -> Array:
    """Returns the key of the random numbers of the step after ``step``."""
    run_key = jax.random.key(seed + 1)
    return jax.random.fold_in(run_key, step)


def global_norm(gradients: PyTree) -> Float[Array, ""]:
    """Returns the norm of all gradients, in float32 or wider."""
    wide = jax.tree.map(_widen, gradients)
    return optax.tree.norm(wide)


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
    updates, opt_state = optimizer.update(
        gradients,
        state.opt_state,
        state.params,
        **loss,
    )
    params = optax.apply_updates(state.params, updates)

    # Not the gradients: the square of a finite gradient above 1e19, Adam's second moment, is Inf.
    # Clipping would turn finite gradients, whose norm overflows, into an update of zero.
    finite = all_finite(params, opt_state)
    finite &= jnp.isfinite(norm)
    finite &= jnp.isfinite(loss["value"])

    # A step that is not finite changes neither parameters nor optimizer state.
    new = (params, opt_state)
    old = (state.params, state.opt_state)
    _check_structure(new, old)
    choose = functools.partial(jnp.where, finite)
    params, opt_state = jax.tree.map(choose, new, old)
    _check_arrays(opt_state, state.opt_state)

    # A loss scale that falls may cure the next steps: they are not yet a row of failures.
    loss_scale = state.loss_scale
    is_cured = finite
    if loss_scale is not None:
        is_cured |= loss_scale.can_fall()
        loss_scale = loss_scale.after(finite)

    skipped = (~finite).astype(jnp.int32)
    skipped_in_row = jnp.where(is_cured, 0, state.skipped_in_row + 1)
    next_state = TrainState(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        skipped=state.skipped + skipped,
        skipped_in_row=skipped_in_row,
        loss_scale=loss_scale,
    )
    return next_state, skipped


def _check_structure(new: PyTree, old: PyTree) -> None:
    expected = jax.tree.structure(old)
    found = jax.tree.structure(new)
    if found != expected:
        raise UserError(
            "optimizer: expected update to return parameters and a state with the structure "
            f"{expected!s:.300}: got {found!s:.300}"
        )


def _check_arrays(new: PyTree, old: PyTree) -> None:
    """Checks that the optimizer's state after an update can be the input of the next update."""
    new_leaves = jax.tree.leaves_with_path(new)
    old_leaves = jax.tree.leaves(old)
    for (path, after), before in zip(new_leaves, old_leaves, strict=True):
        has_dtype = after.dtype == before.dtype
        has_shape = after.shape == before.shape
        if not (has_dtype and has_shape):
            raise UserError(
                f"optimizer: expected {path_of(path)} in its state to stay {before.dtype} of shape "
                f"{before.shape}, but an update makes it {after.dtype} of shape {after.shape}; "
                "let init return what update does, or give all parameters one dtype"
            )


def gradients_of(
    loss: Loss,
    params: PyTree,
    batch: PyTree,
    randomness: Randomness,
    scale: Float[Array, ""] | None = None,
) -> tuple[PyTree, Sums]:
    """Returns the gradient of the sum "loss" of some rows, times a scale, and all sums.

    Gradients are in float32 or wider, since they are yet to be summed over micro-batches and
    devices.
    """

    def sums(params: PyTree) -> tuple[Array, Sums]:
        sums = checked_sums(loss(params, batch, randomness))
        scaled = sums["loss"] if scale is None else sums["loss"] * scale
        return scaled, sums

    gradients, found = jax.grad(sums, has_aux=True)(params)
    return jax.tree.map(_widen, gradients), found


def global_sums(
    loss: Loss,
    mesh: Mesh,
    gradient_accumulation: int,
    *,
    gradients: bool = False,
) -> Callable[..., tuple[PyTree, Sums]]:
    """Returns a function that sums a loss, and optionally gradients, over all micro-batches.

    It takes parameters, a batch and a key, for gradients perhaps a scale of the loss, and perhaps
    constants, which the loss takes before the parameters.
    """

    def on_shard(
        params_and_constants: tuple[PyTree, Sequence[PyTree]],
        batch: PyTree,
        key: Array,
        scale: Array | None,
    ) -> tuple[PyTree, Sums]:
        params, constants = params_and_constants
        loss_of_params = functools.partial(loss, *constants)

        def on_rows(rows: Rows) -> tuple[PyTree, Sums]:
            arrays, row_ids = rows
            randomness = Randomness(key, row_ids)
            if gradients:
                return gradients_of(loss_of_params, params, arrays, randomness, scale)
            sums = checked_sums(loss_of_params(params, arrays, randomness))
            return (), sums

        shard_rows = jax.tree.leaves(batch)[0].shape[0]
        first_row = jax.lax.axis_index(DATA_AXIS) * shard_rows
        row_ids = first_row + jnp.arange(shard_rows, dtype=jnp.int32)
        if gradient_accumulation == 1 or num_stages(mesh) > 1:
            # Each stage of the layers works on another micro-batch.
            with in_micro_batches(gradient_accumulation):
                return on_rows((batch, row_ids))

        def split(array: Array) -> Array:
            # Strided, so that each micro-batch has rows of every device.
            row_shape = array.shape[1:]
            micro_batches = array.reshape(-1, gradient_accumulation, *row_shape)
            return micro_batches.swapaxes(0, 1)

        def add(total: PyTree, micro_batch: Rows) -> tuple[PyTree, Sums]:
            arrays, sums = on_rows(micro_batch)
            total = jax.tree.map(jnp.add, total, arrays)
            return total, sums

        micro_batches = jax.tree.map(split, (batch, row_ids))
        summed = params if gradients else ()
        zeros = jax.tree.map(lambda p: _widen(jnp.zeros_like(p)), summed)
        total, stacked_sums = jax.lax.scan(add, zeros, micro_batches)
        sums = jax.tree.map(lambda a: a.sum(0), stacked_sums)
        return total, sums

    in_specs = (PartitionSpec(DATA_AXIS), PartitionSpec(), PartitionSpec())
    sum_over_shards = sum_over_data(mesh, on_shard, in_specs)

    def compute(
        params: PyTree,
        batch: PyTree,
        key: Array,
        scale: Array | None = None,
        constants: Sequence[PyTree] = (),
    ) -> tuple[PyTree, Sums]:
        return sum_over_shards((params, constants), batch, key, scale)

    return compute


def checked_sums(sums: object) -> Sums:
    """Returns the sums of a loss as arrays, with "hits:count" for a pair "hits"; refuses others.

    Floating-point sums are converted to float32 or wider, before they are added up.
    """
    if not isinstance(sums, dict):
        raise _names_error(type(sums).__name__)
    has_needed = sums.keys() >= _NEEDED
    has_added = bool(sums.keys() & _ADDED)
    if not has_needed or has_added:
        raise _names_error(sorted(sums))

    arrays = {}
    for name, value in _split_pairs(sums).items():
        array = jnp.asarray(value)
        arrays[name] = _widen(array)

    for name, array in arrays.items():
        if array.ndim:
            raise UserError(
                f'loss: expected sums over the rows, got "{name}" of shape {array.shape}; sum it'
            )
    return arrays


def _names_error(found: object) -> UserError:
    return UserError(
        'loss: expected a dict of sums with "loss", "count" and any others but "skipped" and '
        f'"grad_norm", got {found}'
    )


def _split_pairs(sums: dict[str, Any]) -> dict[str, Any]:
    """Replaces each pair "hits" of a sum and its count by "hits" and, at the end, "hits:count"."""
    totals: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    for name, value in sums.items():
        if ":" in name:
            raise _pair_error(name)
        if not isinstance(value, tuple):
            totals[name] = value
            continue

        if name in _NEEDED or len(value) != 2:
            raise _pair_error(name)
        totals[name], counts[f"{name}:count"] = value
    return totals | counts


def _pair_error(name: str) -> UserError:
    return UserError(f"loss: expected a sum, or a pair of a sum and its count: got {name!r}")
