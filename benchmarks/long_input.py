"""Time and memory of attention over long sequences, with a window and without, and a plot.

    python benchmarks/long_input.py --output runs/long_input

Float32, causal, one sequence, forward and backward pass. The window is measured beside
``jax.nn.dot_product_attention(local_window_size=...)``, whole attention in chunks beside all scores
at once. Time is the fastest round of each, in turns; memory is what XLA allocates besides inputs
and outputs.
"""

import argparse
import dataclasses
import math
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.nn import Keys
from jaxformer.nn.kernels import KeyValues, attend, chunked_attention, windowed_attention
from jaxformer.paper.table_commands import machine
from jaxformer.plots import figure

WINDOW = "window"
CHUNKS = "all keys, in chunks"
WHOLE = "all keys, all scores at once"
PEER = "jax.nn, local_window_size"
LOOKS = {
    WINDOW: (figure.GREEN, "D"),
    PEER: (figure.ORANGE, "s"),
    CHUNKS: (figure.BLUE, "o"),
    WHOLE: (figure.PURPLE, "^"),
}


def ways(window):
    """Returns functions of queries, keys and values by name."""

    def keys(q, window=None):
        return Keys.of_sequence(q.shape[1], causal=True, window=window)

    return {
        WINDOW: lambda q, k, v: windowed_attention(q, KeyValues(k, v), keys(q, window)),
        PEER: lambda q, k, v: jax.nn.dot_product_attention(
            q, k, v, is_causal=True, local_window_size=(window, 0)
        ),
        CHUNKS: lambda q, k, v: chunked_attention(q, KeyValues(k, v), keys(q)),
        WHOLE: lambda q, k, v: attend(q, KeyValues(k, v), keys(q))[0],
    }


@dataclasses.dataclass
class Measured:
    """A compiled way, its memory in bytes, and its fastest time in seconds."""

    program: object
    inputs: list
    memory: int
    seconds: float = math.inf


def compiled(way, n, heads, size):
    """Compiles the sum of squares of a way and its gradient, for n positions."""
    rng = np.random.default_rng(n)
    inputs = [jnp.asarray(rng.normal(size=(1, n, heads, size)), jnp.float32) for _ in range(3)]

    def loss(*inputs):
        attended = way(*inputs)
        return (attended**2).sum(), attended

    program = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
    program = program.lower(*inputs).compile()
    return Measured(program, inputs, program.memory_analysis().temp_size_in_bytes)


def measure(options):
    """Returns what was measured, by way and length."""
    found = {}
    for name, way in ways(options.window).items():
        longest = options.lengths[-1] if name in (WINDOW, CHUNKS) else options.longest_whole
        for n in (n for n in options.lengths if n <= longest):
            print(f"compiling {name}, n = {n}", file=sys.stderr)
            found[name, n] = compiled(way, n, options.heads, options.size)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        for measured in found.values():
            began = time.perf_counter()
            jax.block_until_ready(measured.program(*measured.inputs))
            measured.seconds = min(measured.seconds, time.perf_counter() - began)
    return found


def difference(found, n):
    """Returns the largest difference of values and gradients between chunks and the whole."""

    def values_and_gradients(name):
        measured = found[name, n]
        results = measured.program(*measured.inputs)
        (_, attended), gradients = jax.device_get(results)
        return [attended, *gradients]

    pairs = zip(values_and_gradients(CHUNKS), values_and_gradients(WHOLE), strict=True)
    return max(float(np.abs(a - b).max() / max(1.0, np.abs(b).max())) for a, b in pairs)


def report(options, found):
    """Formats a table, and the exponents between the first and the last length of each way."""
    lines = [
        f"Milliseconds and MB of attention, forward and backward; {options.heads} head(s) of "
        f"{options.size}, window {options.window}, fastest of {options.rounds} rounds on "
        f"{machine()}.\n",
        "| way | " + " | ".join(f"n = {n}" for n in options.lengths) + " | time | memory |",
        "|---|" + "--:|" * (len(options.lengths) + 2),
    ]
    for name in LOOKS:
        row = {n: found[name, n] for n in options.lengths if (name, n) in found}
        cells = [cell(row.get(n)) for n in options.lengths]

        exponents = ["-", "-"]
        if len(row) > 1:
            first = row[min(row)]
            last = row[max(row)]
            growth = math.log(max(row) / min(row))
            time_exponent = math.log(last.seconds / first.seconds) / growth
            memory_exponent = math.log(last.memory / first.memory) / growth
            exponents = [f"{time_exponent:.2f}", f"{memory_exponent:.2f}"]
        lines.append(f"| {name} | {' | '.join([*cells, *exponents])} |")

    n = max(n for name, n in found if name == WHOLE)
    lines.append(
        "\nTime and memory grow with these powers of n, between the first and the last length. At "
        f"n = {n}, chunks and all scores at once differ by {difference(found, n):.1e} of the "
        "largest value or gradient, at most."
    )
    return "\n".join(lines) + "\n"


def cell(measured):
    if measured is None:
        return "-"
    return f"{measured.seconds * 1e3:,.1f} ms, {measured.memory / 1e6:,.1f} MB"


def draw(found, path):
    """Plots time and memory against n."""
    with figure.open_figure(path, 7.2, 3.2) as page:
        for axes, what, scale, title in zip(
            page.subplots(1, 2),
            ("seconds", "memory"),
            (1e3, 1e-6),
            ("Milliseconds, forward and backward", "MB besides inputs and outputs"),
            strict=True,
        ):
            for name, (color, marker) in LOOKS.items():
                points = [
                    (n, getattr(m, what) * scale) for (way, n), m in found.items() if way == name
                ]
                axes.plot(*zip(*points, strict=True), marker + "-", color=color, label=name, ms=4)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_xlabel("n, positions")
            axes.set_title(title)
            axes.grid(visible=True)
            axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--output", type=pathlib.Path, required=True, metavar="DIR", help="folder to write to")
    add("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192], help="values of n")
    add("--longest-whole", type=int, default=8192, metavar="N", help="largest n with n x n scores")
    add("--window", type=int, default=128, help="keys before a query (default: %(default)s)")
    add("--heads", type=int, default=4, help="number of heads (default: %(default)s)")
    add("--size", type=int, default=64, help="size of a head (default: %(default)s)")
    add("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    options = parser.parse_args()
    found = measure(options)
    options.output.mkdir(parents=True, exist_ok=True)
    table = report(options, found)
    (options.output / "long_input.md").write_text(table)
    draw(found, options.output / "long_input.png")
    print(table)


if __name__ == "__main__":
    main()
