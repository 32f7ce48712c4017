"""The formula for the traffic of a training step equals the collectives of the compiled program."""

import collections
import math
import re

import jax
import numpy as np
import optax
import pytest

from jaxformer.analysis.communication import step_traffic
from jaxformer.config import Config, MeshConfig, ModelConfig, TrainingConfig
from jaxformer.data.batch import Batch
from jaxformer.tasks.translation import make_init, make_loss
from jaxformer.training.mesh import batch_sharding, make_mesh
from jaxformer.training.step import abstract_state, make_train_step

from ..profiles import by_profile

# The vocabulary is so large that the loss is computed in chunks, of 160 rows.
SIZES = {"vocab_size": 52_424, "d_model": 64, "d_ff": 192, "num_heads": 8, "dropout_rate": 0.0}
ROWS, SOURCE, TARGET = 16, 24, 40
AXES = ("data", "fsdp", "tensor")
BYTES = {"f32": 4, "s32": 4, "u32": 4, "pred": 1}


def compiled_text(config):
    mesh, optimizer = make_mesh(config.mesh), optax.sgd(1.0)
    state = abstract_state(make_init(config.model), optimizer, mesh)
    lengths = [TARGET if name.startswith("tgt") else SOURCE for name in Batch._fields]
    split = batch_sharding(mesh)
    batch = Batch(*(jax.ShapeDtypeStruct((ROWS, n), np.int32, sharding=split) for n in lengths))
    gradient_accumulation = config.training.gradient_accumulation
    step = make_train_step(
        make_loss(config), optimizer, mesh, gradient_accumulation=gradient_accumulation
    )
    return step.lower(state, batch).compile().as_text()


def exchanged(text, sizes):
    """Returns bytes of the arrays of all collectives, by kind and by the axes of their groups.

    Collectives in the body of a loop count once per iteration.
    """
    computations, entry, name = {}, "", ""
    for line in text.splitlines():
        if start := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            name = start[2]
            computations[name] = []
            entry = name if start[1] else entry
        elif name:
            computations[name].append(line)
    total = collections.Counter()

    def walk(name, times):
        for line in computations[name]:
            if found := re.search(
                r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
                r"(-start)?\(",
                line,
            ):
                axes = axes_of(line, sizes)
                total[found[2], axes] += times * bytes_of(found[1])
            elif loop := re.search(r" while\(.*body=%?([\w.\-]+)", line):
                count = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
                walk(loop[1], times * int(count[1]))
            elif call := re.search(r" call\(.*to_apply=%?([\w.\-]+)", line):
                walk(call[1], times)

    walk(entry, 1)
    return total


def bytes_of(shapes):
    """Returns the bytes of arrays such as "f32[2,3]{1,0}", or of a tuple of them."""
    return sum(
        BYTES[dtype] * math.prod(int(size) for size in dims.split(",") if size)
        for dtype, dims in re.findall(r"([a-z]+\d*)\[([\d,]*)\]", shapes)
    )


def axes_of(line, sizes):
    """Returns the axes of the mesh along which the devices of a collective's first group differ.

    XLA writes groups as {{0,1},{2,3}}, as [2,2]<=[4], or as mesh['a'=2,'b'=2] {'b'}.
    """
    if listed := re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]+)\}", line):
        group = numbers(listed[1])
    elif iota := re.search(r"replica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](T\([\d,]+\))?", line):
        group = in_order(iota[2], iota[3])[: int(iota[1])]
    else:
        named = re.search(
            r"=mesh\[(.*?)\](?:, device_ids=\(\[(.*?)\](T\(.*?\))?\))? \{(.*?)\}", line
        )
        shape = [int(size) for size in re.findall(r"=(\d+)", named[1])]
        devices = in_order(named[2] or str(math.prod(shape)), named[3]).reshape(shape)
        chosen = [axis in named[4] for axis in re.findall(r"'\w+'", named[1])]
        group = devices[tuple(slice(None) if whole else 0 for whole in chosen)].ravel()
    places = np.unravel_index(group, sizes)
    return tuple(axis for axis, along in zip(AXES, places, strict=True) if np.ptp(along))


def in_order(shape, transposed):
    """Returns all devices of a shape such as "2,2,2", transposed by "T(0,2,1)" for instance."""
    devices = np.arange(math.prod(numbers(shape))).reshape(numbers(shape))
    return devices.transpose(numbers(transposed[2:-1]) if transposed else None).ravel()


def numbers(text):
    return [int(number) for number in text.split(",")]


CASES = [
    ((2, 2, 2), {}, {}),
    ((8, 1, 1), {}, {}),
    ((1, 8, 1), {"num_layers": 2}, {}),
    ((1, 1, 8), {"num_layers": 2}, {}),
    (
        (1, 4, 2),
        {"embeddings": "separate", "target_vocab_size": 16},
        {"remat": "layer", "gradient_accumulation": 2},
    ),
]


@pytest.mark.ci
@pytest.mark.parametrize(("sizes", "model", "training"), by_profile(CASES[:1], nightly=CASES))
def test_the_formula_counts_what_the_compiled_program_exchanges(sizes, model, training):
    """Uses float32, since XLA converts bfloat16 to float32 before it sends it between CPUs.

    On CPUs, XLA replaces a reduce-scatter by an all-reduce and a slice.
    """
    config = Config(
        model=ModelConfig(**{"num_layers": 1} | SIZES | model),
        training=TrainingConfig(**training),
        mesh=MeshConfig(**dict(zip(AXES, sizes, strict=True))),
    )
    measured = exchanged(compiled_text(config), sizes)
    for axis, expected in step_traffic(config, ROWS, SOURCE, TARGET).items():
        if expected.devices > 1:
            gathered = measured.pop(("all-gather", (axis,)), 0)
            summed = measured.pop(("all-reduce", (axis,)), 0)
            assert gathered == pytest.approx(expected.gathered, rel=0.02), axis
            assert summed == pytest.approx(expected.scattered + expected.summed, rel=0.02), axis
    assert not measured
