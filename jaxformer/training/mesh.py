"""The device mesh with its three axes, and the sharding of arrays over it.

"data" splits the batch; sums over it are explicit. "fsdp" splits the batch, the parameters and
Adam's moments. "tensor" splits the heads, the inner layer and the vocabulary. The
compiler inserts the communication for the last two, from the rules of this module.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import SequenceKey
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.fields import check_values, setting
from jaxformer.layout import pvary
from jaxformer.nn.parameters import ParameterInfo

DATA_AXIS = "data"
AXES = (DATA_AXIS, "fsdp", "tensor")

Leaf = jax.Array | jax.ShapeDtypeStruct

# Maps axes of the model to axes of the mesh. "batch" is the batch within one shard of "data".
RULES = {
    "batch": "fsdp",
    "d_model": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "d_ff": "tensor",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Sizes of the three axes of the mesh; their product is the number of devices.

    They change the result of a run only by floating-point rounding. ``docs/scaling.md`` shows which
    sizes are fast.

    Attributes:
      data: Number of batch shards, each with a whole copy of the parameters; -1: all remaining
        devices.
      fsdp: Number of batch shards that also split the parameters and Adam's moments among them.
      tensor: Number of shards of the heads, the inner layer and the vocabulary.
    """

    data: int = setting(-1, "own")
    fsdp: int = setting(1, "own")
    tensor: int = setting(1, "own")

    def __post_init__(self) -> None:
        check_values(self, "mesh")
        sizes = dataclasses.asdict(self)
        for name, size in sizes.items():
            if size < 1 and size != -1:
                raise UserError(f"mesh.{name} must be at least 1, or -1 for the rest: got {size}")

        rest_count = list(sizes.values()).count(-1)
        if rest_count > 1:
            raise UserError(f"only one size of the mesh may be -1: got {sizes}")


def make_mesh(
    config: MeshConfig | None = None,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """Arranges devices in a mesh with the axes "data", "fsdp" and "tensor".

    TPU slices and GPU nodes lie along the first axes, so that sums over "tensor" stay within a
    slice or node if possible.

    Args:
      config: Sizes of the axes; by default, all devices along "data".
      devices: All devices by default.

    Raises:
      UserError: The sizes do not multiply to the number of devices, or are not in a MeshConfig.
    """
    if config is None:
        config = MeshConfig()
    if not isinstance(config, MeshConfig):
        raise UserError(
            f"expected a MeshConfig, got {type(config).__name__}; give config.mesh or "
            "MeshConfig(data=...)"
        )
    if devices is None:
        devices = jax.devices()

    sizes = [config.data, config.fsdp, config.tensor]
    known = math.prod(size for size in sizes if size != -1)
    if -1 in sizes and len(devices) % known == 0:
        rest = sizes.index(-1)
        sizes[rest] = len(devices) // known
    if math.prod(sizes) != len(devices):
        raise UserError(
            f"mesh.data={config.data}, mesh.fsdp={config.fsdp}, mesh.tensor={config.tensor} do not "
            f"fit {len(devices)} device(s): expected sizes with that product; -1 stands for the "
            "rest"
        )

    axis_types = (AxisType.Auto,) * len(AXES)
    return Mesh(_arrange(sizes, devices), AXES, axis_types=axis_types)


def _arrange(sizes: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
    """Orders devices so that neighbors communicate fastest."""
    slices = {getattr(device, "slice_index", 0) for device in devices}
    if len(slices) == 1:
        return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)

    # Slices lie along the first axes that they divide.
    left = len(slices)
    across = []
    for size in sizes:
        slices_along = math.gcd(size, left)
        across.append(slices_along)
        left //= slices_along
    within = []
    for size, slices_along in zip(sizes, across, strict=True):
        within.append(size // slices_along)
    return mesh_utils.create_hybrid_device_mesh(
        mesh_shape=within,
        dcn_mesh_shape=across,
        devices=devices,
        allow_split_physical_axes=True,
    )


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
        whose devices differ only along "tensor" read the same rows.
        """
        process = jax.process_index()
        shard_count = mesh.shape[DATA_AXIS] * mesh.shape["fsdp"]

        local_shards = []
        # Devices of one shard differ only along "tensor".
        devices_of_shards = mesh.devices.reshape(shard_count, -1)
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
            return np.concatenate([shards[number] for number in self.local_shards])

        return jax.tree.map(local_rows, batch)


def param_shardings(mesh: Mesh, params: PyTree, info: PyTree) -> PyTree:
    """Returns each parameter's sharding from its ``info`` or None; uneven axes are not split."""

    def sharding(leaf: Leaf, parameter: ParameterInfo | None) -> NamedSharding:
        if parameter is None or len(parameter.axes) != leaf.ndim:
            return replicated(mesh)

        mesh_axes: list[str | None] = []
        for name, size in zip(parameter.axes, leaf.shape, strict=True):
            axis = RULES.get(name or "")
            if axis is not None and size % mesh.shape[axis] == 0:
                mesh_axes.append(axis)
            else:
                mesh_axes.append(None)
        return NamedSharding(mesh, PartitionSpec(*mesh_axes))

    return jax.tree.map(sharding, params, info)


def opt_state_shardings(
    mesh: Mesh,
    opt_state: PyTree,
    params: PyTree,
    layout: PyTree,
) -> PyTree:
    """Returns the sharding of every array of an optimizer's state.

    An array whose path ends with a parameter's path, and which has the parameter's shape, is
    sharded like the parameter: Adam's moments, for instance. So is an array of one layer of a
    stack, whose path has the layer's index instead of a layer axis. All others are replicated, such
    as counts and the row and column statistics of Adafactor.
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
            without_layer = tuple(key for key in end if not isinstance(key, SequenceKey))
            for name in (end, without_layer):
                if name not in known:
                    continue
                shape, found = known[name]
                layer_axes = len(end) - len(name)
                if shape[layer_axes:] == leaf.shape:
                    return NamedSharding(mesh, PartitionSpec(*found.spec[layer_axes:]))
        return replicated(mesh)

    return jax.tree.map_with_path(sharding_at, opt_state)


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


def check_mesh(mesh: object) -> None:
    """Checks that a mesh has the axes of :func:`make_mesh`; raises a ``UserError``."""
    names = getattr(mesh, "axis_names", None)
    if names == AXES:
        return

    found = type(mesh).__name__ if names is None else ", ".join(names)
    raise UserError(
        f"mesh: expected one from jaxformer.make_mesh, with the axes {', '.join(AXES)}: got {found}"
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
