"""Loss curves of a small configs/shakespeare.py in four formats, and gradients that vanish.

    python benchmarks/formats.py --output docs/formats.png
    python benchmarks/formats.py --save formats.json
    python benchmarks/formats.py --draw formats.json --output formats.png

Trains the same model, with half the width and half the layers of the config, on the same batches
with each compute dtype. Then takes the gradients of the results of all matmuls with parameters, in
float32, for one batch and the model in float16, and counts how many are 0 in float16 with and
without a scale of the loss. Prints two tables and one JSON line. CPUs emulate float16 and float8:
a GPU takes other times.
"""

import argparse
import json
import math
import pathlib
import tempfile
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from machine import machine

from jaxformer import Config, load_config, load_params, make_mesh, train
from jaxformer.experiment import make_task
from jaxformer.nn import matmul
from jaxformer.plots import figure
from jaxformer.runs.workdir import Workdir
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import Randomness

STYLES = {
    "float32": (figure.GRAY, "-"),
    "bfloat16": (figure.BLUE, "-"),
    "float16": (figure.GREEN, "--"),
    "float8": (figure.ORANGE, "-"),
}
SMALLEST = -25  # Numbers of at most 2^-25 are 0 in float16.
LOWEST = -60  # of the exponents that are counted one by one
SCALE = 15  # exponent of the initial scale of the loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=8, help="rows of a batch, of 256 characters")
    parser.add_argument("--runs", type=pathlib.Path, help="folder for the runs, which may resume")
    parser.add_argument("--output", type=pathlib.Path, help="picture to write, .png or .svg")
    parser.add_argument("--save", type=pathlib.Path, help="file for the JSON line")
    parser.add_argument("--draw", type=pathlib.Path, help="draw a JSON line instead of training")
    options = parser.parse_args()

    if options.draw is not None:
        found = json.loads(options.draw.read_text())
    else:
        folder = options.runs or pathlib.Path(tempfile.mkdtemp())
        found = measure(folder, options.steps, options.rows)
        if options.save is not None:
            options.save.write_text(json.dumps(found) + "\n")

    print_losses(found["runs"])
    print_vanishing(found["gradients"])
    print(json.dumps(found))
    if options.output is not None:
        draw(found, options.output)


def measure(folder: pathlib.Path, steps: int, rows: int) -> dict[str, Any]:
    """Returns reports of the runs by compute dtype, and exponents of gradients."""
    runs = {}
    for dtype in STYLES:
        config = config_of(dtype, steps, rows)
        train(config, folder / dtype)
        runs[dtype] = read_reports(folder / dtype)

    gradients = measure_gradients(config_of("float16", steps, rows), folder / "float16")
    return {"runs": runs, "gradients": gradients, "rows": rows, "machine": machine()}


def config_of(dtype: str, steps: int, rows: int) -> Config:
    settings = {
        "model.compute_dtype": dtype,
        "model.d_model": 128,
        "model.d_ff": 512,
        "model.num_layers": 2,
        "data.rows": rows,
        "training.steps": steps,
        "training.log_every": 5,
        "training.eval_every": steps,
        "training.checkpoint_every": steps,
    }
    return load_config(
        "shakespeare",
        [f"--config.{name}={value}" for name, value in settings.items()],
    )


def read_reports(run: pathlib.Path) -> list[dict[str, float]]:
    """Returns step, loss, seconds and skipped steps of each report of training."""
    reports = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        report = json.loads(line)
        if report["kind"] == "train":
            names = ("step", "loss", "seconds_per_step", "skipped")
            reports.append({name: report[name] for name in names})
    return reports


def measure_gradients(config: Config, run: pathlib.Path) -> dict[str, Any]:
    """Counts the gradients of the results of matmuls by their exponents, of the sum of the loss."""
    task = make_task(config, Workdir(run))
    params = load_params(run, task)
    batch = next(task.batches(0, BatchShards.of(make_mesh(devices=jax.devices()[:1]))))
    rows = len(jax.tree.leaves(batch)[0])
    randomness = Randomness(jax.random.key(0), jnp.arange(rows))
    exponents: list[np.ndarray] = []
    zeros = 0

    def record(gradient: Array, compute_dtype: str) -> Array:
        nonlocal zeros
        values = np.abs(np.asarray(gradient, np.float32)).ravel()
        zeros += int((values == 0).sum())
        exponents.append(np.floor(np.log2(values[values > 0])))
        return gradient.astype(jnp.float32)

    # Without jit, the arrays are there. The gradients themselves are not rounded.
    with mock.patch.object(matmul, "round_gradient", record), jax.disable_jit():
        count = float(task.loss(params, batch, randomness)["count"])
        jax.grad(lambda params: task.loss(params, batch, randomness)["loss"])(params)

    clipped = np.maximum(np.concatenate(exponents), LOWEST).astype(int)
    counts = np.bincount(clipped - LOWEST, minlength=16 - LOWEST)
    return {"lowest": LOWEST, "counts": counts.tolist(), "zeros": zeros, "tokens": count}


def print_losses(runs: dict[str, list[dict[str, float]]]) -> None:
    print(
        "| compute dtype | steps | loss of the last 25 steps | skipped steps | seconds per step |"
    )
    print("|---|--:|--:|--:|--:|")
    for dtype, reports in runs.items():
        losses = [report["loss"] for report in reports[-5:]]
        seconds = sorted(report["seconds_per_step"] for report in reports)
        skipped = sum(report["skipped"] for report in reports)
        print(
            f"| {dtype} | {reports[-1]['step']:.0f} | {sum(losses) / len(losses):.4f} | "
            f"{skipped:.0f} | {seconds[len(seconds) // 2]:.2f} |"
        )


def scales_of(gradients: dict[str, Any]) -> dict[str, float]:
    """Returns exponents of factors on the gradients of the summed loss, by name."""
    of_mean = -math.log2(gradients["tokens"])
    return {
        "mean over the tokens": of_mean,
        f"mean, times 2^{SCALE}": of_mean + SCALE,
        "sum over the tokens": 0.0,
        f"sum, times 2^{SCALE}": float(SCALE),
    }


def vanishing_share(gradients: dict[str, Any], scale: float) -> float:
    """Returns the share of nonzero gradients that are 0 in float16, times 2^scale."""
    exponents = gradients["lowest"] + np.arange(len(gradients["counts"]))
    counts = np.asarray(gradients["counts"])
    vanish = exponents + scale < SMALLEST
    return float(counts[vanish].sum() / counts.sum())


def print_vanishing(gradients: dict[str, Any]) -> None:
    print("| loss | gradients that are 0 in float16, % |")
    print("|---|--:|")
    for name, scale in scales_of(gradients).items():
        print(f"| {name} | {100 * vanishing_share(gradients, scale):.2f} |")


def draw(found: dict[str, Any], path: pathlib.Path) -> None:
    """Draws the loss curves, and the histogram of the gradients."""
    with figure.open_figure(path, 7.6, 3.0) as page:
        curves, histogram = page.subplots(1, 2)
        for dtype, reports in found["runs"].items():
            color, style = STYLES[dtype]
            steps = [report["step"] for report in reports]
            losses = [report["loss"] for report in reports]
            curves.plot(steps, losses, style, color=color, label=dtype)
        curves.set_xlabel("step")
        curves.set_title("Training loss, nats per character (emulated on a CPU)")
        curves.legend()

        gradients = found["gradients"]
        counts = np.asarray(gradients["counts"])
        exponents = gradients["lowest"] + np.arange(len(counts))
        colors = {"mean over the tokens": figure.ORANGE, f"sum, times 2^{SCALE}": figure.GREEN}
        for name, color in colors.items():
            scale = scales_of(gradients)[name]
            vanishing = 100 * vanishing_share(gradients, scale)
            label = f"{name}: {vanishing:.1f} % vanish"
            histogram.step(exponents + scale, 100 * counts / counts.sum(), color=color, label=label)
        histogram.axvspan(LOWEST, SMALLEST, color=figure.GRAY, alpha=0.15, lw=0)
        histogram.set_xlim(LOWEST, 16)
        histogram.set_ylim(0, 20)  # The legend is above.
        histogram.set_xlabel("exponent of a gradient; 0 in float16 where gray")
        histogram.set_title("Gradients of the results of matmuls, %")
        histogram.legend(loc="upper left")

        for axes in (curves, histogram):
            axes.grid(visible=True)
            axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
