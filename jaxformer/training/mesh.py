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
from jaxformer.fields import check_types
from jaxformer.layout import pvary
from jaxformer.nn.parameters import ParameterInfo

DATA_AXIS = "data"
AXES = (DATA_AXIS, "fsdp", "tensor")

Leaf = jax.Array | jax.ShapeDtypeStruct

# Maps axes of the model to axes of the mesh. "batch" is the batch within one shard of "data".
RULES = {"batch": "fsdp", "d_model": "fsdp", "vocab": "tensor", "heads": "tensor", "d_ff": "tensor"}


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

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        check_types(self, "mesh")
        sizes = dataclasses.asdict(self)
        for name, size in sizes.items():
            if size < 1 and size != -1:
                raise UserError(f"mesh.{name} must be at least 1, or -1 for the rest: got {size}")
        if list(sizes.values()).count(-1) > 1:
            raise UserError(f"only one size of the mesh may be -1: got {sizes}")


def make_mesh(config: MeshConfig | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """Arranges devices in a mesh with the axes "data", "fsdp" and "tensor".

    TPU slices and GPU nodes lie along the first axes, so that sums over "tensor" stay within a
    slice or node if possible.

    Args:
      config: Sizes of the axes; by default, all devices along "data".
      devices: All devices by default.

    Raises:
      UserError: The sizes do not multiply to the number of devices, or are not in a MeshConfig.
    """
    config = MeshConfig() if config is None else config
    if not isinstance(config, MeshConfig):
        raise UserError(
            f"expected a MeshConfig, got {type(config).__name__}; give config.mesh or "
            "MeshConfig(data=...)"
        )
    devices = jax.devices() if devices is None else devices
    sizes = [config.data, config.fsdp, config.tensor]
    known = math.prod(size for size in sizes if size != -1)
    if -1 in sizes and len(devices) % known == 0:
        sizes[sizes.index(-1)] = len(devices) // known
    if math.prod(sizes) != len(devices):
        raise UserError(
            f"mesh.data={config.data}, mesh.fsdp={config.fsdp}, mesh.tensor={config.tensor} do not "
            f"fit {len(devices)} device(s): expected sizes with that product; -1 stands for the "
            "rest"
        )
    return Mesh(_arrange(sizes, devices), AXES, axis_types=(AxisType.Auto,) * 3)


def _arrange(sizes: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
    """Orders devices so that neighbors communicate fastest."""
    left = len({getattr(device, "slice_index", 0) for device in devices})
    if left == 1:
        return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    slices = []
    for size in sizes:
        slices.append(math.gcd(size, left))
        left //= slices[-1]
    within = [size // along for size, along in zip(sizes, slices, strict=True)]
    return mesh_utils.create_hybrid_device_mesh(
        within, slices, devices, allow_split_physical_axes=True
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
        process, count = jax.process_index(), mesh.shape[DATA_AXIS] * mesh.shape["fsdp"]
        devices = enumerate(mesh.devices.reshape(count, -1))
        local = [n for n, those in devices if any(d.process_index == process for d in those)]
        return cls(count * gradient_accumulation, local, count)

    def local(self, batch: PyTree) -> PyTree:
        """Returns the rows of this process from a global batch of NumPy arrays."""
        if len(self.local_shards) == self.shard_count:
            return batch

        def rows(array: np.ndarray) -> np.ndarray:
            shards = np.split(array, self.shard_count)
            return np.concatenate([shards[number] for number in self.local_shards])

        return jax.tree.map(rows, batch)


def param_shardings(mesh: Mesh, params: PyTree, info: PyTree) -> PyTree:
    """Returns each parameter's sharding from its ``info`` or None; uneven axes are not split."""

    def sharding(leaf: Leaf, parameter: ParameterInfo | None) -> NamedSharding:
        if parameter is None or len(parameter.axes) != leaf.ndim:
            return replicated(mesh)
        axes = [RULES.get(name or "") for name in parameter.axes]
        sizes = zip(axes, leaf.shape, strict=True)
        fits = [axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in sizes]
        return NamedSharding(mesh, PartitionSpec(*fits))

    return jax.tree.map(sharding, params, info)


def opt_state_shardings(mesh: Mesh, opt_state: PyTree, params: PyTree, layout: PyTree) -> PyTree:
    """Returns the sharding of every array of an optimizer's state.

    An array whose path ends with a parameter's path, and which has the parameter's shape, is
    sharded like the parameter: Adam's moments, for instance. So is an array of one layer of a
    stack, whose path has the layer's index instead of a layer axis. All others are replicated, such
    as counts and the row and column statistics of Adafactor.
    """
    leaves = zip(jax.tree.leaves_with_path(params), jax.tree.leaves(layout), strict=True)
    shardings = {path: (leaf.shape, sharding) for (path, leaf), sharding in leaves}

    def sharding(path: jax.tree_util.KeyPath, leaf: Leaf) -> NamedSharding:
        for end in (path[start:] for start in range(len(path) + 1)):
            for known in (end, tuple(k for k in end if not isinstance(k, SequenceKey))):
                shape, found = shardings.get(known, ((), None))
                axes = len(end) - len(known)
                if found is not None and shape[axes:] == leaf.shape:
                    return NamedSharding(mesh, PartitionSpec(*found.spec[axes:]))
        return replicated(mesh)

    return jax.tree.map_with_path(sharding, opt_state)


def to_devices(mesh: Mesh, batch: PyTree, gradient_accumulation: int = 1) -> PyTree:
    """Transfers this process's rows of a batch of arrays to its devices, as global arrays."""
    shards, sharding = BatchShards.of(mesh, gradient_accumulation), batch_sharding(mesh)
    local_count, count = len(shards.local_shards), shards.shard_count

    def place(path: jax.tree_util.KeyPath, local: Any) -> jax.Array:
        _check_rows(f"batch{jax.tree_util.keystr(path)}", local)
        if local.shape[0] % (local_count * gradient_accumulation):
            raise UserError(
                f"expected batches of rows divisible by {shards.row_multiple}, for {count} shards "
                f"of {gradient_accumulation} micro-batches: got an array of shape "
                f"{np.shape(local)}; add rows that count nothing"
            )
        rows = local.shape[0] // local_count

        def shard(index: Any) -> np.ndarray | jax.Array:
            start = rows * shards.local_shards.index((index[0].start or 0) // rows)
            return local[start : start + rows]

        return jax.make_array_from_callback((count * rows, *local.shape[1:]), sharding, shard)

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
    if names != AXES:
        raise UserError(
            f"mesh: expected one from jaxformer.make_mesh, with the axes {', '.join(AXES)}: got "
            f"{type(mesh).__name__ if names is None else ', '.join(names)}"
        )


def sum_over_data(
    mesh: Mesh, function: Callable[..., PyTree], in_specs: tuple[PartitionSpec, ...]
) -> Callable[..., PyTree]:
    """Returns a function that runs ``function`` on each shard of "data" and sums the results.

    Autodiff must treat the first argument, the parameters, as different on each shard. Otherwise it
    would sum gradients over the devices itself, and every row would count once per device.
    The sharding rules of this module apply inside ``function``.
    """
    shards = mesh.shape[DATA_AXIS]
    # Before jax 0.8, shard_map knows its mesh only in the context of the mesh.
    known = contextlib.nullcontext() if hasattr(jax.lax, "pcast") else mesh

    def on_shard(params: PyTree, *rest: PyTree) -> PyTree:
        with known, nn.logical_axis_rules(tuple(RULES.items())):
            # XLA cannot sum over an axis of size 1 while it partitions the other axes.
            if shards == 1:
                return function(params, *rest)
            varying = jax.tree.map(lambda a: pvary(a, DATA_AXIS), params)
            return jax.lax.psum(function(varying, *rest), DATA_AXIS)

    return jax.shard_map(
        on_shard,
        mesh=mesh,
        in_specs=(PartitionSpec(), *in_specs),
        out_specs=PartitionSpec(),
        axis_names={DATA_AXIS},
        check_vma=shards > 1,
    )
