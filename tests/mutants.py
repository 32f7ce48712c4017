"""Mutation testing: small changes of the code that must make a test fail.

    python tests/mutants.py --count 50 --seed 0 --processes 2

For each area, ``--count`` places are drawn at random. Each is changed in a copy of the project, and
the area's tests are run until one fails. Prints a line for each mutant. A survivor is a missing
test, or a change that does not matter. Exits with 1 if more than a fifth survive. Nothing is
written to the project itself.
"""

import argparse
import ast
import collections
import concurrent.futures
import contextlib
import copy
import itertools
import json
import os
import pathlib
import queue
import random
import shutil
import signal
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
        modules=["search/*.py"],
        tests=[
            "unit/search/test_settings.py",
            "unit/search",
            "integration/test_mistakes.py",
            "integration/test_decoding.py",
            "integration/test_constraints.py",
        ],
    ),
    "plan": Area(
        modules=["data/plan.py", "data/packing.py", "data/buckets.py"],
        tests=[
            "unit/data/test_plan.py",
            "unit/data/test_packing.py",
            "unit/data/test_buckets.py",
            "unit/data/test_loader.py",
        ],
    ),
    "losses": Area(
        modules=["training/losses.py"],
        tests=[
            "unit/training/test_losses.py",
            "integration/test_mistakes.py",
            "integration/test_step.py",
        ],
    ),
    "checkpoint": Area(
        modules=[
            "runs/checkpoints.py",
            "runs/manifest.py",
            "runs/mirror.py",
            "runs/restoring.py",
        ],
        tests=[
            "unit/runs/test_checkpoints.py",
            "unit/runs/test_mirror.py",
            "unit/runs/test_checkpoint_mutations.py",
            "unit/runs/test_restoring.py",
            "integration/test_missing_checkpoints.py",
            "integration/test_mirror.py",
            "integration/test_hostile_files.py",
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
_NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmax": "argmin",
}


class Mutant(NamedTuple):
    """A change of one file.

    Attributes:
      path: File, relative to the project.
      line: Line number from 1.
      start: First byte that is replaced.
      end: Byte after the last one that is replaced.
      old: Text that is replaced.
      new: Text in its place.
    """

    path: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {_on_a_line(self.old)} -> {_on_a_line(self.new)}"


def _on_a_line(text: str) -> str:
    return " ".join(text.split())[:70]


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
    lengths = map(len, source.splitlines(keepends=True))
    begins = [0, *itertools.accumulate(lengths)]  # of lines, in bytes
    found = []

    def add(node: ast.expr | ast.stmt, text: str) -> None:
        start = begins[node.lineno - 1] + node.col_offset
        end = begins[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        mutant = Mutant(
            path=str(path.relative_to(PROJECT)),
            line=node.lineno,
            start=start,
            end=end,
            old=source[start:end].decode(),
            new=text,
        )
        found.append(mutant)

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
            if name in ("returns", "decorator_list", "annotation"):
                continue
            children = value if isinstance(value, list) else [value]
            for child in children:
                if isinstance(child, ast.AST):
                    visit(child)

    visit(ast.parse(source))
    return found


def sample(area: Area, count: int, seed: int) -> list[Mutant]:
    """Draws mutants of an area."""
    files = []
    for pattern in area.modules:
        files += (PROJECT / "jaxformer").glob(pattern)
    of_files = map(mutants, sorted(files))
    everything = list(itertools.chain.from_iterable(of_files))
    size = min(count, len(everything))
    return random.Random(seed).sample(everything, size)


@contextlib.contextmanager
def changed(folder: pathlib.Path, mutant: Mutant) -> Iterator[None]:
    """Applies a mutant to a copy of the project for the duration of the context."""
    file = folder / mutant.path
    original = file.read_bytes()
    before = original[: mutant.start]
    after = original[mutant.end :]
    file.write_bytes(before + mutant.new.encode() + after)
    try:
        yield
    finally:
        file.write_bytes(original)


def run_tests(tests: list[str], folder: pathlib.Path, limit: float) -> str:
    """Returns "survived", "failed" or "timed out", or the exit code of tests that cannot run."""
    words = ["-m", "pytest", "-xq", "-pno:randomly", "-pno:cacheprovider", "--timeout=300"]
    words += [f"tests/{name}" for name in tests]

    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        code = None

    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # and everything that the tests have started
    process.wait()
    return {0: "survived", 1: "failed", None: "timed out"}.get(code, f"exit code {code}")


class Workers:
    """Copies of the project; each tests one mutant at a time."""

    def __init__(self, folder: pathlib.Path, count: int) -> None:
        usual = shutil.ignore_patterns(".*", "build", "__pycache__")

        def ignored(directory: str, names: list[str]) -> set[str]:
            own = {"runs"} if pathlib.Path(directory) == PROJECT else set()  # not jaxformer/runs
            return usual(directory, names) | own

        # Copies that test no mutant at the moment.
        self._free: queue.Queue[pathlib.Path] = queue.Queue()
        for number in range(count):
            self._free.put(shutil.copytree(PROJECT, folder / str(number), ignore=ignored))
        self._pool = concurrent.futures.ThreadPoolExecutor(count)

    def score(self, area: str, chosen: list[Mutant]) -> dict[str, int]:
        """Tests the mutants of an area, prints a line for each, and counts the outcomes."""
        limit = self._time_limit(area)

        def judge(mutant: Mutant) -> str:
            return self._judge(mutant, AREAS[area].tests, limit)

        counts = collections.Counter()
        found = self._pool.map(judge, chosen)
        for mutant, outcome in zip(chosen, found, strict=True):
            print(f"{outcome:9}  {mutant}", flush=True)
            counts[outcome] += 1
        return dict(counts)

    def _time_limit(self, area: str) -> float:
        """Runs the tests of an area without a mutant, and returns a time limit in seconds."""
        folder = self._free.get()
        took = 0.0
        for _ in range(2):  # the second one finds compiled programs
            began = time.monotonic()
            outcome = run_tests(AREAS[area].tests, folder, 3600)
            took = time.monotonic() - began
            if outcome != "survived":
                raise SystemExit(f"{area}: expected tests that pass without a change: {outcome}")
        self._free.put(folder)
        print(f"{area}: its tests take {took:.0f} s", flush=True)
        return 5 * took + 60

    def _judge(self, mutant: Mutant, tests: list[str], limit: float) -> str:
        folder = self._free.get()
        try:
            with changed(folder, mutant):
                return run_tests(tests, folder, limit)
        finally:
            self._free.put(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--area", choices=AREAS, action="append", help="default: all")
    parser.add_argument("--count", type=int, default=50, help="mutants of each area (default: 50)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice (default: 0)")
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time (default: 2)")
    options = parser.parse_args()

    # All at once, since the project may be edited in the hours that this takes.
    areas = options.area or list(AREAS)
    chosen = {area: sample(AREAS[area], options.count, options.seed) for area in areas}

    with tempfile.TemporaryDirectory() as folder:
        workers = Workers(pathlib.Path(folder), options.processes)
        scores = {area: workers.score(area, mutants) for area, mutants in chosen.items()}
    print(json.dumps(scores))

    total = sum(map(len, chosen.values()))
    survived = sum(score.get("survived", 0) for score in scores.values())
    if survived > 0.2 * total:
        raise SystemExit("expected the tests to notice at least 80 % of the mutants")


if __name__ == "__main__":
    main()
