"""Builds the notebooks from the scripts beside this file, and runs them: ``make notebooks``.

Cells begin with ``# %%``, as in jupytext's percent format. The second cell of each notebook is
``install.py``. A notebook that has the cells of its script already keeps its outputs, though the
package may have changed; name it to run it again: ``python notebooks/build.py annotated_paper``.
The one for Colab is not run, since it belongs on a TPU.

If pyproject.toml has an address of the repository, the notebooks install from it, and link to
themselves in Colab.
"""

import argparse
import pathlib
import sys
import tempfile
import time
import tomllib
from typing import Any

import jupytext
import nbclient
import nbformat

FOLDER = pathlib.Path(__file__).parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
NOT_RUN = {"colab_tpu"}
PROJECT = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT.get("urls", {}).get("Repository", "")  # "" until there is an address
GITHUB = "https://github.com/"
COLAB = "https://colab.research.google.com/github/"


def scripts() -> list[pathlib.Path]:
    """Returns the scripts, all files of this folder with cells."""
    return sorted(
        path for path in FOLDER.glob("*.py") if "\n# %%" in path.read_text(encoding="utf-8")
    )


def build(script: pathlib.Path, repository: str = REPOSITORY) -> Any:
    """Returns the notebook of a script, without outputs."""
    notebook = jupytext.read(script, fmt="py:percent")
    del notebook.metadata["jupytext"]
    notebook.metadata["kernelspec"] = KERNEL

    title = notebook.cells[0]
    if repository.startswith(GITHUB):
        place = repository.removeprefix(GITHUB).rstrip("/")
        address = f"{COLAB}{place}/blob/main/notebooks/{script.stem}.ipynb"
        title.source += f"\n\n[Open in Colab]({address})"
    notebook.cells.insert(1, nbformat.v4.new_code_cell(install_cell(repository)))

    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    nbformat.validate(notebook)
    return notebook


def install_cell(repository: str = REPOSITORY) -> str:
    """Returns the source of the cell that installs jaxformer."""
    source = (FOLDER / "install.py").read_text(encoding="utf-8").rstrip()
    if not repository:
        return source
    return source.replace('SOURCE = ""', f'SOURCE = "git+{repository}"')


def without_outputs(notebook: Any) -> Any:
    """Returns a copy of a notebook as :func:`build` returns it."""
    copy = nbformat.from_dict(notebook)
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return copy


def run(notebook: Any) -> None:
    """Adds the outputs of all cells, run in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook, timeout=None, record_timing=False, coalesce_streams=True
        )
        client.execute(cwd=folder)
    notebook.metadata = {"kernelspec": KERNEL}
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        output.get("data", {}).pop("text/latex", None)  # a third copy of our source


def main() -> None:
    """Builds all notebooks, or those that are named."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    choices = [script.stem for script in scripts()]
    parser.add_argument("names", nargs="*", help=f"run these again: {', '.join(choices)}")
    names = parser.parse_args().names
    unknown = set(names) - set(choices)
    if unknown:
        parser.error(f"expected names among {', '.join(choices)}, got {', '.join(sorted(unknown))}")

    for script in scripts():
        path = script.with_suffix(".ipynb")
        if names and script.stem not in names:
            continue
        if not names and is_up_to_date(script):
            print(f"{path}: is up to date")
            continue

        notebook = build(script)
        print(f"{path}: running", file=sys.stderr)
        start = time.monotonic()
        if script.stem not in NOT_RUN:
            run(notebook)
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        print(f"{path}: {time.monotonic() - start:.0f} s", file=sys.stderr)


def is_up_to_date(script: pathlib.Path) -> bool:
    """Returns whether the notebook of a script has its cells."""
    path = script.with_suffix(".ipynb")
    return path.exists() and without_outputs(nbformat.read(path, 4)) == build(script)


if __name__ == "__main__":
    main()
