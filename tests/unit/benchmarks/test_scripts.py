"""Values of the scripts of benchmarks/ that the docs quote."""

import inspect
import pathlib
import runpy

PROJECT = pathlib.Path(__file__).parents[3]


def test_docs_are_up_to_date():
    notebook = runpy.run_path(str(PROJECT / "benchmarks" / "translation_notebook.py"))
    source = inspect.getsource(notebook["train_ours"])
    count = notebook["count_lines"](source)

    page = (PROJECT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert f"| lines of code, without blank lines and comments | 327 | {count} |" in page
