"""Compiles the training step for TPUs, without a TPU: a JSON line for each model and topology.

    pip install libtpu
    python benchmarks/tpu.py base big --topologies v5e:1x1 v5e:2x4 v6e:2x4

XLA's compiler for TPUs runs on any Linux machine. Nothing is executed: the sizes come from the
program, and no speed is measured. A line has, for each chip:
  state_gb, total_gb   parameters, optimizer state and batch; with temporary arrays
  model_tflop          operations of the model's matmuls, without rematerialization
  sent_mb              sizes of the results of collective operations; once for those in a loop
  fusions              fused operations of the program, outside of other fusions
"""

import argparse
import json
import os
import re
import time
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")

from jax.experimental import topologies

from jaxformer import Config, load_config
from jaxformer.memory import compile_step, memory_of
from jaxformer.nn import backend_for, use_backend
from jaxformer.tasks.token_task import task_class
from jaxformer.training.flops import training_flops
from jaxformer.training.mesh import make_mesh
from jaxformer.training.placement import BatchShards

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
COLLECTIVE = re.compile(
    r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
SHAPE = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")


def collective_bytes(program: str) -> int:
    """Returns the bytes of the results of all collective operations of an HLO program.

    The result of an asynchronous one has its operand, too, before it.
    """
    total = 0
    for line in program.splitlines():
        if found := COLLECTIVE.search(line):
            sizes = [size_of(*shape) for shape in SHAPE.findall(found[1])]
            total += sizes[-1] if "-start(" in line else sum(sizes)
    return total


def size_of(dtype: str, shape: str) -> int:
    """Returns the bytes of an array, given its dtype and shape in HLO."""
    size = BYTES.get(dtype, 0)
    for axis in filter(None, shape.split(",")):
        size *= int(axis)
    return size


def describe(config: Config, devices: list[Any]) -> dict[str, Any]:
    """Compiles the step of the longest batch for the devices."""
    began = time.monotonic()
    with use_backend(backend_for("tpu")):
        program = compile_step(config, devices)
    seconds = time.monotonic() - began
    text = program.as_text() or ""
    shards = BatchShards.of(make_mesh(config.mesh, devices), config.training.gradient_accumulation)
    rows, length = task_class(config).longest_batch(config, shards).src.shape
    memory = memory_of(program)
    return {
        "rows": rows,
        "length": length,
        "state_gb": round(memory.state / 1e9, 2),
        "total_gb": round(memory.total / 1e9, 2),
        "model_tflop": round(
            training_flops(config.model, rows, length, length) / len(devices) / 1e12, 2
        ),
        "sent_mb": round(collective_bytes(text) / 1e6, 1),
        "fusions": len(re.findall(r"^  (?:ROOT )?%\S+ = .* fusion\(", text, flags=re.M)),
        "compile_seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("configs", nargs="+", help="names of configs, such as base or big")
    parser.add_argument("--topologies", nargs="+", default=["v5e:2x4", "v6e:2x4"])
    parser.add_argument(
        "--overrides", nargs=argparse.REMAINDER, default=[], help="--config.field=value, last"
    )
    arguments = parser.parse_args()
    for topology in arguments.topologies:
        devices = topologies.get_topology_desc(topology, platform="tpu").devices
        for name in arguments.configs:
            config = load_config(name, arguments.overrides)
            line = {"config": name, "topology": topology, "chips": len(devices)}
            print(json.dumps(line | describe(config, list(devices))), flush=True)


if __name__ == "__main__":
    main()
