"""Devices as a mesh of three axes, and what lies where on it.

"data" splits the batch, and is summed over by hand. "fsdp" splits the batch too, and parameters
and Adam's moments with it. "tensor" splits heads, the inner layer and the vocabulary. What the
last two need is left to the compiler, by the rules of this module.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.fields import check_types
from jaxformer.layout import pvary
from jaxformer.nn.parameters import ParameterInfo

DATA_AXIS = "data"

# Which axis of the mesh the model's axes lie along; "batch" is what is left of it within "data".
RULES = {
    "batch": "fsdp",
    "d_model": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "d_ff": "tensor",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many ways devices share the work; the product is the number of devices.

    The result of a run does not depend on it. ``docs/scaling.md`` says when which is fast.

    Attributes:
      data: Parts of the batch; every one has a whole copy of the parameters. -1: all devices that
        the other two leave.
      fsdp: Parts of the batch that also share parameters and Adam's moments among them.
      tensor: Parts of heads, inner layer and vocabulary.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        """Refuses sizes that are no sizes."""
        check_types(self, "mesh")
        sizes = {name: getattr(self, name) for name in ("data", "fsdp", "tensor")}
        for name, size in sizes.items():
            if size < 1 and size != -1:
                raise UserError(f"mesh.{name} must be at least 1, or -1 for the rest: got {size}")
        if list(sizes.values()).count(-1) > 1:
            raise UserError(f"only one size of the mesh may be -1: got {sizes}")


def make_mesh(config: MeshConfig | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """All devices, or those given, as a mesh with the axes "data", "fsdp" and "tensor".

    Slices of TPUs, and nodes of GPUs, are laid along the first axes: what "tensor" sums stays
    within one of them if it can.

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
    names = (DATA_AXIS, "fsdp", "tensor")
    return Mesh(_arrange(sizes, devices), names, axis_types=(AxisType.Auto,) * 3)


def _arrange(sizes: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
    """Devices in the order in which they reach one another fastest."""
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
    """A whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def rows_split(mesh: Mesh) -> NamedSharding:
    """The layout of batches: rows split over "data" and "fsdp"."""
    return NamedSharding(mesh, PartitionSpec((DATA_AXIS, "fsdp")))


def row_shards(mesh: Mesh) -> int:
    """How many parts the rows of a batch are split into."""
    return mesh.shape[DATA_AXIS] * mesh.shape["fsdp"]


def row_parts(mesh: Mesh) -> list[int]:
    """Which parts of the rows of every batch, of :func:`row_shards`, this process reads.

    Not always neighbors: TPUs are in the order in which they are wired. Processes whose devices
    only split the tensors of one another read the same rows.
    """
    process = jax.process_index()
    parts = mesh.devices.reshape(row_shards(mesh), -1)
    return [n for n, part in enumerate(parts) if any(d.process_index == process for d in part)]


class BatchShards(NamedTuple):
    """The equal, contiguous shards that the rows of every batch have on a mesh.

    Attributes:
      row_multiple: Rows of a global batch must be divisible by this: by the number of shards, and
        within each of them by the micro-batches of a step.
      local_shards: Numbers of the shards that this process reads, ascending.
      shard_count: Number of all shards.
    """

    row_multiple: int
    local_shards: Sequence[int]
    shard_count: int

    @classmethod
    def of(cls, mesh: Mesh, gradient_accumulation: int = 1) -> "BatchShards":
        """The shards of a mesh, for steps of so many micro-batches."""
        count = row_shards(mesh)
        return cls(count * gradient_accumulation, row_parts(mesh), count)

    def local(self, batch: PyTree) -> PyTree:
        """Takes the rows of this process from a global batch of NumPy arrays."""
        if len(self.local_shards) == self.shard_count:
            return batch
        return jax.tree.map(
            lambda a: np.concatenate(
                [np.split(a, self.shard_count)[shard] for shard in self.local_shards]
            ),
            batch,
        )


def split_over(mesh: Mesh, params: PyTree, info: PyTree) -> PyTree:
    """Returns the sharding of every parameter.

    An axis that cannot be split evenly is not split, nor is an array that nothing is known about.

    Args:
      mesh: As :func:`make_mesh` makes it.
      params: Arrays or their shapes.
      info: A :class:`~jaxformer.nn.ParameterInfo` or None in the place of each array.
    """

    def sharding(
        leaf: jax.Array | jax.ShapeDtypeStruct, facts: ParameterInfo | None
    ) -> NamedSharding:
        if facts is None or len(facts.axes) != leaf.ndim:
            return replicated(mesh)
        axes = [RULES.get(name or "") for name in facts.axes]
        fits = [
            axis if axis and size % mesh.shape[axis] == 0 else None
            for axis, size in zip(axes, leaf.shape, strict=True)
        ]
        return NamedSharding(mesh, PartitionSpec(*fits))

    return jax.tree.map(sharding, params, info)


def split_alike(mesh: Mesh, opt_state: PyTree, params: PyTree, layout: PyTree) -> PyTree:
    """The layout of an optimizer's state.

    An array whose path ends with a parameter's path, and that has the parameter's shape, lies like
    the parameter: Adam's moments. All others are whole on every device: counts, and the rows and
    columns of Adafactor.

    Args:
      mesh: As :func:`make_mesh` makes it.
      opt_state: Arrays or their shapes.
      params: Arrays or their shapes.
      layout: Of the parameters, from :func:`split_over`.
    """
    shardings = {
        path: (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(layout), strict=True
        )
    }

    def sharding(path: tuple, leaf: jax.Array | jax.ShapeDtypeStruct) -> NamedSharding:
        for start in range(len(path) + 1):
            shape, found = shardings.get(path[start:], (None, None))
            if found is not None and shape == leaf.shape:
                return found
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(sharding, opt_state)


def to_devices(mesh: Mesh, batch: PyTree, gradient_accumulation: int = 1) -> PyTree:
    """This process's rows of a batch, as its part of the global batch on the devices.

    Raises:
      UserError: The rows cannot be divided among the devices, and then into micro-batches.
    """
    sharding, parts, count = rows_split(mesh), row_parts(mesh), row_shards(mesh)

    def place(local: np.ndarray) -> jax.Array:
        if np.ndim(local) == 0 or local.shape[0] % (len(parts) * gradient_accumulation):
            raise UserError(
                f"expected batches of rows divisible by {count * gradient_accumulation}, for "
                f"{count} shards of {gradient_accumulation} micro-batches: got an array of shape "
                f"{np.shape(local)}; add rows that count nothing"
            )
        share = local.shape[0] // len(parts)

        def part(index: Any) -> np.ndarray:
            start = share * parts.index((index[0].start or 0) // share)
            return local[start : start + share]

        return jax.make_array_from_callback((count * share, *local.shape[1:]), sharding, part)

    return jax.tree.map(place, batch)


def sum_over_data(
    mesh: Mesh, function: Callable[..., PyTree], in_specs: tuple[PartitionSpec, ...]
) -> Callable[..., PyTree]:
    """Runs ``function`` on each part of the data axis, and sums what it returns over them.

    Its first argument, the parameters, may differ between the parts as far as autodiff knows:
    otherwise it would sum gradients over the devices by itself, and everything be counted once
    per device. The rules of this module hold within.
    """
    parts = mesh.shape[DATA_AXIS]

    def on_one_part(params: PyTree, *rest: PyTree) -> PyTree:
        with _rules_of(mesh):
            # XLA cannot sum over an axis of one where other axes are left to it.
            if parts == 1:
                return function(params, *rest)
            return jax.lax.psum(function(_varying(params), *rest), DATA_AXIS)

    return jax.shard_map(
        on_one_part,
        mesh=mesh,
        in_specs=(PartitionSpec(), *in_specs),
        out_specs=PartitionSpec(),
        axis_names={DATA_AXIS},
        check_vma=parts > 1,
    )


@contextlib.contextmanager
def _rules_of(mesh: Mesh) -> Iterator[None]:
    # Before jax 0.8 the mesh is not known within a shard_map unless it is entered.
    known = contextlib.nullcontext() if hasattr(jax.lax, "pcast") else mesh
    with known, nn.logical_axis_rules(tuple(RULES.items())):
        yield


def _varying(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda a: pvary(a, DATA_AXIS), tree)
