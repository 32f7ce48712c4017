"""Mutation testing: small changes of the code that must make a test fail.

    python tests/mutants.py --count 50 --seed 0 --processes 2

For each area, ``--count`` places are drawn at random. Each is changed in a copy of the project, and
the area's tests are run until one fails. Prints a line for each mutant, and the number killed. A
survivor is a missing test, or a change that does not matter. Nothing is written to the project
itself.
"""

import argparse
import ast
import concurrent.futures
import copy
import itertools
import json
import os
import pathlib
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

PROJECT = pathlib.Path(__file__).parents[1]


class Area(NamedTuple):
    """Modules, and the tests that must notice a change, the nearest first."""

    modules: list[str]
    tests: list[str]


AREAS = {
    "search": Area(
        ["search/*.py"],
        ["unit/search", "integration/test_decoding.py", "integration/test_constraints.py"],
    ),
    "plan": Area(
        ["data/plan.py", "data/packing.py", "data/buckets.py", "data/mixture.py"],
        [
            *("unit/data/test_plan.py", "unit/data/test_packing.py", "unit/data/test_buckets.py"),
            *(
                "unit/data/test_mixture.py",
                "unit/data/test_loader.py",
                "integration/test_resume.py",
            ),
        ],
    ),
    "losses": Area(
        ["training/losses.py"],
        ["unit/training/test_losses.py", "integration/test_step.py"],
    ),
    "checkpoint": Area(
        ["checkpoint/*.py"],
        [
            *("unit/test_checkpoint.py", "unit/test_mirror.py"),
            *("unit/test_checkpoint_mutations.py", "integration/test_missing_checkpoints.py"),
            *("integration/test_mirror.py", "integration/test_hostile_files.py"),
        ],
    ),
}

# Without "/", which mostly joins paths: a mutant would always fail.
_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_NAMES |= {"minimum": "maximum", "maximum": "minimum", "argmax": "argmin"}


class Mutant(NamedTuple):
    """A change of one file.

    Attributes:
      path: File, relative to the project.
      line: Line number from 1.
      start: First byte that is replaced.
      end: Byte after the last one that is replaced.
      text: What replaces them.
    """

    path: str
    line: int
    start: int
    end: int
    text: str


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """Yields changed copies of a node: another operator, name, condition or number."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[op]) if type(op) in _SWAPS:
            new.ops = [_SWAPS[type(op)]()]
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in _SWAPS:
            new.op = _SWAPS[type(op)]()
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            new = new.operand
        case ast.Constant(value=bool()):
            new.value = not new.value
        case ast.Constant(value=int() | float()):
            new.value += 1
        case ast.Name() if new.id in _NAMES:
            new.id = _NAMES[new.id]
        case ast.Attribute() if new.attr in _NAMES:
            new.attr = _NAMES[new.attr]
        case ast.IfExp():
            new.test = ast.UnaryOp(ast.Not(), new.test)
        case _:
            return
    yield new


def mutants(path: pathlib.Path) -> list[Mutant]:
    """Returns all mutants of a file, without annotations, messages and ``strict`` of ``zip``."""
    source = path.read_bytes()
    lines = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    found = []

    def add(node: ast.expr | ast.stmt, text: str) -> None:
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        found.append(Mutant(str(path.relative_to(PROJECT)), node.lineno, start, end, text))

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.keyword) and node.arg == "strict":
            return
        if isinstance(node, ast.JoinedStr | ast.AnnAssign | ast.Raise | ast.arg):
            if isinstance(node, ast.Raise):
                add(node, "pass")
            elif isinstance(node, ast.AnnAssign) and node.value:
                visit(node.value)
            return
        for new in variants(node):
            add(node, f"({ast.unparse(new)})")
        if isinstance(node, ast.If | ast.While):
            add(node.test, f"(not ({ast.unparse(node.test)}))")
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            add(node, "pass")
        for name, value in ast.iter_fields(node):
            if name not in ("returns", "decorator_list", "annotation"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        visit(child)

    visit(ast.parse(source))
    return found


def sample(area: Area, count: int, seed: int) -> list[Mutant]:
    """Draws mutants of an area."""
    root = PROJECT / "jaxformer"
    files = sorted(path for pattern in area.modules for path in root.glob(pattern))
    everything = [mutant for path in files for mutant in mutants(path)]
    return random.Random(seed).sample(everything, min(count, len(everything)))


def survives(mutant: Mutant | None, tests: list[str], folder: pathlib.Path, limit: float) -> str:
    """Runs the tests in a copy of the project, with a mutant or without.

    Returns:
      "survived", or how the tests noticed: "failed" or "timed out".
    """
    if mutant:
        file = folder / mutant.path
        original = file.read_bytes()
        file.write_bytes(original[: mutant.start] + mutant.text.encode() + original[mutant.end :])
        try:
            return survives(None, tests, folder, limit)
        finally:
            file.write_bytes(original)
    words = ["-m", "pytest", "-xq", "-pno:randomly", "-pno:cacheprovider", "--timeout=300"]
    words += [f"tests/{name}" for name in tests]
    cache = folder.parent / "programs"
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        return "survived" if done.returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        return "timed out"


def described(mutant: Mutant) -> str:
    """Returns a mutant as one line."""
    before = (PROJECT / mutant.path).read_bytes()[mutant.start : mutant.end].decode()
    texts = [" ".join(text.split())[:70] for text in (before, mutant.text)]
    return f"{mutant.path}:{mutant.line}: {texts[0]} -> {texts[1]}"


class Workers:
    """Copies of the project; each tests one mutant at a time."""

    def __init__(self, folder: pathlib.Path, count: int) -> None:
        self._count = count
        self._free: queue.Queue[pathlib.Path] = queue.Queue()
        ignored = shutil.ignore_patterns(".*", "build", "runs", "__pycache__")
        for number in range(count):
            self._free.put(shutil.copytree(PROJECT, folder / str(number), ignore=ignored))

    def judge(self, mutant: Mutant | None, tests: list[str], limit: float = 3600.0) -> str:
        """Does what :func:`survives` does, in a copy that is free."""
        folder = self._free.get()
        try:
            return survives(mutant, tests, folder, limit)
        finally:
            self._free.put(folder)

    def score(self, name: str, chosen: list[Mutant]) -> dict[str, int]:
        """Tests the mutants of an area, and prints a line for each."""
        tests, took = AREAS[name].tests, 0.0
        for _ in range(2):  # the second one finds compiled programs
            began = time.monotonic()
            if self.judge(None, tests) != "survived":
                raise SystemExit(f"{name}: expected tests that pass without a change")
            took = time.monotonic() - began
        print(f"{name}: {len(chosen)} mutants; its tests take {took:.0f} s", flush=True)
        outcomes = []
        with concurrent.futures.ThreadPoolExecutor(self._count) as pool:
            found = pool.map(lambda mutant: self.judge(mutant, tests, 5 * took + 60), chosen)
            for mutant, outcome in zip(chosen, found, strict=True):
                print(f"{outcome:9}  {described(mutant)}", flush=True)
                outcomes.append(outcome)
        return {"mutants": len(outcomes), "killed": len(outcomes) - outcomes.count("survived")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--area", choices=AREAS, action="append", help="default: all")
    parser.add_argument("--count", type=int, default=50, help="mutants of each area (default: 50)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice (default: 0)")
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time (default: 2)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workers = Workers(pathlib.Path(folder), options.processes)
        scores = {
            name: workers.score(name, sample(AREAS[name], options.count, options.seed))
            for name in options.area or AREAS
        }
    print(json.dumps(scores))


if __name__ == "__main__":
    main()
