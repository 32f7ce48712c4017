"""Effect of dividing dot products by sqrt(d_k) (section 3.2.1), as a plot and a table.

Components of queries and keys are independent, with mean 0 and variance 1, so their dot product has
variance d_k. As d_k grows, the softmax puts all weight on one key, and its gradient vanishes.
Division by sqrt(d_k) makes the variance 1. Additive attention, whose matrices are initialized with
variance 1 / d_k, needs no such factor. Writes dot_product_scaling.md and dot_product_scaling.png.
"""

import functools
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.errors import exit_code
from jaxformer.files import write_file
from jaxformer.nn.kernels import additive_scores
from jaxformer.paper import table_commands
from jaxformer.plots import figure

_KEYS = 32
_QUERIES = 512
_QUERIES_PER_NETWORK = 32
_STYLES = {
    "dot product": (figure.ORANGE, "s"),
    "dot product / √d_k": (figure.BLUE, "o"),
    "additive": (figure.GREEN, "D"),
}


class Saturation(NamedTuple):
    """Saturation of the softmax over random scores, as means over queries, float32."""

    variance: Float[Array, ""]  # of the scores
    largest: Float[Array, ""]  # the largest weight
    gradient: Float[Array, ""]  # trace of the softmax's Jacobian: sum of d weight_i / d score_i


# Name of each measure in the table, and title of its panel.
_MEASURES = {
    "variance": ("variance", "Variance of the scores"),
    "largest": ("largest weight", "Largest weight"),
    "gradient": ("gradient", "Gradient of the softmax, Σ ∂wᵢ/∂sᵢ"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = table_commands.options(
        "dot_product_scaling",
        __doc__,
        sizes="sizes",
        values=[2**n for n in range(11)],
        arguments=arguments,
    )

    found = {}
    for d_k in options.sizes:
        print(f"d_k = {d_k}", file=sys.stderr)
        found[d_k] = jax.device_get(measure(d_k))

    table = report(found)
    plot = options.output / "dot_product_scaling.png"
    write_file(plot.with_suffix(".md"), table.encode())
    draw(found, plot)
    print(table, plot, sep="\n")


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def measure(d_k: int, keys: int = _KEYS, queries: int = _QUERIES) -> dict[str, Saturation]:
    """Computes the saturation for each kind of score, with separate random keys per query."""
    found = {}
    for name, scores in random_scores(d_k, keys, queries).items():
        weights = jax.nn.softmax(scores, axis=-1)
        found[name] = Saturation(
            variance=scores.var(),
            largest=weights.max(axis=-1).mean(),
            # The Jacobian is diag(w) - w w^T; its trace is 1 - 1/S for equal weights.
            gradient=(1 - jnp.square(weights).sum(axis=-1)).mean(),
        )
    return found


def random_scores(d_k: int, keys: int, queries: int) -> dict[str, Float[Array, "Q S"]]:
    """Computes scores of random queries with random keys, for each kind of score."""

    # A network for every group of queries: a single one with few units would vary too much.
    def group(seed: Array) -> tuple[Array, Array]:
        seeds = jax.random.split(seed, 5)
        q = jax.random.normal(seeds[0], (_QUERIES_PER_NETWORK, 1, 1, d_k))
        k = jax.random.normal(seeds[1], (_QUERIES_PER_NETWORK, keys, 1, d_k))

        # The network of additive attention: a matrix for each side, and a vector.
        matrices = []
        for matrix_seed in seeds[2:4]:
            matrix = jax.random.normal(matrix_seed, (d_k, d_k))
            matrices.append(matrix / math.sqrt(d_k))
        to_q, to_k = matrices
        vector = jax.random.normal(seeds[4], (1, d_k)) / math.sqrt(d_k)

        dot = jnp.einsum("qthk,qshk->qs", q, k)
        additive = additive_scores(q @ to_q, k @ to_k, vector)
        return dot, additive[:, 0, 0]

    groups = math.ceil(queries / _QUERIES_PER_NETWORK)
    seeds = jax.random.split(jax.random.key(d_k), groups)
    both = jax.lax.map(group, seeds)
    dot, additive = (scores.reshape(-1, keys)[:queries] for scores in both)
    return {
        "dot product": dot,
        "dot product / √d_k": dot / math.sqrt(d_k),
        "additive": additive,
    }


def report(found: Mapping[int, Mapping[str, Saturation]]) -> str:
    """Formats the measures of each d_k as a table."""
    header = ["d_k"]
    for name, _ in _MEASURES.values():
        header += [f"{name}: dot", f"{name}: scaled", f"{name}: additive"]

    lines = []
    for d_k, kinds in found.items():
        line = [str(d_k)]
        for measured in _MEASURES:
            for kind in _STYLES:
                value = float(getattr(kinds[kind], measured))
                line.append(f"{value:,.0f}" if value >= 100 else f"{value:.3g}")
        lines.append(line)

    return (
        "# Scores with growing d_k (section 3.2.1)\n\n"
        f"Means over {_QUERIES} random queries with {_KEYS} random keys each, all components of "
        "variance 1. The variance of a dot product is d_k, of a scaled one 1. Gradient: the trace "
        f"of the softmax's Jacobian, {1 - 1 / _KEYS:.3f} for equal weights and 0 for a single "
        f"one.\n\n{table_commands.markdown_table(header, lines)}"
    )


def draw(found: Mapping[int, Mapping[str, Saturation]], path: pathlib.Path) -> None:
    """Plots every measure against d_k, as a PNG or SVG, with dashed lines at d_k and 1."""
    sizes = list(found)
    with figure.open_figure(path, 7.2, 2.4) as page:
        panels = page.subplots(1, 3)
        for axes, (measured, (_, title)) in zip(panels, _MEASURES.items(), strict=True):
            axes.set_title(title)
            axes.grid(visible=True)
            axes.spines[["top", "right"]].set_visible(False)

            for name, (color, marker) in _STYLES.items():
                values = [getattr(found[d_k][name], measured) for d_k in sizes]
                axes.plot(
                    sizes,
                    values,
                    f"{marker}-",
                    color=color,
                    markersize=4,
                    label=name,
                )

            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_xlabel("d_k")
            if measured == "variance":
                axes.set_yscale("log")
                axes.plot(sizes, sizes, "--", color=figure.GRAY, linewidth=0.8)
                axes.axhline(
                    1,
                    linestyle="--",
                    color=figure.GRAY,
                    linewidth=0.8,
                )
            else:
                axes.set_ylim(0, 1.05)
        panels[0].legend(loc="upper left")


if __name__ == "__main__":
    sys.exit(exit_code(main))
