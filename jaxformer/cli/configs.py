"""Configs that come with jaxformer, by name: ``base:tiny`` is a variant of ``configs/base.py``."""

import ast
import pathlib
import shutil
import sys
import textwrap

from jaxformer.errors import UserError, did_you_mean


def shipped_configs() -> dict[str, pathlib.Path]:
    """Returns the files of the configs that come with jaxformer, by name."""
    package = pathlib.Path(__file__).parents[1]
    # A wheel has the repository's folder inside the package.
    folder = package / "configs"
    if not folder.is_dir():
        folder = package.parent / "configs"

    paths = sorted(folder.glob("*.py"))
    return {path.stem: path for path in paths}


def list_configs() -> str:
    """Returns a line for each config: its name, and the first line of its docstring."""
    configs = shipped_configs()
    columns = max(40, shutil.get_terminal_size().columns - 4)
    width = max(map(len, configs))

    rows = []
    for name, path in configs.items():
        # The file is parsed, not executed: it would import libraries that take long.
        module = ast.parse(path.read_text(encoding="utf-8"))
        docstring = ast.get_docstring(module) or name
        summary = docstring.splitlines()[0]
        row = f"  {name:{width}}  {summary}"
        indent = " " * (width + 4)  # under the summary
        wrapped = textwrap.fill(row, columns, subsequent_indent=indent)
        rows.append(wrapped)
    return "\n".join(rows)


def find_config(name: str) -> str:
    """Returns the file of a config that comes with jaxformer, with its variant; paths unchanged."""
    stem, colon, variant = name.partition(":")
    is_in_folder = pathlib.PurePath(stem).name != stem
    if is_in_folder or stem.endswith(".py"):
        return name

    configs = shipped_configs()
    if stem not in configs:
        print(f"Configs that come with jaxformer:\n{list_configs()}", file=sys.stderr)
        hint = did_you_mean(stem, configs, "name one of these, or a file such as a.py")
        raise UserError(f"there is no config {stem!r}; {hint}")
    return f"{configs[stem]}{colon}{variant}"
