"""Prints the table of docs/scaling.md: traffic and computation of a training step.

    python benchmarks/communication.py

The numbers are calculated from sizes (jaxformer/analysis/communication.py and flops.py) and from
published data of the chips; nothing is measured.
"""

from typing import NamedTuple

from jaxformer.analysis.communication import step_traffic
from jaxformer.config import Config, MeshConfig, ModelConfig
from jaxformer.models.flops import training_flops

# Batch per chip: 25,000 source and 25,000 target tokens, as many as the paper's whole batch.
ROWS, LENGTH = 500, 50
MFU = 0.4

MODELS = {
    "base": ModelConfig(compute_dtype="bfloat16"),
    "big": ModelConfig(d_model=1024, d_ff=4096, num_heads=16, compute_dtype="bfloat16"),
    "1 billion": ModelConfig(
        d_model=2048, d_ff=8192, num_heads=16, num_layers=8, compute_dtype="bfloat16"
    ),
}


class Chip(NamedTuple):
    """Published data: bfloat16 FLOP/s, bytes/s in one direction over all links, chips per pod."""

    flops: float
    bandwidth: float
    pod: int


# The published bandwidths, 400, 800 and 1,200 GB/s, are the sums of both directions.
CHIPS = {
    "v5e": Chip(197e12, 200e9, 256),
    "v6e": Chip(918e12, 400e9, 256),
    "v5p": Chip(459e12, 600e9, 8960),
}


def mesh_for(name: str, chips: int) -> MeshConfig:
    """Returns a mesh that splits parameters only if one chip of 16 GB cannot hold the state."""
    fsdp = 8 if name == "1 billion" else 1
    return MeshConfig(data=chips // fsdp, fsdp=fsdp)


def table() -> str:
    """Returns Markdown with a line for every model and number of chips."""
    lines = [
        "| model | chips | `data` x `fsdp` | GB sent | TFLOP | " + " | ".join(CHIPS) + " |",
        "|---|--:|--:|--:|--:" + "|--:" * len(CHIPS) + "|",
    ]
    for name, config in MODELS.items():
        for chips in (8, 64, 256, 1024):
            mesh = mesh_for(name, chips)
            run = Config(model=config, mesh=mesh)
            traffic = step_traffic(run, chips * ROWS, LENGTH, LENGTH)
            sent = sum(axis.sent for axis in traffic.values())
            flops = training_flops(config, ROWS, LENGTH, LENGTH)
            shares = [
                f"{sent / chip.bandwidth / (flops / MFU / chip.flops):.1%}"
                if chips <= chip.pod
                else ""
                for chip in CHIPS.values()
            ]
            cells = [
                name,
                f"{chips:,}",
                f"{mesh.data} x {mesh.fsdp}",
                f"{sent / 1e9:.2f}",
                f"{flops / 1e12:.1f}",
                *shares,
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
