"""Meshes over TPUs and GPUs, simulated by objects with their coordinates."""

import dataclasses
import functools

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
    config = MeshConfig(**dict(zip(("data", "fsdp", "tensor"), sizes, strict=True)))
    return make_mesh(config, devices)


def tpu_slice(rows, columns, slice_index=0, first_id=0, first_process=0):
    """A v5e slice with one host per 2 x 2 chips, in the order of ids: row by row."""
    hosts = columns // 2
    return [
        Device(
            id=first_id + y * columns + x,
            platform="tpu",
            device_kind="TPU v5 lite",
            process_index=first_process + y // 2 * hosts + x // 2,
            slice_index=slice_index,
            coords=(x, y, 0),
        )
        for y in range(rows)
        for x in range(columns)
    ]


def gpu_nodes(nodes, gpus):
    """Nodes as in jax: one slice per node, in the order of processes, one process per GPU."""
    return [
        Device(id=n, platform="gpu", device_kind="H100", process_index=n, slice_index=n // gpus)
        for n in range(nodes * gpus)
    ]


POD = tpu_slice(4, 4)
TWO_SLICES = tpu_slice(4, 4) + tpu_slice(4, 4, slice_index=1, first_id=16, first_process=4)
CLUSTERS = [POD, tpu_slice(4, 8), TWO_SLICES, gpu_nodes(2, 8), gpu_nodes(3, 4)]


@pytest.mark.parametrize("devices", CLUSTERS)
@pytest.mark.parametrize("sizes", [(-1, 1, 1), (2, -1, 1), (1, -1, 1), (-1, 1, 2), (-1, 2, 2)])
def test_each_process_reads_the_rows_of_its_devices(devices, sizes, monkeypatch):
    mesh = mesh_of(sizes, devices)
    read = {}
    for process in {device.process_index for device in devices}:
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        read[process] = BatchShards.of(mesh).local_shards
    needed = {process: set() for process in read}
    for (data, fsdp, _), device in np.ndenumerate(mesh.devices):
        needed[device.process_index].add(data * mesh.shape["fsdp"] + fsdp)
    assert read == {process: sorted(shards) for process, shards in needed.items()}
    count = mesh.shape["data"] * mesh.shape["fsdp"]
    assert BatchShards.of(mesh).shard_count == count
    assert {shard for shards in read.values() for shard in shards} == set(range(count))


def test_a_process_takes_its_own_rows_of_a_global_batch(monkeypatch):
    batch = {"x": np.arange(16).reshape(8, 2), "y": np.arange(8)}
    some, every = BatchShards(8, [1, 3], 4), BatchShards(8, [0, 1, 2, 3], 4)
    assert some.local(batch)["y"].tolist() == [2, 3, 6, 7]
    assert some.local(batch)["x"].tolist() == [[4, 5], [6, 7], [12, 13], [14, 15]]
    assert every.local(batch) is batch
    monkeypatch.setattr(jax, "process_index", lambda: 5)
    mesh = mesh_of((2, 2, 2), gpu_nodes(2, 4))
    assert BatchShards.of(mesh, gradient_accumulation=3) == BatchShards(12, [2], 4)


def test_an_optimizer_state_is_sharded_by_path_and_shape():
    """Shapes alone are ambiguous: two parameters have the same shape."""
    mesh = mesh_of((1, 2, 4), jax.devices()[:8])
    shape = jax.ShapeDtypeStruct((8, 8), np.float32)
    row = jax.ShapeDtypeStruct((8,), np.float32)
    params = {"a": {"inner": shape}, "b": {"outer": shape}, "scale": row}
    info = {
        "a": {"inner": ParameterInfo(("d_model", "d_ff"), "matrix")},
        "b": {"outer": ParameterInfo(("d_ff", "d_model"), "matrix")},
        "scale": None,
    }
    layout = param_shardings(mesh, params, info)
    count = jax.ShapeDtypeStruct((), np.int32)
    state = {
        "mu": params,
        "count": count,
        "other": {"inner": shape, "a": row},  # not the whole path of a parameter
        "factored": {"a": {"inner": row}},  # not the shape of the parameter
    }
    found = opt_state_shardings(mesh, {"x": (state,)}, params, layout)
    specs = jax.tree.map(lambda sharding: tuple(sharding.spec), found)
    moments = {
        "a": {"inner": ("fsdp", "tensor")}, "b": {"outer": ("tensor", "fsdp")}, "scale": ()
    }  # fmt: skip
    other = {"other": {"inner": (), "a": ()}, "factored": {"a": {"inner": ()}}}
    assert specs == {"x": ({"mu": moments, "count": (), **other},)}


def test_the_state_of_a_layer_is_sharded_like_its_stack():
    mesh = mesh_of((1, 2, 4), jax.devices()[:8])
    shape = functools.partial(jax.ShapeDtypeStruct, dtype="float32")
    params = {"layers": {"inner": shape((3, 8, 8)), "bias": shape((3, 8))}}
    info = {"layers": {"inner": ParameterInfo((None, "d_model", "d_ff"), "matrix"), "bias": None}}
    state = jax.eval_shape(per_layer(optax.trace(0.9)).init, params)
    found = opt_state_shardings(mesh, state, params, param_shardings(mesh, params, info))
    specs = jax.tree.map(lambda sharding: tuple(sharding.spec), found.trace["layers"])
    assert specs == 3 * ({"inner": ("fsdp", "tensor"), "bias": ()},)


@pytest.mark.parametrize("devices", [TWO_SLICES, gpu_nodes(2, 8), gpu_nodes(3, 4)])
@pytest.mark.parametrize("sizes", [(-1, 1, 1), (-1, 4, 1), (-1, 1, 4), (-1, 2, 2)])
def test_the_inner_axes_stay_within_a_slice(devices, sizes):
    mesh = mesh_of(sizes, devices)
    assert sorted(device.id for device in mesh.devices.flat) == list(range(len(devices)))
    for inner in mesh.devices:
        assert len({device.slice_index for device in inner.flat}) == 1
