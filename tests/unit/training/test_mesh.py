"""Meshes over TPUs and GPUs, simulated by objects with their coordinates."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from jaxformer.config import MeshConfig
from jaxformer.nn import ParameterInfo
from jaxformer.training.mesh import make_mesh
from jaxformer.training.optimizer import per_layer
from jaxformer.training.placement import BatchShards, opt_state_shardings, param_shardings


@dataclasses.dataclass(frozen=True)
class Device:
    id: int
    platform: str
    device_kind: str
    process_index: int
    slice_index: int
    coords: tuple[int, ...] = ()
    core_on_chip: int = 0


def mesh_of(sizes, devices):
    data, fsdp, tensor = sizes
    return make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor), devices)


def tpu_slice(rows, columns, slice_index=0, first_id=0, first_process=0):
    """A v5e slice with one host per 2 x 2 chips, in the order of ids: row by row."""
    hosts_in_row = columns // 2

    def chip(y, x):
        host = y // 2 * hosts_in_row + x // 2
        return Device(
            id=first_id + y * columns + x,
            platform="tpu",
            device_kind="TPU v5 lite",
            process_index=first_process + host,
            slice_index=slice_index,
            coords=(x, y, 0),
        )

    places = np.ndindex(rows, columns)
    return [chip(y, x) for y, x in places]


def gpu_nodes(nodes, gpus):
    """Nodes as in jax: one slice per node, in the order of processes, one process per GPU."""
    return [
        Device(
            id=n,
            platform="gpu",
            device_kind="H100",
            process_index=n,
            slice_index=n // gpus,
        )
        for n in range(nodes * gpus)
    ]


POD = tpu_slice(4, 4)
TWO_SLICES = tpu_slice(4, 4) + tpu_slice(4, 4, slice_index=1, first_id=16, first_process=4)
CLUSTERS = [
    POD,
    tpu_slice(4, 8),
    TWO_SLICES,
    gpu_nodes(2, 8),
    gpu_nodes(3, 4),
]


@pytest.mark.parametrize("devices", CLUSTERS)
@pytest.mark.parametrize(
    "sizes",
    [
        (-1, 1, 1),
        (2, -1, 1),
        (1, -1, 1),
        (-1, 1, 2),
        (-1, 2, 2),
    ],
)
def test_each_process_reads_the_rows_of_its_devices(devices, sizes, monkeypatch):
    mesh = mesh_of(sizes, devices)

    read = {}
    processes = {device.process_index for device in devices}
    for process in processes:
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        read[process] = BatchShards.of(mesh).local_shards

    # A device needs the shard of its place along "data" and "fsdp".
    needed = {process: set() for process in processes}
    for (data, fsdp, _), device in np.ndenumerate(mesh.devices):
        shard = data * mesh.shape["fsdp"] + fsdp
        needed[device.process_index].add(shard)
    for process in processes:
        assert read[process] == sorted(needed[process])

    count = mesh.shape["data"] * mesh.shape["fsdp"]
    assert BatchShards.of(mesh).shard_count == count
    everything = set().union(*read.values())
    assert everything == set(range(count))


def test_a_process_takes_its_own_rows_of_a_global_batch(monkeypatch):
    batch = {
        "x": np.arange(16).reshape(8, 2),
        "y": np.arange(8),
    }

    some = BatchShards(8, [1, 3], 4).local(batch)
    assert some["y"].tolist() == [2, 3, 6, 7]
    assert some["x"].tolist() == [
        [4, 5],
        [6, 7],
        [12, 13],
        [14, 15],
    ]

    every = BatchShards(8, [0, 1, 2, 3], 4)
    assert every.local(batch) is batch

    monkeypatch.setattr(jax, "process_index", lambda: 5)
    mesh = mesh_of((2, 2, 2), gpu_nodes(2, 4))
    assert BatchShards.of(mesh, gradient_accumulation=3) == BatchShards(12, [2], 4)


def specs_of(shardings):
    return jax.tree.map(lambda sharding: tuple(sharding.spec), shardings)


def test_an_optimizer_state_is_sharded_by_path_and_shape():
    """Shapes alone are ambiguous: two parameters have the same shape."""
    mesh = mesh_of((1, 2, 4), jax.devices()[:8])
    matrix = jax.ShapeDtypeStruct((8, 8), np.float32)
    row = jax.ShapeDtypeStruct((8,), np.float32)
    count = jax.ShapeDtypeStruct((), np.int32)

    params = {"a": {"inner": matrix}, "b": {"outer": matrix}, "scale": row}
    info = {
        "a": {"inner": ParameterInfo(("d_model", "d_ff"), "matrix")},
        "b": {"outer": ParameterInfo(("d_ff", "d_model"), "matrix")},
        "scale": None,
    }
    state = {
        "mu": params,
        "count": count,
        "other": {"inner": matrix, "a": row},  # not the whole path of a parameter
        "factored": {"a": {"inner": row}},  # not the shape of the parameter
    }
    layout = param_shardings(mesh, params, info)
    found = opt_state_shardings(mesh, {"x": (state,)}, params, layout)

    expected = {
        "mu": {
            "a": {"inner": ("fsdp", "tensor")},
            "b": {"outer": ("tensor", "fsdp")},
            "scale": (),
        },
        "count": (),
        "other": {"inner": (), "a": ()},
        "factored": {"a": {"inner": ()}},
    }
    assert specs_of(found) == {"x": (expected,)}


def test_the_state_of_a_layer_is_sharded_like_its_stack():
    mesh = mesh_of((1, 2, 4), jax.devices()[:8])
    inner = jax.ShapeDtypeStruct((3, 8, 8), np.float32)
    bias = jax.ShapeDtypeStruct((3, 8), np.float32)

    params = {"layers": {"inner": inner, "bias": bias}}
    info = {"layers": {"inner": ParameterInfo((None, "d_model", "d_ff"), "matrix"), "bias": None}}
    state = jax.eval_shape(per_layer(optax.trace(0.9)).init, params)
    layout = param_shardings(mesh, params, info)
    found = opt_state_shardings(mesh, state, params, layout)

    of_layer = {"inner": ("fsdp", "tensor"), "bias": ()}
    assert specs_of(found.trace["layers"]) == (of_layer, of_layer, of_layer)


@pytest.mark.parametrize("devices", [TWO_SLICES, gpu_nodes(2, 8), gpu_nodes(3, 4)])
@pytest.mark.parametrize(
    "sizes",
    [
        (-1, 1, 1),
        (-1, 4, 1),
        (-1, 1, 4),
        (-1, 2, 2),
    ],
)
def test_the_inner_axes_stay_within_a_slice(devices, sizes):
    mesh = mesh_of(sizes, devices)

    ids = [device.id for device in mesh.devices.flat]
    assert sorted(ids) == list(range(len(devices)))

    for inner in mesh.devices:
        slices = {device.slice_index for device in inner.flat}
        assert len(slices) == 1
