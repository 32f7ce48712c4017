"""Operations, memory and parameters of multi-head attention against the number of heads."""

import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.nn import MultiHeadAttention
from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim
from jaxformer.paper.table_commands import markdown_table

WIDTH = 512
POSITIONS = 512
HEADS = (1, 2, 4, 8, 16, 32)


class Cost(NamedTuple):
    """The cost of one layer for one sequence, forward."""

    parameters: int
    matmul_operations: int  # two for each multiplication and addition
    operations: float  # all, by XLA's analysis
    score_bytes: int


Figures = dict[int, Cost]


def measure() -> Figures:
    return {heads: cost(heads, WIDTH, POSITIONS) for heads in HEADS}


def cost(heads: int, width: int, positions: int) -> Cost:
    """Analyzes the program without running it."""
    layer = MultiHeadAttention(heads)
    x = jax.ShapeDtypeStruct((1, positions, width), jnp.float32)
    params = jax.eval_shape(layer.init, jax.random.key(0), x)
    analysis: Any = jax.jit(layer.apply).lower(params, x).cost_analysis()

    projections = 4 * width * width * positions
    attention = 2 * positions * positions * width
    return Cost(
        parameters=sum(leaf.size for leaf in jax.tree.leaves(params)),
        matmul_operations=2 * (projections + attention),
        operations=analysis["flops"],
        score_bytes=4 * heads * positions * positions,
    )


def report(figures: Figures) -> str:
    rows = []
    for heads, found in figures.items():
        rows.append(
            [
                str(heads),
                f"{found.parameters:,}",
                f"{found.matmul_operations / 1e6:,.0f}",
                f"{found.operations / 1e6:,.0f}",
                f"{found.score_bytes / 2**20:,.0f}",
            ]
        )
    header = [
        "heads",
        "parameters",
        "million operations of matmuls, by formula",
        "million operations, all, by XLA",
        "MiB of scores",
    ]
    return (
        f"One layer of multi-head attention, forward, d_model = {WIDTH}, {POSITIONS} positions, "
        f"d_k = d_model / heads.\n\n{markdown_table(header, rows)}"
    )


def draw(figures: Figures, path: pathlib.Path) -> None:
    first = figures[1]
    lines = {
        "parameters": {h: c.parameters / first.parameters for h, c in figures.items()},
        "operations": {h: c.operations / first.operations for h, c in figures.items()},
        "memory of scores": {h: c.score_bytes / first.score_bytes for h, c in figures.items()},
    }
    panel = Panel("Relative to one head", "heads", lines, log_x=2, log_y=True)
    draw_panels([panel], path)


CLAIM = Claim(
    name="heads",
    place=40,
    says="Twice as many heads cost twice as much.",
    measure=measure,
    report=report,
    draw=draw,
)
