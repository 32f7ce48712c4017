"""Checks for known defects of XLA's CPU compiler, by programs that reproduce them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

_TIMEOUT_SECONDS = 60


class Defect(NamedTuple):
    """A defect that has been reported to JAX.

    Attributes:
      issue: URL of the report.
      name: Description of the operation that goes wrong.
      program: Program that prints the number of wrong results. It may crash, so it runs in a
        separate process.
    """

    issue: str
    name: str
    program: str


DEFECTS = (
    Defect(
        "https://github.com/jax-ml/jax/issues/39103",
        "sums over products of more than 32,768 rows",
        "import jax, jax.numpy as jnp\n"
        "x = jnp.stack([jnp.arange(40_000.0)] * 3, axis=1)\n"
        "found = jax.jit(jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2)))(x)\n"
        "exact = (x**2).sum(axis=1)\n"
        "print(int((abs(found - exact) > 1e-5 * exact).sum()))\n",
    ),
    Defect(
        "https://github.com/jax-ml/jax/issues/40412",
        "sums over an axis of products with seven axes",
        "import jax, jax.numpy as jnp\n"
        "ones = jnp.ones((3, 1, 2, 2, 8, 8, 8))\n"
        "print(int((jax.jit(lambda a, b: (a * b).sum(3))(ones, ones) != 2).sum()))\n",
    ),
)


def check_compiler() -> Iterator[str]:
    """Runs the programs of all defects in parallel and yields a line of results for each."""
    # The persistent compilation cache could hold programs compiled by another version.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "0"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", defect.program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for defect in DEFECTS
    ]
    for defect, process in zip(DEFECTS, running, strict=True):
        yield f"{defect.name}: {_outcome(process)} ({defect.issue})"
    yield "jaxformer's own programs were compared with and without them: docs/LOG.md, 2026-11-23"


def _outcome(process: subprocess.Popen) -> str:
    try:
        output, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"HANGS for more than {_TIMEOUT_SECONDS} s"
    if process.returncode != 0:
        return f"CRASHES with exit code {process.returncode}"
    wrong = int(output)
    return f"WRONG in {wrong:,} places" if wrong else "right"
