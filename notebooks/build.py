"""Builds the notebooks from the scripts beside this file: ``make notebooks``.

Cells begin with ``# %%``, as in jupytext's percent format. Notebooks have no outputs, and the same
script always gives the same file.
"""

import pathlib

import jupytext
import nbformat

FOLDER = pathlib.Path(__file__).parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def scripts() -> list[pathlib.Path]:
    """Returns the scripts, all files of this folder with cells."""
    return sorted(
        path for path in FOLDER.glob("*.py") if "\n# %%" in path.read_text(encoding="utf-8")
    )


def build(script: pathlib.Path) -> str:
    """Returns the notebook of a script."""
    notebook = jupytext.read(script, fmt="py:percent")
    del notebook.metadata["jupytext"]
    notebook.metadata["kernelspec"] = KERNEL
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


if __name__ == "__main__":
    for script in scripts():
        script.with_suffix(".ipynb").write_text(build(script), encoding="utf-8")
        print(script.with_suffix(".ipynb"))
