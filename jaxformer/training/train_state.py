"""The state of a training run: parameters, optimizer state and counters, sharded over the mesh."""

import collections
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int, PyTree

from jaxformer.errors import UserError
from jaxformer.layout import global_mesh
from jaxformer.nn.precision import at_least_float32
from jaxformer.runs import manifest, processes
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.training.averaging import EvaluatedParams, Optimizer
from jaxformer.training.loss_scale import LossScale
from jaxformer.training.paths import path_of
from jaxformer.training.placement import opt_state_shardings, param_shardings, replicated
from jaxformer.training.task import Init, Task, cached_by_function, describe_init


class TrainState(NamedTuple):
    """Everything that a run needs to resume exactly.

    Attributes:
      step: Number of steps taken, int32; also the number of the next batch.
      params: Model parameters, in the dtypes of ``Task.init``; float32 in models of this package.
      opt_state: State of the optimizer.
      skipped: Number of steps skipped because their updates were not finite, int32.
      skipped_in_row: Number of consecutive skipped steps, int32, without those that lowered the
        loss scale.
      loss_scale: Scale of the loss of layers in float16; None without one. A checkpoint has it in
        its metadata.
    """

    step: Int[Array, ""]
    params: PyTree
    opt_state: PyTree
    skipped: Int[Array, ""]
    skipped_in_row: Int[Array, ""]
    loss_scale: LossScale | None = None


# Key of the loss scale in the metadata of a checkpoint. Not every checkpoint of a run needs to have
# one: ``training.may_change`` allows another compute dtype.
LOSS_SCALE = "loss_scale"

_SAVED_FIELDS = tuple(name for name in TrainState._fields if name != LOSS_SCALE)
# The arrays of a TrainState in a checkpoint.
SavedState = collections.namedtuple("SavedState", _SAVED_FIELDS)
# The same, where ``params`` are evaluated, and training continues with ``trained``.
EvaluatedState = collections.namedtuple("EvaluatedState", (*_SAVED_FIELDS, "trained"))


def to_saved(state: TrainState) -> SavedState:
    """Returns the arrays of a state that a checkpoint has."""
    return SavedState(*(getattr(state, name) for name in _SAVED_FIELDS))


def evaluate_at(
    state: TrainState, evaluated: EvaluatedParams | None
) -> SavedState | EvaluatedState:
    """Returns the arrays to save, whose ``params`` are evaluated and loaded by all commands."""
    saved = to_saved(state)
    if evaluated is None:
        return saved

    params = evaluated(state.opt_state, state.params)
    found = manifest.describe_leaves(params)
    expected = manifest.describe_leaves(state.params)
    for name in found | expected:
        if found.get(name) != expected.get(name):
            raise UserError(
                f"evaluated: expected the names, shapes and dtypes of the parameters: got {name} "
                f"of {found.get(name, 'none')}, expected {expected.get(name, 'none')}"
            )

    return EvaluatedState(*saved._replace(params=params), trained=state.params)


# Returns the initial parameters of a new run, given the parameters that the task has created.
StartFrom = Callable[[PyTree], PyTree]


def init_state(
    init: Init,
    optimizer: Optimizer,
    mesh: Mesh,
    seed: int = 0,
    describe: Callable[[], PyTree] | None = None,
    start_from: StartFrom | None = None,
    *,
    scales_loss: bool = False,
) -> TrainState:
    """Returns fresh parameters and optimizer state, sharded over the mesh.

    The values do not depend on the mesh.

    Args:
      init: Creates the parameters from a key.
      optimizer: Any gradient transformation.
      mesh: Mesh from :func:`~jaxformer.make_mesh`.
      seed: Seed of the key.
      describe: See :meth:`~jaxformer.Task.describe`. By default, the description of the parameters
        that :func:`~jaxformer.nn.parameter` created.
      start_from: Returns other parameters of the same shapes, given the ones from ``init``.
      scales_loss: See :class:`~jaxformer.Task`.

    Raises:
      UserError: ``start_from`` returns parameters with other names or shapes.
    """
    with global_mesh(mesh):
        abstract = abstract_state(
            init,
            optimizer,
            mesh,
            describe=describe,
            scales_loss=scales_loss,
        )
        layout = jax.tree.map(lambda leaf: leaf.sharding, abstract)
        create_state = _make_create_state(init, optimizer, scales_loss)
        jitted = jax.jit(create_state, out_shardings=layout)
        state = jitted(jax.random.key(seed))
        if start_from is None:
            return state

        params = _place_like(state.params, start_from(state.params))
        # The optimizer's state may depend on the parameters.
        init_optimizer = jax.jit(optimizer.init, out_shardings=layout.opt_state)
        return state._replace(params=params, opt_state=init_optimizer(params))


def _place_like(fresh: PyTree, params: PyTree) -> PyTree:
    """Returns parameters cast and sharded like ``fresh``, which has the same names and shapes."""
    expected = _shapes_by_path(fresh)
    found = _shapes_by_path(params)
    for path in expected | found:
        if expected.get(path) != found.get(path):
            raise UserError(
                f"start_from: expected {path} of shape {expected.get(path, 'none')}, got "
                f"{found.get(path, 'none')}"
            )

    def place(array: Array, values: ArrayLike) -> Array:
        if isinstance(values, jax.Array) and values.sharding == array.sharding:
            return jnp.array(values, array.dtype)  # A copy, since the first step donates it.
        values = np.asarray(values, array.dtype)
        return jax.make_array_from_callback(
            values.shape,
            array.sharding,
            lambda index: values[index],
        )

    return jax.tree.map(place, fresh, params)


def _shapes_by_path(tree: PyTree) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for path, array in jax.tree.leaves_with_path(tree):
        shapes[jax.tree_util.keystr(path)] = np.shape(array)
    return shapes


def abstract_state(
    init: Init,
    optimizer: Optimizer,
    mesh: Mesh,
    describe: Callable[[], PyTree] | None = None,
    *,
    scales_loss: bool = False,
) -> TrainState:
    """Returns shapes, dtypes and shardings of :func:`init_state` without computing it."""
    info = describe_init(init) if describe is None else describe()
    create_state = _make_create_state(init, optimizer, scales_loss)
    shapes = jax.eval_shape(create_state, jax.random.key(0))

    # All counters are replicated.
    layout = jax.tree.map(lambda _: replicated(mesh), shapes)
    params = param_shardings(mesh, shapes.params, info)
    opt_state = opt_state_shardings(
        mesh,
        shapes.opt_state,
        shapes.params,
        layout=params,
    )
    layout = layout._replace(params=params, opt_state=opt_state)

    def place(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(place, shapes, layout)


@cached_by_function
def _make_create_state(
    init: Init,
    optimizer: Optimizer,
    scales_loss: bool,
) -> Callable[[Array], TrainState]:
    def create_state(key: Array) -> TrainState:
        params = init(key)
        zero = jnp.zeros((), jnp.int32)
        return TrainState(
            step=zero,
            params=params,
            opt_state=optimizer.init(params),
            skipped=zero,
            skipped_in_row=zero,
            loss_scale=LossScale.initial() if scales_loss else None,
        )

    return create_state


def restore_or_initialize(
    task: Task,
    optimizer: Optimizer,
    mesh: Mesh,
    seed: int,
    checkpoints: Checkpoints,
    start_from: StartFrom | None,
    *,
    before: int | None = None,
    evaluated: EvaluatedParams | None = None,
) -> tuple[TrainState, dict[str, Any]]:
    """Returns the newest state, from ``before`` a step, and its metadata, or a fresh state."""
    if jax.process_count() > 1:
        newest = checkpoints.newest_good_step()
        processes.check_agreement({"newest undamaged checkpoint in the workdir": str(newest)})

    template = abstract_state(task.init, optimizer, mesh, describe=task.describe)
    _check_parameters(template)

    steps = checkpoints.steps()
    if before is not None:
        steps = [step for step in steps if step < before]
    if not steps:
        state = init_state(
            task.init,
            optimizer,
            mesh,
            seed=seed,
            describe=task.describe,
            start_from=start_from,
            scales_loss=task.scales_loss,
        )
        _check_initial_values(state)
        return state, {}

    saved_template = to_saved(template)
    if evaluated is not None:
        saved_template = EvaluatedState(*saved_template, trained=template.params)
    # None allows an older step than the newest, if that is damaged.
    chosen = None if before is None else steps[-1]
    restored = checkpoints.restore(saved_template, step=chosen)
    assert restored is not None

    saved = jax.tree.map(_own_buffers, restored.state)
    loss_scale = None
    if task.scales_loss:
        loss_scale = LossScale.from_json(restored.metadata.get(LOSS_SCALE), mesh)
    state = TrainState(
        step=saved.step,
        params=saved.trained if isinstance(saved, EvaluatedState) else saved.params,
        opt_state=saved.opt_state,
        skipped=saved.skipped,
        skipped_in_row=saved.skipped_in_row,
        loss_scale=loss_scale,
    )
    return state, restored.metadata


def _own_buffers(array: jax.Array) -> jax.Array:
    """Returns a restored array in memory of JAX's own, and frees the old one.

    On CPUs, an array may share the memory of a NumPy array, depending on its alignment. The first
    step could not reuse such memory for its results, and would need more than later ones.
    """
    platforms = {device.platform for device in array.sharding.device_set}
    if platforms != {"cpu"}:
        return array

    own = jax.device_put(array, array.sharding, may_alias=False)
    own.block_until_ready()
    array.delete()
    return own


def _check_initial_values(state: TrainState) -> None:
    """Checks that no parameter of a new run is NaN or Inf."""
    if is_finite(state.params, state.opt_state):
        return
    for path, leaf in jax.tree.leaves_with_path(state.params):
        if not jnp.isfinite(leaf).all():
            raise UserError(
                f"expected finite parameters: {path_of(path)} holds NaN or Inf before the "
                "first step; add constants such as masks in the loss"
            )


def _check_parameters(state: TrainState) -> None:
    """Checks the sizes and dtypes of a state."""
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


def changed_hyperparameters(optimizer: Optimizer, state: TrainState) -> Iterator[str]:
    """Yields a line for each injected hyperparameter whose saved value overrides the given one."""
    kept = _injected_hyperparameters(state.opt_state)
    if not kept:
        return

    @jax.jit
    def initial_hyperparameters(params: PyTree) -> list[dict[str, Any]]:
        return _injected_hyperparameters(optimizer.init(params))

    given = initial_hyperparameters(state.params)
    kept, given = jax.device_get((kept, given))
    for old, new in zip(kept, given, strict=True):
        for name in old:
            if (old[name] != new[name]).any():
                yield (
                    f"optax.inject_hyperparams: {name} stays {old[name]:.4g}, as in the "
                    f"checkpoint, instead of {new[name]:.4g}; give a new workdir and start_from to "
                    "change it"
                )


def _injected_hyperparameters(opt_state: PyTree) -> list[dict[str, Any]]:
    """Returns the constants of ``optax.inject_hyperparams``, without values from schedules."""

    def is_injected(node: Any) -> bool:
        return hasattr(node, "hyperparams")

    found = []
    for node in jax.tree.leaves(opt_state, is_leaf=is_injected):
        if not is_injected(node):
            continue
        constants = {}
        for name, value in node.hyperparams.items():
            if name not in node.hyperparams_states:
                constants[name] = value
        found.append(constants)
    return found


def all_finite(params: PyTree, opt_state: PyTree) -> Bool[Array, ""]:
    """Returns whether no floating-point or complex array holds NaN or Inf.

    Sums propagate NaN and Inf, in a third of the time of ``isfinite`` and ``all`` on CPUs (jax
    0.10.2; LOG 2026-11-23). Scalars of the optimizer may be infinite, such as a first best loss.
    """
    arrays = jax.tree.leaves(params)
    for array in jax.tree.leaves(opt_state):
        if array.ndim:
            arrays.append(array)

    floats = []
    for array in arrays:
        if jnp.iscomplexobj(array):
            floats += [array.real, array.imag]
        elif jnp.issubdtype(array.dtype, jnp.floating):
            floats.append(array)

    dtype = at_least_float32(floats)
    sums = [array.sum(dtype=dtype) for array in floats]
    is_each_finite = jnp.isfinite(jnp.asarray(sums, dtype))
    return is_each_finite.all()


is_finite = jax.jit(all_finite)


def updates_of_schedule(state: TrainState) -> int:
    """Returns the number of updates that the optimizer's learning rate depends on.

    Not every step is an update: ``optax.MultiSteps`` makes one after several steps, and only then
    does a schedule within it count one.
    """
    schedules = _nodes(state.opt_state, optax.ScaleByScheduleState)
    counts = [node.count for node in schedules]
    if not counts:
        multi_steps = _nodes(state.opt_state, optax.MultiStepsState)
        counts = [node.gradient_step for node in multi_steps]
    if counts:
        return int(np.max(counts[0]))  # per_layer has a count for each layer, all the same.
    return int(state.step) - int(state.skipped)


def _nodes(opt_state: PyTree, kind: Any) -> list[Any]:
    """Returns the states of all transformations of one kind within an optimizer's state."""

    def is_kind(node: Any) -> bool:
        return isinstance(node, kind)

    leaves = jax.tree.leaves(opt_state, is_leaf=is_kind)
    return list(filter(is_kind, leaves))
