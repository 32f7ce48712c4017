"""The state of a training run: parameters, optimizer state and counters, sharded over the mesh."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.typing import ArrayLike
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
      mesh: Mesh from :func:`~jaxformer.make_mesh`.
      seed: Seed of the key.
      describe: See :meth:`~jaxformer.Task.describe`. By default, the description of the parameters
        that :func:`~jaxformer.nn.parameter` created.
      start_from: Returns other parameters of the same shapes, given the ones from ``init``.

    Raises:
      UserError: ``start_from`` returns parameters with other names or shapes.
    """
    with global_mesh(mesh):
        create = _make_create_state(init, optimizer)
        abstract = abstract_state(init, optimizer, mesh, describe)
        layout = jax.tree.map(lambda leaf: leaf.sharding, abstract)
        state = jax.jit(create, out_shardings=layout)(jax.random.key(seed))
        if start_from is None:
            return state
        params = _placed_like(state.params, start_from(state.params))
        opt_state = jax.jit(optimizer.init, out_shardings=layout.opt_state)(params)
        return state._replace(params=params, opt_state=opt_state)


def _placed_like(fresh: PyTree, params: PyTree) -> PyTree:
    """Returns parameters cast and sharded like ``fresh``, which has the same names and shapes."""
    expected, found = _shapes(fresh), _shapes(params)
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
    info = describe_init(init) if describe is None else describe()
    shapes = jax.eval_shape(_make_create_state(init, optimizer), jax.random.key(0))
    params = param_shardings(mesh, shapes.params, info)
    opt_state = opt_state_shardings(mesh, shapes.opt_state, shapes.params, params)
    layout = jax.tree.map(lambda _: replicated(mesh), shapes)
    layout = layout._replace(params=params, opt_state=opt_state)

    def place(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(place, shapes, layout)


@cached_by_function
def _make_create_state(
    init: Init, optimizer: optax.GradientTransformation
) -> Callable[[Array], TrainState]:
    def create_state(key: Array) -> TrainState:
        params = init(key)
        zero = jnp.zeros((), jnp.int32)
        return TrainState(zero, params, optimizer.init(params), zero, zero)

    return create_state
