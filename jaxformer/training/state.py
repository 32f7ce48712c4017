"""The state of a training run: parameters, optimizer state and counters, sharded over the mesh."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from jaxformer.errors import UserError
from jaxformer.layout import global_mesh
from jaxformer.training.mesh import opt_state_shardings, param_shardings, replicated
from jaxformer.training.task import Init, cached_by_function, describe_init


class TrainState(NamedTuple):
    """Everything that a run needs to resume exactly.

    Attributes:
      step: Number of steps taken, int32; also the number of the next batch.
      params: Model parameters, float32.
      opt_state: State of the optimizer.
      skipped: Number of steps skipped because their updates were not finite, int32.
      skipped_in_row: Number of consecutive skipped steps, int32.
    """

    step: Int[Array, ""]
    params: PyTree
    opt_state: PyTree
    skipped: Int[Array, ""]
    skipped_in_row: Int[Array, ""]


# Returns the parameters that a new run starts from, given the ones that the task has created.
StartFrom = Callable[[PyTree], PyTree]
# The method describe of a Task.
Describe = Callable[[], PyTree]


def init_state(
    init: Init,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    seed: int = 0,
    describe: Describe | None = None,
    start_from: StartFrom | None = None,
) -> TrainState:
    """Returns fresh parameters and optimizer state, sharded over the mesh.

    The values do not depend on the mesh.

    Args:
      init: Creates the parameters from a key.
      optimizer: Any gradient transformation.
      mesh: Mesh from :func:`~jaxformer.training.mesh.make_mesh`.
      seed: Seed of the key.
      describe: See :meth:`~jaxformer.training.task.Task.describe`. By default, the description of
        the parameters that :func:`~jaxformer.nn.parameter` created.
      start_from: Returns other parameters of the same shapes, given the ones from ``init``.

    Raises:
      UserError: ``start_from`` returns parameters with other names or shapes.
    """
    with global_mesh(mesh):
        create, key = _make_create_state(init, optimizer), jax.random.key(seed)
        layout = _layout(init, jax.eval_shape(create, key), mesh, describe)
        state = jax.jit(create, out_shardings=layout)(key)
        if start_from is None:
            return state
        params = _placed_like(state.params, start_from(state.params))
        opt_state = jax.jit(optimizer.init, out_shardings=layout.opt_state)(params)
        return state._replace(params=params, opt_state=opt_state)


def _placed_like(fresh: PyTree, params: PyTree) -> PyTree:
    """Returns parameters cast and sharded like ``fresh``.

    Raises:
      UserError: They have other names or shapes.
    """
    expected, found = map(_shapes, (fresh, params))
    for path in expected | found:
        if expected.get(path) != found.get(path):
            raise UserError(
                f"start_from: expected {path} of shape {expected.get(path, 'none')}, got "
                f"{found.get(path, 'none')}"
            )

    def place(array: Array, values: Any) -> Array:
        if isinstance(values, jax.Array) and values.sharding == array.sharding:
            return jnp.array(values, array.dtype)  # A copy, since the first step donates it.
        values = np.asarray(values, array.dtype)
        return jax.make_array_from_callback(values.shape, array.sharding, lambda i: values[i])

    return jax.tree.map(place, fresh, params)


def _shapes(params: PyTree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree.leaves_with_path(params)
    return {jax.tree_util.keystr(path): np.shape(leaf) for path, leaf in leaves}


def abstract_state(
    init: Init,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    describe: Describe | None = None,
) -> TrainState:
    """Returns shapes, dtypes and shardings of :func:`init_state` without computing it."""
    shapes = jax.eval_shape(_make_create_state(init, optimizer), jax.random.key(0))
    return jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
        shapes,
        _layout(init, shapes, mesh, describe),
    )


def _layout(init: Init, state: TrainState, mesh: Mesh, describe: Describe | None) -> TrainState:
    """Returns the sharding of every array of the state."""
    info = describe_init(init) if describe is None else describe()
    whole, params = replicated(mesh), param_shardings(mesh, state.params, info)
    opt_state = opt_state_shardings(mesh, state.opt_state, state.params, params)
    layout: Any = (whole, params, opt_state, whole, whole)
    return TrainState(*layout)


@cached_by_function
def _make_create_state(
    init: Init, optimizer: optax.GradientTransformation
) -> Callable[[Array], TrainState]:
    def create_state(key: Array) -> TrainState:
        params = init(key)
        zero = jnp.zeros((), jnp.int32)
        return TrainState(zero, params, optimizer.init(params), zero, zero)

    return create_state
