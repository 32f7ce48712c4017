"""The sharding of arrays over the device mesh, and sums over its shards.

The compiler inserts the communication along all axes but "data", from the rules of this module.
"""

import contextlib
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import SequenceKey
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.layout import pvary
from jaxformer.nn.parameters import LAYERS, ParameterInfo
from jaxformer.training.mesh import DATA_AXIS, PIPE_AXIS, num_stages

# Maps axes of the model to axes of the mesh. "batch" is the batch within one shard of "data".
RULES = {
    LAYERS: PIPE_AXIS,
    "batch": "fsdp",
    "d_model": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "d_ff": "tensor",
}
Leaf = jax.Array | jax.ShapeDtypeStruct


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that is copied to every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of batches: rows split over "data" and "fsdp"."""
    return NamedSharding(mesh, PartitionSpec((DATA_AXIS, "fsdp")))


class BatchShards(NamedTuple):
    """Equal, contiguous shards of the rows of every batch on a mesh.

    Attributes:
      row_multiple: Divisor of the rows of every global batch: the number of shards times the number
        of micro-batches per step.
      local_shards: Numbers of the shards that this process reads, ascending.
      shard_count: Number of all shards.
    """

    row_multiple: int
    local_shards: Sequence[int]
    shard_count: int

    @classmethod
    def of(cls, mesh: Mesh, gradient_accumulation: int = 1) -> "BatchShards":
        """Returns the shards of a mesh, for a number of micro-batches per step.

        Local shards are not always contiguous: TPUs are ordered by their interconnect. Processes
        whose devices differ only along the axes that do not split the batch read the same rows.
        """
        process = jax.process_index()
        shard_count = mesh.shape[DATA_AXIS] * mesh.shape["fsdp"]

        local_shards = []
        # Devices of one shard differ only along the other axes.
        batch_axes = [mesh.axis_names.index(name) for name in (DATA_AXIS, "fsdp")]
        devices_of_shards = np.moveaxis(mesh.devices, batch_axes, (0, 1)).reshape(shard_count, -1)
        for number, devices in enumerate(devices_of_shards):
            if any(device.process_index == process for device in devices):
                local_shards.append(number)

        return cls(
            row_multiple=shard_count * gradient_accumulation,
            local_shards=local_shards,
            shard_count=shard_count,
        )

    def local(self, batch: PyTree) -> PyTree:
        """Returns the rows of this process from a global batch of NumPy arrays."""
        if len(self.local_shards) == self.shard_count:
            return batch

        def local_rows(array: np.ndarray) -> np.ndarray:
            shards = np.split(array, self.shard_count)
            local = [shards[number] for number in self.local_shards]
            return np.concatenate(local)

        return jax.tree.map(local_rows, batch)


def param_shardings(mesh: Mesh, params: PyTree, info: PyTree) -> PyTree:
    """Returns each parameter's sharding from its ``info`` or None; uneven axes are not split.

    Raises:
      UserError: The mesh has stages, and the model no layers that they split evenly.
    """
    layers = set()

    def sharding(leaf: Leaf, parameter: ParameterInfo | None) -> NamedSharding:
        if parameter is None or len(parameter.axes) != leaf.ndim:
            return replicated(mesh)

        mesh_axes: list[str | None] = []
        for name, size in zip(parameter.axes, leaf.shape, strict=True):
            if name == LAYERS:
                layers.add(size)
            axis = RULES.get(name or "")
            is_split = axis in mesh.shape and size % mesh.shape[axis] == 0
            if is_split:
                mesh_axes.append(axis)
            else:
                mesh_axes.append(None)
        return NamedSharding(mesh, PartitionSpec(*mesh_axes))

    shardings = jax.tree.map(sharding, params, info)
    _check_stages(num_stages(mesh), layers)
    return shardings


def _check_stages(stages: int, layers: Set[int]) -> None:
    """Checks that stages split every stack evenly, given the numbers of their layers."""
    is_even = all(number % stages == 0 for number in layers)
    if stages == 1 or (layers and is_even):
        return

    found = ", ".join(map(str, sorted(layers))) or "none"
    raise UserError(
        f"mesh.pipe={stages} must divide the number of layers of every stack of the model, got "
        f"{found}; mesh.fsdp splits any parameters"
    )


def opt_state_shardings(
    mesh: Mesh,
    opt_state: PyTree,
    params: PyTree,
    layout: PyTree,
) -> PyTree:
    """Returns the sharding of every array of an optimizer's state.

    An array whose path ends with a parameter's path, and which has the parameter's shape, is
    sharded like the parameter: Adam's moments, for instance. So is an array of one layer of a
    stack, whose path has the layer's index instead of a layer axis, and an array of some layers,
    with a shorter layer axis. All others are replicated, such as counts and the row and column
    statistics of Adafactor.
    """
    # Shape and sharding of each parameter, by its path.
    known = {}
    leaves = jax.tree.leaves_with_path(params)
    shardings = jax.tree.leaves(layout)
    for (path, leaf), sharding in zip(leaves, shardings, strict=True):
        known[path] = (leaf.shape, sharding)

    def sharding_at(path: jax.tree_util.KeyPath, leaf: Leaf) -> NamedSharding:
        for start in range(len(path) + 1):
            end = path[start:]
            without_layer = _without_indices(end)
            for name in (end, without_layer):
                if name not in known:
                    continue
                shape, found = known[name]
                layer_axes = len(end) - len(name)
                spec = found.spec[layer_axes:]
                if shape[layer_axes:] == leaf.shape:
                    return NamedSharding(mesh, PartitionSpec(*spec))
                if _has_fewer_layers(leaf.shape, shape[layer_axes:], spec):
                    return NamedSharding(mesh, PartitionSpec(None, *spec[1:]))
        return replicated(mesh)

    return jax.tree.map_with_path(sharding_at, opt_state)


def _has_fewer_layers(shape: Sequence[int], whole: Sequence[int], spec: Sequence[Any]) -> bool:
    """Returns whether an array differs from another only by a shorter axis of layers."""
    if not shape or len(shape) != len(whole) or tuple(spec[:1]) not in ((None,), (PIPE_AXIS,)):
        return False
    return shape[0] < whole[0] and shape[1:] == whole[1:]


def _without_indices(path: jax.tree_util.KeyPath) -> jax.tree_util.KeyPath:
    """Returns a path without the numbers of the layers in it."""
    return tuple(key for key in path if not isinstance(key, SequenceKey))


def to_devices(mesh: Mesh, batch: PyTree, gradient_accumulation: int = 1) -> PyTree:
    """Transfers this process's rows of a batch of arrays to its devices, as global arrays."""
    shards = BatchShards.of(mesh, gradient_accumulation)
    sharding = batch_sharding(mesh)
    local_count = len(shards.local_shards)

    def place(path: jax.tree_util.KeyPath, local: Any) -> jax.Array:
        _check_rows(f"batch{jax.tree_util.keystr(path)}", local)
        local_rows, *row_shape = local.shape
        if local_rows % (local_count * gradient_accumulation):
            raise UserError(
                f"expected batches of rows divisible by {shards.row_multiple}, for "
                f"{shards.shard_count} shards of {gradient_accumulation} micro-batches: got an "
                f"array of shape {np.shape(local)}; add rows that count nothing"
            )
        shard_rows = local_rows // local_count

        def shard(index: Any) -> np.ndarray | jax.Array:
            first_row = index[0].start or 0  # None if there is only one shard
            number = first_row // shard_rows
            start = shard_rows * shards.local_shards.index(number)
            return local[start : start + shard_rows]

        shape = (shards.shard_count * shard_rows, *row_shape)
        return jax.make_array_from_callback(shape, sharding, shard)

    return jax.tree.map_with_path(place, batch)


def _check_rows(name: str, array: object) -> None:
    """Checks that a leaf of a batch is an array of numbers with at least one row."""
    if not isinstance(array, np.ndarray | np.generic | jax.Array):
        found = f"{array!r:.50} of type {type(array).__name__}; make NumPy arrays of lists"
    elif array.ndim == 0:
        found = "a scalar; repeat it for each row"
    elif array.dtype.kind in "OSUM":
        found = f"dtype {array.dtype}; keep texts and objects out of batches"
    elif len(array) == 0:
        found = f"no rows, shape {array.shape}; let Task.batches yield others"
    else:
        return
    raise UserError(
        f"{name}: expected an array of numbers with rows along its first axis, got {found}"
    )


def sum_over_data(
    mesh: Mesh,
    function: Callable[..., PyTree],
    in_specs: tuple[PartitionSpec, ...],
) -> Callable[..., PyTree]:
    """Returns a function that runs ``function`` on each shard of "data" and sums the results.

    Autodiff must treat the first argument, the parameters, as different on each shard. Otherwise it
    would sum gradients over the devices itself, and every row would count once per device.
    The sharding rules of this module apply inside ``function``.
    """
    shards = mesh.shape[DATA_AXIS]
    rules = tuple(RULES.items())
    # Before jax 0.8, shard_map knows its mesh only in the context of the mesh.
    mesh_context = contextlib.nullcontext() if hasattr(jax.lax, "pcast") else mesh

    def on_shard(params: PyTree, *rest: PyTree) -> PyTree:
        with mesh_context, nn.logical_axis_rules(rules):
            # XLA cannot sum over an axis of size 1 while it partitions the other axes.
            if shards == 1:
                return function(params, *rest)

            varying = jax.tree.map(lambda a: pvary(a, DATA_AXIS), params)
            sums = function(varying, *rest)
            return jax.lax.psum(sums, DATA_AXIS)

    return jax.shard_map(
        on_shard,
        mesh=mesh,
        in_specs=(PartitionSpec(), *in_specs),
        out_specs=PartitionSpec(),
        axis_names={DATA_AXIS},
        check_vma=shards > 1,
    )
