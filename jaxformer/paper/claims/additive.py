"""Time and operations of additive and dot-product attention, against the number of positions."""

import functools
import math
import pathlib
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxformer.nn import additive_attention, dot_product_attention
from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim, digits
from jaxformer.paper.table_commands import machine, markdown_table

HEADS = 8
D_K = 64
LENGTHS = (32, 64, 128, 256)
ROUNDS = 10
DOT = "dot product"
ADDITIVE = "additive"

Times = dict[str, dict[int, float]]


class Inputs(NamedTuple):
    """Random queries, keys and values of one sequence, and the network's output vector."""

    queries: Array
    keys: Array
    values: Array
    vector: Array


def measure() -> Times:
    """Returns the fastest of all rounds, in seconds."""
    programs: dict[tuple[str, int], Callable[[], Array]] = {}
    for n in LENGTHS:
        inputs = random_inputs(n)
        for name, attention in (
            (DOT, dot_product),
            (ADDITIVE, additive),
        ):
            compiled = jax.jit(attention).lower(inputs).compile()
            programs[name, n] = functools.partial(compiled, inputs)
            compiled(inputs).block_until_ready()

    # In turn, so that other work on the machine slows all of them.
    best = dict.fromkeys(programs, math.inf)
    for _ in range(ROUNDS):
        for key, program in programs.items():
            began = time.perf_counter()
            program().block_until_ready()
            best[key] = min(best[key], time.perf_counter() - began)

    times: dict[str, dict[int, float]] = {DOT: {}, ADDITIVE: {}}
    for (name, length), seconds in best.items():
        times[name][length] = seconds
    return times


def random_inputs(length: int) -> Inputs:
    keys = jax.random.split(jax.random.key(0), 4)
    arrays = [jax.random.normal(key, (1, length, HEADS, D_K)) for key in keys[:3]]
    return Inputs(*arrays, vector=jax.random.normal(keys[3], (HEADS, D_K)))


def dot_product(inputs: Inputs) -> Array:
    return dot_product_attention(inputs.queries, inputs.keys, inputs.values)[0]


def additive(inputs: Inputs) -> Array:
    everywhere = jnp.ones((1, 1, 1, 1), bool)
    queries, keys, values, vector = inputs
    return additive_attention(queries, keys, values, everywhere, vector)[0]


def report(times: Times) -> str:
    rows = []
    for name, seconds in times.items():
        rows.append([name, *(digits(1000 * value) for value in seconds.values())])
    ratios = [times[ADDITIVE][n] / times[DOT][n] for n in LENGTHS]
    rows.append(["additive / dot product", *(f"{ratio:.0f}" for ratio in ratios)])

    header = ["milliseconds", *(f"n = {n}" for n in LENGTHS)]
    return (
        f"Attention of {HEADS} heads of d_k = {D_K} to n positions, one sequence, forward, without "
        f"projections, float32; fastest of {ROUNDS} rounds on {machine()}.\n\n"
        f"{markdown_table(header, rows)}"
    )


def draw(times: Times, path: pathlib.Path) -> None:
    lines = {}
    for name, seconds in times.items():
        lines[name] = {n: 1000 * value for n, value in seconds.items()}
    panel = Panel("Milliseconds of attention", "positions", lines, log_x=2, log_y=True)
    draw_panels([panel], path)


CLAIM = Claim(
    name="additive",
    place=35,
    says="Dot-product attention is much faster than additive attention.",
    measure=measure,
    report=report,
    draw=draw,
)
