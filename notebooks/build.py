"""Builds the notebooks from the scripts beside this file, and runs them: ``make notebooks``.

Cells begin with ``# %%``, as in jupytext's percent format. A notebook that has the cells of its
script already keeps its outputs. The one for Colab is not run, since it belongs on a TPU.
"""

import pathlib
import sys
import tempfile
from typing import Any

import jupytext
import nbclient
import nbformat

FOLDER = pathlib.Path(__file__).parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
NOT_RUN = {"colab_tpu"}


def scripts() -> list[pathlib.Path]:
    """Returns the scripts, all files of this folder with cells."""
    return sorted(
        path for path in FOLDER.glob("*.py") if "\n# %%" in path.read_text(encoding="utf-8")
    )


def build(script: pathlib.Path) -> Any:
    """Returns the notebook of a script, without outputs."""
    notebook = jupytext.read(script, fmt="py:percent")
    del notebook.metadata["jupytext"]
    notebook.metadata["kernelspec"] = KERNEL
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    nbformat.validate(notebook)
    return notebook


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


if __name__ == "__main__":
    for script in scripts():
        path, notebook = script.with_suffix(".ipynb"), build(script)
        if path.exists() and without_outputs(nbformat.read(path, 4)) == notebook:
            print(f"{path}: is up to date")
            continue
        print(f"{path}: running", file=sys.stderr)
        if script.stem not in NOT_RUN:
            run(notebook)
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
