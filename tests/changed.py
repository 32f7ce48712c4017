"""Prints the test files for what has changed since a commit, nearest first, one a line.

    python tests/changed.py [COMMIT]

Without a commit, what is not committed. Changed tests and the unit tests of changed modules come
first, then the files that import a changed module, those that import its importers, and so on, as
long as they take at most 90 seconds on two cores by the times of earlier runs.
``make test-changed`` runs them.
"""

import ast
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator

PROJECT = pathlib.Path(__file__).parents[1]
SECONDS = PROJECT / ".pytest_cache" / "v" / "jaxformer" / "seconds"
MAX_SECONDS = 2 * 60  # of all processes together, which also start
UNKNOWN_SECONDS = 5
PAGES = ["tests/unit/test_pages.py", "tests/unit/test_docs.py"]


def changed_files(commit: str) -> list[str]:
    """Returns the files that differ from a commit, including new ones."""
    commands = (
        ["diff", "--name-only", "--diff-filter=d", commit],
        ["ls-files", "-o", "--exclude-standard"],
    )
    names = set()
    for words in commands:
        listed = subprocess.check_output(["git", *words], cwd=PROJECT, text=True)
        names.update(listed.splitlines())
    return sorted(names)


def module_of(file: str) -> str:
    """Returns the name of the module in a file of the package."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def unit_test_of(file: str) -> str:
    """Returns the name of the unit test of a file of the package, which may not exist."""
    mirrored = file.replace("jaxformer/", "tests/unit/", 1)
    folder, _, name = mirrored.rpartition("/")
    return f"{folder}/test_{name}"


def distances(changed: set[str]) -> dict[str, int]:
    """Returns how many imports lead from each module to a changed one."""
    import grimp  # not installed where only smoke tests run

    graph = grimp.build_graph("jaxformer", cache_dir=None)
    found = {}
    near = changed & graph.modules
    for distance in range(len(graph.modules)):
        found |= dict.fromkeys(near, distance)

        importers = set()
        for module in near:
            importers |= graph.find_modules_that_directly_import(module)
        near = importers - found.keys()
    return found


def imports(file: pathlib.Path) -> Iterator[str]:
    """Yields the modules that a file imports; a lazy name of a package gives its own module."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            stub = PROJECT / node.module.replace(".", "/") / "__init__.pyi"
            lazy = lazy_names(stub) if stub.exists() else {}
            for alias in node.names:
                yield lazy.get(alias.name, f"{node.module}.{alias.name}")


def lazy_names(stub: pathlib.Path) -> dict[str, str]:
    """Returns the module of each name that a package loads lazily, by its stub."""
    modules = {}
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                modules[alias.name] = str(node.module)
    return modules


def tests_of(changed: list[str]) -> Iterator[tuple[int, str]]:
    """Yields test files with their distance to the changed files, in any order."""
    in_package = [name for name in changed if name.startswith("jaxformer/")]
    modules = {module_of(name) for name in in_package if name.endswith(".py")}
    distance = distances(modules)

    nearest = {*changed, *map(unit_test_of, changed)}
    if any(name.endswith(".md") for name in changed):
        nearest.update(PAGES)

    for path in sorted((PROJECT / "tests").rglob("test_*.py")):
        name = path.relative_to(PROJECT).as_posix()
        found = [distance[module] for module in imports(path) if module in distance]
        if name in nearest:
            found.append(-1)
        if found:
            yield min(found), name


def main() -> None:
    commit = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    seconds = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    files = []
    for distance, name in tests_of(changed_files(commit)):
        own = seconds.get(name, UNKNOWN_SECONDS)
        files.append((distance, own, name))

    total = 0.0
    left = 0
    for _, own, name in sorted(files):
        total += own
        if total <= MAX_SECONDS:
            print(name)
        else:
            left += 1
    print(f"{left} more test files import what changed; `make test` runs them", file=sys.stderr)


if __name__ == "__main__":
    main()
