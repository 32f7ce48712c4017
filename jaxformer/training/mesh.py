"""The device mesh and its axes.

"data" splits the batch; sums over it are explicit. "fsdp" splits the batch, the parameters and
Adam's moments. "tensor" splits the heads, the inner layer and the vocabulary. A mesh has an axis
"pipe" only if it splits the layers.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from jaxformer.errors import UserError
from jaxformer.fields import check_values, setting

DATA_AXIS = "data"
PIPE_AXIS = "pipe"
AXES = (DATA_AXIS, "fsdp", "tensor")
# Stages send little, so that they may be further apart than the devices of the axes after them.
AXES_WITH_STAGES = (DATA_AXIS, PIPE_AXIS, "fsdp", "tensor")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Sizes of the axes of the mesh; their product is the number of devices.

    They change the result of a run only by floating-point rounding. ``docs/scaling.md`` shows which
    sizes are fast.

    Attributes:
      data: Number of batch shards, each with a whole copy of the parameters; -1: all remaining
        devices.
      fsdp: Number of batch shards that also split the parameters and Adam's moments among them.
      tensor: Number of shards of the heads, the inner layer and the vocabulary.
      pipe: Number of stages, each with an equal part of the layers of every stack. Micro-batches
        go through them one after another: training.gradient_accumulation is their number.
    """

    data: int = setting(-1, "own")
    fsdp: int = setting(1, "own")
    tensor: int = setting(1, "own")
    pipe: int = setting(1, "own")

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
    """Arranges devices in a mesh with the axes "data", "fsdp" and "tensor", and perhaps "pipe".

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

    sizes = [config.data, config.pipe, config.fsdp, config.tensor]
    given_sizes = [size for size in sizes if size != -1]
    known = math.prod(given_sizes)
    if -1 in sizes and len(devices) % known == 0:
        rest = sizes.index(-1)
        sizes[rest] = len(devices) // known
    if math.prod(sizes) != len(devices):
        raise UserError(
            f"mesh.data={config.data}, mesh.pipe={config.pipe}, mesh.fsdp={config.fsdp}, "
            f"mesh.tensor={config.tensor} do not fit {len(devices)} device(s): expected sizes with "
            "that product; -1 stands for the rest"
        )

    axes = AXES_WITH_STAGES
    if sizes[1] == 1:
        del sizes[1]
        axes = AXES
    axis_types = (AxisType.Auto,) * len(axes)
    return Mesh(_arrange(sizes, devices), axes, axis_types=axis_types)


def num_stages(mesh: Mesh) -> int:
    """Returns the number of stages that a mesh splits layers into; 1 if it does not."""
    return mesh.shape.get(PIPE_AXIS, 1)


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


def check_mesh(mesh: object) -> None:
    """Checks that a mesh has the axes of :func:`make_mesh`; raises a ``UserError``."""
    names = getattr(mesh, "axis_names", None)
    if names in (AXES, AXES_WITH_STAGES):
        return

    found = type(mesh).__name__ if names is None else ", ".join(names)
    raise UserError(
        f"mesh: expected one from jaxformer.make_mesh, with the axes {', '.join(AXES)}: got {found}"
    )
