"""Training losses of a language model with 48 layers, with and without factors for deep stacks.

    python benchmarks/deep_stacks.py
    python benchmarks/deep_stacks.py --layers 6 48 --steps 100

Trains a narrow model of configs/shakespeare.py with Adam and a short warm-up, with the norm after
and before the sub-layers, and with each value of ``model.depth_scaling``. Prints a table with the
norm of the first gradient, the losses and the skipped steps, and one JSON line.
"""

import argparse
import json
import pathlib
import tempfile
from typing import Any

from machine import machine

from jaxformer import load_config, train
from jaxformer.nn.backend import Backend, use_backend

VARIANTS = (
    ("post", "none"),
    ("post", "deepnorm"),
    ("pre", "none"),
    ("pre", "gpt2"),
)
AVERAGED = 10  # last steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[48])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    options = parser.parse_args()

    rows = []
    for layers in options.layers:
        for norm, scaling in VARIANTS:
            row = measure(layers, norm, scaling, options.steps, options.learning_rate)
            rows.append(row)
            print(row, flush=True)

    print("| layers | norm | depth_scaling | first gradient norm | first loss | last loss |")
    print("|--:|---|---|--:|--:|--:|")
    for row in rows:
        print(
            f"| {row['layers']} | {row['norm']} | {row['scaling']} | {row['gradient']:.3g} | "
            f"{row['first']:.3f} | {row['last']:.3f} |"
        )
    print(json.dumps({"rows": rows, "steps": options.steps, "machine": machine()}))


def measure(
    layers: int,
    norm: str,
    scaling: str,
    steps: int,
    learning_rate: float,
) -> dict[str, Any]:
    """Returns the losses of one run; the last loss is a mean over ten steps."""
    losses: list[float] = []
    norms: list[float] = []

    def note(step: int, state: Any, sums: dict[str, Any]) -> None:
        losses.append(float(sums["loss"]) / float(sums["count"]))
        norms.append(float(sums["grad_norm"]))

    fields = {
        "model.d_model": 32,
        "model.d_ff": 128,
        "model.num_heads": 2,
        "model.num_layers": layers,
        "model.dropout_rate": 0.0,
        "model.attention_dropout_rate": 0.0,
        "model.norm_position": norm,
        "model.depth_scaling": scaling,
        "model.compute_dtype": "float32",
        "data.rows": 8,
        "data.length": 64,
        "training.optimizer": "adam",
        "training.learning_rate": learning_rate,
        "training.warmup_steps": 10,
        "training.steps": steps,
        "training.eval_every": steps,
        "training.checkpoint_every": steps,
    }
    config = load_config("shakespeare", [f"--config.{name}={v}" for name, v in fields.items()])

    # One program for all layers, which compiles fast.
    with use_backend(Backend(float32_activations=True)):
        state = train(config, pathlib.Path(tempfile.mkdtemp()), hooks=[note])
    return {
        "layers": layers,
        "norm": norm,
        "scaling": scaling,
        "gradient": norms[0],
        "first": losses[0],
        "last": sum(losses[-AVERAGED:]) / AVERAGED,
        "skipped": int(state.skipped),
    }


if __name__ == "__main__":
    main()
