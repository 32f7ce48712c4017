"""Table 1: complexity of four types of layers, and their run times on this machine.

Measures the forward pass of one layer in float32 on one sequence of n positions. Each round runs
all layers in turn; the fastest round counts. Writes table1.md and table1.png.
"""

import argparse
import functools
import math
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import jax
from jaxtyping import Array
from matplotlib.figure import Figure

from jaxformer.errors import UserError, exit_code
from jaxformer.files import local_path, write_file
from jaxformer.paper import command, layer_types
from jaxformer.plots import figure

_EXAMPLE = "python -m jaxformer.paper.table1 --output runs/table1"
# Operations of a layer, sequential operations and longest path, without constant factors.
_FORMULAS = {
    "self-attention": ("n² d", "1", "1"),
    "recurrent": ("n d²", "n", "n"),
    "convolutional": ("k n d²", "1", "log_k n"),
    "restricted self-attention": ("r n d", "1", "n / r"),
}
_LOOKS = {
    "self-attention": (figure.BLUE, "o"),
    "recurrent": (figure.ORANGE, "s"),
    "convolutional": (figure.PURPLE, "^"),
    "restricted self-attention": (figure.GREEN, "D"),
}
Times = dict[str, dict[int, float]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures run times, and writes table and plot.

    Raises:
      UserError: A size is out of range, or sizes are incompatible.
    """
    options = _options(arguments)
    times = measure(options)
    write_file(options.output / "table1.md", report(options, times).encode())
    draw(options, times, options.output / "table1.png")
    print(options.output / "table1.md")
    print(options.output / "table1.png")


def operations(n: int, d: int, k: int, r: int) -> dict[str, int]:
    """Returns the operations of each layer by the formulas of Table 1.

    >>> operations(n=100, d=512, k=3, r=65)["self-attention"]
    5120000
    """
    return {
        "self-attention": n * n * d,
        "recurrent": n * d * d,
        "convolutional": k * n * d * d,
        "restricted self-attention": r * n * d,
    }


def _operations(options: argparse.Namespace, n: int) -> dict[str, int]:
    return operations(n, options.width, options.kernel, options.neighborhood)


def measure(options: argparse.Namespace) -> Times:
    """Measures the fastest of all rounds, in seconds, by layer and length."""
    compiled = {}
    for n in options.lengths:
        print(f"compiling for n = {n}", file=sys.stderr)
        for name, layer in _layers(options).items():
            x = jax.random.normal(jax.random.key(n), (1, n, options.width))
            compiled[name, n] = (jax.jit(layer).lower(x).compile(), x)
            compiled[name, n][0](x).block_until_ready()
    best = dict.fromkeys(compiled, math.inf)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        for key, (layer, x) in compiled.items():
            began = time.perf_counter()
            layer(x).block_until_ready()
            best[key] = min(best[key], time.perf_counter() - began)
    return {name: {n: best[name, n] for n in options.lengths} for name in _FORMULAS}


def _layers(options: argparse.Namespace) -> Mapping[str, Callable[[Array], Array]]:
    d = options.width
    keys = jax.random.split(jax.random.key(0), 3)
    inputs, state = (jax.random.normal(key, (d, d)) / math.sqrt(d) for key in keys[:2])
    kernel = jax.random.normal(keys[2], (options.kernel, d, d)) / math.sqrt(d * options.kernel)
    return {
        "self-attention": functools.partial(layer_types.self_attention, num_heads=options.heads),
        "recurrent": functools.partial(layer_types.recurrent, inputs=inputs, state=state),
        "convolutional": functools.partial(layer_types.convolutional, kernel=kernel),
        "restricted self-attention": functools.partial(
            layer_types.restricted_self_attention,
            num_heads=options.heads,
            neighborhood=options.neighborhood,
        ),
    }


def growth(times: Mapping[int, float]) -> float:
    """Returns the exponent of n in the growth of time between the two largest lengths."""
    before, last = sorted(times)[-2:]
    return math.log(times[last] / times[before]) / math.log(last / before)


def report(options: argparse.Namespace, times: Times) -> str:
    """Formats Table 1 and the measured times."""
    formulas = command.markdown_table(
        ["layer type", "operations", "sequential", "longest path"],
        [[name, *(f"O({cell})" for cell in cells)] for name, cells in _FORMULAS.items()],
    )
    before, last = options.lengths[-2:]
    expected = [_operations(options, n) for n in (before, last)]
    lines = []
    for name, row in times.items():
        ratio = expected[1][name] / expected[0][name]
        exponent = math.log(ratio) / math.log(last / before)
        cells = [f"{1000 * seconds:,.2f}" for seconds in row.values()]
        lines.append([name, *cells, f"{growth(row):.2f}", f"{exponent:g}"])
    lengths = [f"n = {n}" for n in options.lengths]
    header = ["layer", *lengths, "growth measured", "by formula"]
    return "\n".join(
        [
            "# Table 1: complexity of layers\n",
            formulas,
            f"Milliseconds of one layer, forward, float32, one sequence; d = {options.width}, "
            f"{options.heads} heads, k = {options.kernel}, r = {options.neighborhood}; fastest of "
            f"{options.rounds} rounds on {command.machine()}. Growth: the exponent of n between "
            f"n = {before} and {last}.\n",
            command.markdown_table(header, lines),
        ]
    )


def draw(options: argparse.Namespace, times: Times, path: pathlib.Path) -> None:
    """Plots time against n, with dashed lines of the formulas' slopes, as a PNG or SVG."""
    last = options.lengths[-1]
    largest = _operations(options, last)
    with figure.style():
        page = Figure(figsize=(5.0, 3.4), layout="constrained")
        axes = page.subplots()
        for name, row in times.items():
            color, marker = _LOOKS[name]
            scale = 1000 * row[last] / largest[name]
            slope = [scale * _operations(options, n)[name] for n in row]
            label = f"{name}, O({_FORMULAS[name][0]})"
            milliseconds = [1000 * seconds for seconds in row.values()]
            axes.plot(list(row), milliseconds, marker, color=color, markersize=4.5, label=label)
            axes.plot(list(row), slope, "--", color=color, linewidth=0.9)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(f"n, positions (d = {options.width})")
        axes.set_title("Milliseconds of one layer; dashed: the slope of the formula")
        axes.grid(visible=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left")
        figure.save(page, path)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("table1", __doc__, _EXAMPLE)
    add = parser.add_argument
    add("--output", type=local_path, required=True, metavar="DIR", help="folder to write to")
    add(
        "--lengths",
        type=command.numbers,
        default=[32, 64, 128, 256, 512, 1024, 2048],
        metavar="N,N,...",
        help="values of n, two or more (default: 32 to 2048)",
    )
    add("--width", type=int, default=512, metavar="D", help="d (default: %(default)s)")
    add("--heads", type=int, default=8, metavar="H", help="heads (default: %(default)s)")
    add("--kernel", type=int, default=3, metavar="K", help="kernel width k (default: %(default)s)")
    add(
        "--neighborhood",
        type=int,
        default=65,
        metavar="R",
        help="size r of the neighborhood, odd (default: %(default)s)",
    )
    add("--rounds", type=int, default=20, metavar="N", help="rounds (default: %(default)s)")
    options = parser.parse_args(arguments)
    if len(options.lengths) < 2 or options.lengths[0] < 2:
        raise UserError(f"--lengths: expected two or more from 2 on: got {options.lengths}")
    for name in ("width", "heads", "kernel", "rounds"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} must be 1 or more: got {getattr(options, name)}")
    if options.kernel < 2:
        raise UserError(f"--kernel must be 2 or more: got {options.kernel}")
    if options.width % options.heads:
        raise UserError(
            f"--heads must divide --width: got {options.heads} heads and a width of {options.width}"
        )
    if options.neighborhood < 1 or options.neighborhood % 2 == 0:
        raise UserError(f"--neighborhood must be odd: got {options.neighborhood}")
    return options


if __name__ == "__main__":
    sys.exit(exit_code(main))
