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

import jax
from jaxtyping import Array

from jaxformer.errors import exit_code
from jaxformer.files import write_file
from jaxformer.paper import command, layer_types
from jaxformer.plots import figure

WIDTH, KERNEL, NEIGHBORHOOD = 512, 3, 65  # d, k and r
_HEADS, _ROUNDS = 8, 20
# Operations of a layer, sequential operations and maximum path length, without constant factors;
# then color and marker of its line.
_LAYERS = {
    "self-attention": ("n² d", "1", "1", figure.BLUE, "o"),
    "recurrent": ("n d²", "n", "n", figure.ORANGE, "s"),
    "convolutional": ("k n d²", "1", "log_k n", figure.PURPLE, "^"),
    "restricted self-attention": ("r n d", "1", "n / r", figure.GREEN, "D"),
}
Times = dict[str, dict[int, float]]


def main(arguments: Sequence[str] | None = None) -> None:
    powers = [32, 64, 128, 256, 512, 1024, 2048]
    options = command.options("table1", __doc__, "lengths", powers, arguments)
    table, plot = options.output / "table1.md", options.output / "table1.png"
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
    compiled = {}
    for n in lengths:
        print(f"compiling for n = {n}", file=sys.stderr)
        for name, layer in _layers().items():
            x = jax.random.normal(jax.random.key(n), (1, n, WIDTH))
            compiled[name, n] = (jax.jit(layer).lower(x).compile(), x)
            compiled[name, n][0](x).block_until_ready()
    best = dict.fromkeys(compiled, math.inf)
    for number in range(_ROUNDS):
        print(f"round {number + 1} of {_ROUNDS}", file=sys.stderr)
        for key, (layer, x) in compiled.items():
            began = time.perf_counter()
            layer(x).block_until_ready()
            best[key] = min(best[key], time.perf_counter() - began)
    return {name: {n: best[name, n] for n in lengths} for name in _LAYERS}


def _layers() -> dict[str, Callable[[Array], Array]]:
    keys = jax.random.split(jax.random.key(0), 3)
    inputs, state = (jax.random.normal(key, (WIDTH, WIDTH)) / math.sqrt(WIDTH) for key in keys[:2])
    kernel = jax.random.normal(keys[2], (KERNEL, WIDTH, WIDTH)) / math.sqrt(WIDTH * KERNEL)
    return {
        "self-attention": functools.partial(layer_types.self_attention, num_heads=_HEADS),
        "recurrent": functools.partial(layer_types.recurrent, inputs=inputs, state=state),
        "convolutional": functools.partial(layer_types.convolutional, kernel=kernel),
        "restricted self-attention": functools.partial(
            layer_types.restricted_self_attention, num_heads=_HEADS, neighborhood=NEIGHBORHOOD
        ),
    }


def growth(values: Mapping[int, float]) -> float:
    """Returns the exponent of n in the growth of values between the two largest lengths."""
    before, last = sorted(values)[-2:]
    return math.log(values[last] / values[before]) / math.log(last / before)


def report(times: Times) -> str:
    formulas = command.markdown_table(
        ["layer type", "operations", "sequential", "longest path"],
        [[name, *(f"O({cell})" for cell in cells[:3])] for name, cells in _LAYERS.items()],
    )
    lengths = list(times["recurrent"])
    lines = []
    for name, row in times.items():
        cells = [f"{1000 * seconds:,.2f}" for seconds in row.values()]
        exponent = growth({n: operations(n)[name] for n in lengths})
        lines.append([name, *cells, f"{growth(row):.2f}", f"{exponent:g}"])
    header = ["layer", *(f"n = {n}" for n in lengths), "growth measured", "by formula"]
    return (
        f"# Table 1: complexity of layers\n\n{formulas}\n"
        f"Milliseconds of one layer, forward, float32, one sequence; d = {WIDTH}, {_HEADS} heads, "
        f"k = {KERNEL}, r = {NEIGHBORHOOD}; fastest of {_ROUNDS} rounds on {command.machine()}. "
        f"Growth: the exponent of n between n = {lengths[-2]} and {lengths[-1]}.\n\n"
        f"{command.markdown_table(header, lines)}"
    )


def draw(times: Times, path: pathlib.Path) -> None:
    """Plots time against n, with dashed lines of the formulas' slopes, as a PNG or SVG."""
    last = max(times["recurrent"])
    with figure.open_figure(path, 5.0, 3.4) as page:
        axes = page.subplots()
        for name, row in times.items():
            formula, _, _, color, marker = _LAYERS[name]
            scale = 1000 * row[last] / operations(last)[name]
            slope = [scale * operations(n)[name] for n in row]
            looks = {"color": color, "markersize": 4.5, "label": f"{name}, O({formula})"}
            axes.plot(list(row), [1000 * seconds for seconds in row.values()], marker, **looks)
            axes.plot(list(row), slope, "--", color=color, linewidth=0.9)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(f"n, positions (d = {WIDTH})")
        axes.set_title("Milliseconds of one layer; dashed: the slope of the formula")
        axes.grid(visible=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left")


if __name__ == "__main__":
    sys.exit(exit_code(main))
