"""Table 1: complexity of four types of layers, and their run times on this machine.

Measures the forward pass of one layer in float32 on one sequence of n positions. Each round runs
all layers in turn; the fastest round is reported. Writes table1.md and table1.png.
"""

import functools
import math
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
from jaxtyping import Array

from jaxformer.errors import exit_code
from jaxformer.files import write_file
from jaxformer.paper import layer_types, table_commands
from jaxformer.paper.table_commands import machine, markdown_table
from jaxformer.plots import figure

WIDTH = 512  # d
KERNEL = 3  # k
NEIGHBORHOOD = 65  # r
_HEADS = 8
_ROUNDS = 20


class _Row(NamedTuple):
    """A row of Table 1, without constant factors, and the look of its line in the plot."""

    operations: str
    sequential: str
    longest_path: str
    color: str
    marker: str


_LAYERS = {
    "self-attention": _Row("n² d", "1", "1", color=figure.BLUE, marker="o"),
    "recurrent": _Row("n d²", "n", "n", color=figure.ORANGE, marker="s"),
    "convolutional": _Row("k n d²", "1", "log_k n", color=figure.PURPLE, marker="^"),
    "restricted self-attention": _Row("r n d", "1", "n / r", color=figure.GREEN, marker="D"),
}
Times = dict[str, dict[int, float]]


def main(arguments: Sequence[str] | None = None) -> None:
    options = table_commands.options(
        "table1",
        __doc__,
        sizes="lengths",
        values=[32, 64, 128, 256, 512, 1024, 2048],
        arguments=arguments,
    )
    table = options.output / "table1.md"
    plot = options.output / "table1.png"

    times = measure(options.lengths)
    write_file(table, report(times).encode())
    draw(times, plot)
    print(table, plot, sep="\n")


def operations(n: int, d: int = WIDTH, k: int = KERNEL, r: int = NEIGHBORHOOD) -> dict[str, int]:
    """Returns the operations of each layer by the formulas of Table 1."""
    return {
        "self-attention": n * n * d,
        "recurrent": n * d * d,
        "convolutional": k * n * d * d,
        "restricted self-attention": r * n * d,
    }


def measure(lengths: Sequence[int]) -> Times:
    """Measures the fastest of all rounds, in seconds, by layer and length."""
    # Programs run once here, so that no round pays for their start.
    compiled = {}
    for n in lengths:
        print(f"compiling for n = {n}", file=sys.stderr)
        key = jax.random.key(n)
        x = jax.random.normal(key, (1, n, WIDTH))

        for name, layer in _layers().items():
            program = jax.jit(layer).lower(x).compile()
            program(x).block_until_ready()
            compiled[name, n] = (program, x)

    # All layers in turn, so that other work on the machine slows all of them.
    best = dict.fromkeys(compiled, math.inf)
    for number in range(_ROUNDS):
        print(f"round {number + 1} of {_ROUNDS}", file=sys.stderr)

        for key, (program, x) in compiled.items():
            began = time.perf_counter()
            program(x).block_until_ready()
            seconds = time.perf_counter() - began
            best[key] = min(best[key], seconds)

    times = {}
    for name in _LAYERS:
        times[name] = {n: best[name, n] for n in lengths}
    return times


def _layers() -> dict[str, Callable[[Array], Array]]:
    # Matrices keep the variance of their inputs.
    keys = jax.random.split(jax.random.key(0), 3)
    inputs = jax.random.normal(keys[0], (WIDTH, WIDTH)) / math.sqrt(WIDTH)
    state = jax.random.normal(keys[1], (WIDTH, WIDTH)) / math.sqrt(WIDTH)
    kernel = jax.random.normal(keys[2], (KERNEL, WIDTH, WIDTH))
    kernel = kernel / math.sqrt(WIDTH * KERNEL)

    return {
        "self-attention": functools.partial(
            layer_types.self_attention,
            num_heads=_HEADS,
        ),
        "recurrent": functools.partial(
            layer_types.recurrent,
            inputs=inputs,
            state=state,
        ),
        "convolutional": functools.partial(
            layer_types.convolutional,
            kernel=kernel,
        ),
        "restricted self-attention": functools.partial(
            layer_types.restricted_self_attention,
            num_heads=_HEADS,
            neighborhood=NEIGHBORHOOD,
        ),
    }


def growth(values: Mapping[int, float]) -> float:
    """Returns the exponent of n in the growth of values between the two largest lengths."""
    before, last = sorted(values)[-2:]
    ratio = values[last] / values[before]
    return math.log(ratio) / math.log(last / before)


def report(times: Times) -> str:
    # First the table of the paper.
    formulas = []
    for name, row in _LAYERS.items():
        cells = (row.operations, row.sequential, row.longest_path)
        orders = [f"O({cell})" for cell in cells]
        formulas.append([name, *orders])
    formula_header = ["layer type", "operations", "sequential", "longest path"]

    # Then the measurements.
    lengths = list(times["recurrent"])
    lines = []
    for name, seconds in times.items():
        milliseconds = [f"{1000 * value:,.2f}" for value in seconds.values()]
        measured = growth(seconds)
        by_formula = {n: operations(n)[name] for n in lengths}
        expected = growth(by_formula)
        lines.append([name, *milliseconds, f"{measured:.2f}", f"{expected:g}"])

    columns = [f"n = {n}" for n in lengths]
    header = ["layer", *columns, "growth measured", "by formula"]

    return (
        f"# Table 1: complexity of layers\n\n{markdown_table(formula_header, formulas)}\n"
        f"Milliseconds of one layer, forward, float32, one sequence; d = {WIDTH}, {_HEADS} heads, "
        f"k = {KERNEL}, r = {NEIGHBORHOOD}; fastest of {_ROUNDS} rounds on {machine()}. "
        f"Growth: the exponent of n between n = {lengths[-2]} and {lengths[-1]}.\n\n"
        f"{markdown_table(header, lines)}"
    )


def draw(times: Times, path: pathlib.Path) -> None:
    """Plots time against n, with dashed lines of the formulas' slopes, as a PNG or SVG."""
    last = max(times["recurrent"])
    with figure.open_figure(path, 5.0, 3.4) as page:
        axes = page.subplots()
        for name, seconds in times.items():
            row = _LAYERS[name]
            lengths = list(seconds)
            milliseconds = [1000 * value for value in seconds.values()]
            axes.plot(
                lengths,
                milliseconds,
                row.marker,
                color=row.color,
                markersize=4.5,
                label=f"{name}, O({row.operations})",
            )

            # The line of the formula goes through the last measurement.
            scale = 1000 * seconds[last] / operations(last)[name]
            slope = [scale * operations(n)[name] for n in lengths]
            axes.plot(lengths, slope, "--", color=row.color, linewidth=0.9)

        axes.set_title("Milliseconds of one layer; dashed: the slope of the formula")
        axes.set_xlabel(f"n, positions (d = {WIDTH})")

        # Powers of n are straight lines.
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")

        axes.grid(visible=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left")


if __name__ == "__main__":
    sys.exit(exit_code(main))
