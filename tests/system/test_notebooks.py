"""The notebooks are in step with their scripts, run, and survive a kill."""

import ast
import importlib
import importlib.util
import json
import os
import pathlib
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import jaxformer

PROJECT = pathlib.Path(__file__).parents[2]
FOLDER = PROJECT / "notebooks"
NAMES = ["annotated_paper", "colab_tpu", "quickstart", "your_own_model"]
# Pictures and interactive pages that a notebook shows.
PICTURES = {"annotated_paper": (8, 1), "quickstart": (2, 1)}


def environment(devices=1):
    """Returns the environment of a user, with the tests' cache of compiled programs."""
    return os.environ | {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
        "PYTHONPATH": str(PROJECT),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }


def text(name):
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def cells(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def test_every_notebook_is_here():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted([*NAMES, "build"])


@pytest.mark.parametrize("name", NAMES)
def test_is_built_from_its_script(name):
    pytest.importorskip("jupytext", reason="jupytext is not installed: the extra dev has it")
    build = runpy.run_path(str(FOLDER / "build.py"))["build"]
    built = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert built == build(FOLDER / f"{name}.py"), "run: make notebooks"
    assert not any(cell.get("outputs") for cell in cells(name))


def is_public(module, name):
    """Returns True if a package lists the name, or a module without a list defines it."""
    listed = getattr(module, "__all__", vars(module))
    is_module = hasattr(module, "__path__") and importlib.util.find_spec(
        f"{module.__name__}.{name}"
    )
    return not name.startswith("_") and (name in listed or bool(is_module))


@pytest.mark.parametrize("name", NAMES)
def test_names_are_public(name):
    for node in ast.walk(ast.parse(text(name))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("jaxformer"):
            module = importlib.import_module(str(node.module))
            assert all(is_public(module, alias.name) for alias in node.names), ast.unparse(node)
        elif isinstance(node, ast.Attribute):
            of_package = ast.unparse(node.value) == "jaxformer"
            assert not re.match("_(?!_)", node.attr), ast.unparse(node)
            assert not of_package or is_public(jaxformer, node.attr), ast.unparse(node)


def test_all_install_in_the_same_way():
    (cell,) = {re.search(r'SOURCE = ""\n.*?\n\n', text(name), re.S)[0] for name in NAMES}
    assert "pip" in cell


def test_the_annotated_paper_has_every_section_in_order():
    headings = re.findall(r"^# ## ([\d.]+) ", text("annotated_paper"), flags=re.M)
    sections = [
        *("1", "2", "3", "3.1", "3.2", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5", "4"),
        *("5", "5.1", "5.2", "5.3", "5.4", "6", "6.1", "6.2", "6.3", "7"),
    ]
    assert headings == sections
    assert re.findall(r"\\tag\{(\d)\}", text("annotated_paper")) == ["1", "2", "3"]


@pytest.mark.ci
@pytest.mark.smoke
@pytest.mark.parametrize("name", NAMES)
def test_runs(name, tmp_path):
    """In a Jupyter kernel if there is one, else as a plain script: cells check their results."""
    if importlib.util.find_spec("nbclient") is None:
        command = [sys.executable, str(FOLDER / f"{name}.py")]
        variables = environment() | {"MPLBACKEND": "Agg"}
        subprocess.run(command, cwd=tmp_path, env=variables, check=True)
        return
    shown = run_in_kernel(name, tmp_path)
    pages = [data for data in shown if "<iframe" in "".join(data.get("text/html", ""))]
    pictures = [data for data in shown if "image/png" in data]
    assert (len(pictures), len(pages)) == PICTURES.get(name, (0, 0))


def run_in_kernel(name, folder):
    """Runs all cells in a Jupyter kernel; returns what they show, by type."""
    import nbclient
    import nbformat

    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    variables = {n: v for n, v in environment().items() if n != "MPLBACKEND"}
    client = nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3")
    client.execute(cwd=str(folder), env=variables)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output["data"] for output in outputs if "data" in output]


class ColabMachine:
    """A folder in which the Colab notebook runs as a script, on four simulated devices."""

    def __init__(self, folder):
        self.folder, self.log = folder, folder / "log"
        folder.mkdir()

    def start(self):
        command = [sys.executable, str(FOLDER / "colab_tpu.py")]
        variables = environment(devices=4) | {"MPLBACKEND": "Agg"}
        with self.log.open("w") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=variables, stdout=log, stderr=subprocess.STDOUT
            )

    def finish(self):
        assert self.start().wait() == 0, self.log.read_text()

    def copied_steps(self):
        """Returns the steps whose copy has a manifest, which is written last."""
        copies = (self.folder / "drive" / "jaxformer" / "colab" / "checkpoints").glob("*/manifest*")
        return sorted(int(path.parent.name) for path in copies)

    def results(self):
        """Returns final loss and hash, which the notebook prints."""
        return re.findall(r"^(?:validation loss|SHA-256).*$", self.log.read_text(), flags=re.M)

    def parameters(self):
        """Returns the final parameters, from the copy."""
        _, params = jaxformer.load_model(self.folder / "drive" / "jaxformer" / "colab")
        return jax.device_get(params)


@pytest.mark.ci
def test_a_killed_colab_kernel_resumes_from_the_mirror_on_a_new_disk(tmp_path):
    """The kernel is killed after a copy, its disk deleted; the next run gives the same bits.

    When the second copy has a manifest, the first one is complete.
    """
    whole, killed = ColabMachine(tmp_path / "whole"), ColabMachine(tmp_path / "killed")
    whole.finish()
    process = killed.start()
    while len(killed.copied_steps()) < 2:
        assert process.poll() is None, killed.log.read_text()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    copied = killed.copied_steps()
    assert copied[-1] < 120
    shutil.rmtree(killed.folder / "runs")
    killed.finish()
    assert "4 x " in whole.log.read_text()
    starts = re.search(r"resumed from step (\d+)", killed.log.read_text())
    assert starts is not None
    assert copied[0] <= int(starts[1]) < 120
    assert len(whole.results()) == 2
    assert killed.results() == whole.results()
    jax.tree.map(np.testing.assert_array_equal, killed.parameters(), whole.parameters())
