"""The notebooks are in step with their scripts, run, and survive a kill."""

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

import jax
import numpy as np
import pytest

import jaxformer

from ..profiles import by_profile

PROJECT = pathlib.Path(__file__).parents[2]
FOLDER = PROJECT / "notebooks"
NAMES = [
    "annotated_paper",
    "claims",
    "colab_tpu",
    "models_that_see",
    "nnx_model",
    "quickstart",
    "reading_pictures",
    "your_own_model",
]
# Pictures and interactive pages that a notebook shows.
PICTURES = {
    "annotated_paper": (8, 1),
    "claims": (7, 0),
    "models_that_see": (2, 0),
    "quickstart": (2, 1),
    "reading_pictures": (1, 0),
}
# Fewer steps, sentences and rows, without the checks of results that need more.
SHORTER = {
    "annotated_paper": {
        "range(400)": "range(2)",
        "assert accuracies[1].min() < 0.5\nassert accuracies[8].min() > 0.98": "",
        "steps=300, warmup_steps=200, checkpoint_every=25, eval_every=150, eval_sentences=100": (
            "steps=10, warmup_steps=2, checkpoint_every=2, eval_every=10, eval_sentences=4"
        ),
        'zip(*NumeralsCorpus().pairs("held_out"))': "zip(*pairs[:4])",
        "assert correct > 0.8 * len(references)": "",
        "ROWS.items()": "list(ROWS.items())[:3]",
    },
    "claims": {
        "STEPS = 200": "STEPS = 2",
        "assert after < 20 < 80 < first": "",
        "STEPS = 600": "STEPS = 2",
        "assert with_truth > alone + 15": "",
    },
    "colab_tpu": {
        "steps=120": "steps=30",
        "warmup_steps=100": "warmup_steps=5",
        "log_every=20": "log_every=5",
        "checkpoint_every=20": "checkpoint_every=5",
        "eval_every=60": "eval_every=15",
        "eval_sentences=50": "eval_sentences=4",
    },
    "models_that_see": {
        "STEPS = 400": "STEPS = 2",
        "STEPS = 300": "STEPS = 2",
        'assert scores["convit"] > 0.85': "",
        "assert score > 0.1": "",
    },
    "nnx_model": {
        "steps=600, log_every=200, checkpoint_every=300, eval_every=300": (
            "steps=2, log_every=1, checkpoint_every=1, eval_every=2"
        ),
        "assert score > 0.9": "",
    },
    "quickstart": {
        "steps=300, warmup_steps=200, checkpoint_every=100, eval_every=100, eval_sentences=100": (
            "steps=4, warmup_steps=2, checkpoint_every=2, eval_every=4, eval_sentences=4"
        ),
        'NumeralsCorpus().pairs("held_out")': 'list(NumeralsCorpus().pairs("held_out"))[:4]',
        "assert correct > 0.8 * len(references)": "",
    },
    "reading_pictures": {
        "steps = 1200": "steps = 2",
        "log_every=200, checkpoint_every=400, eval_every=400": (
            "log_every=1, checkpoint_every=1, eval_every=2"
        ),
        "steps = 400": "steps = 2",
        "log_every=100, checkpoint_every=200, eval_every=200": (
            "log_every=1, checkpoint_every=1, eval_every=2"
        ),
        "100, steps": "1, steps",
        "assert score > 0.7": "",
        "assert score > 0.5": "",
    },
    "your_own_model": {
        "steps=600, log_every=200, checkpoint_every=300, eval_every=300": (
            "steps=2, log_every=1, checkpoint_every=1, eval_every=2"
        ),
        "steps=100, log_every=50, checkpoint_every=100, eval_every=100": (
            "steps=2, log_every=1, checkpoint_every=1, eval_every=2"
        ),
        "assert score > 0.9": "",
        "assert shares[0] > shares[1] + 0.3": "",
    },
}
# Slower steps, so that copies keep up, and the end of the machine after two complete copies.
KILLED = """
import os, signal, time

def kill(step, state, sums):
    time.sleep(0.05)
    if len(list(MIRROR.glob("checkpoints/*/manifest.json"))) >= 2:
        os.kill(os.getpid(), signal.SIGKILL)

state = train(config, WORKDIR, hooks=[kill])
"""


def environment(devices=1):
    """Returns the environment of a user; in the nightly profile with all optimizations."""
    return os.environ | {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": by_profile("1", nightly="0"),
        "PYTHONPATH": str(PROJECT),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }


def text(name):
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def shortened(name):
    """Returns the script as it is run: unchanged in the nightly profile."""
    script = text(name)
    for long, short in by_profile(SHORTER[name], nightly={}).items():
        assert long in script
        script = script.replace(long, short)
    return script


@pytest.mark.parametrize("name", NAMES)
def test_is_built_from_its_script(name):
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES

    for package in ("jupytext", "nbclient"):
        pytest.importorskip(package, reason=f"{package} is not installed: the extra dev has it")
    import nbformat

    builder = runpy.run_path(str(FOLDER / "build.py"))
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    built = builder["build"](FOLDER / f"{name}.py")
    assert builder["without_outputs"](notebook) == built, "run: make notebooks"

    if name not in builder["NOT_RUN"]:
        check_outputs(name, notebook.cells)


def test_all_begin_with_the_cell_that_installs_jaxformer():
    install = (FOLDER / "install.py").read_text(encoding="utf-8").rstrip()
    for name in NAMES:
        notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
        title, first, *_ = notebook["cells"]
        assert title["cell_type"] == "markdown"
        assert "".join(first["source"]) == install


def test_an_address_is_where_notebooks_install_from_and_open():
    for package in ("jupytext", "nbclient"):
        pytest.importorskip(package, reason=f"{package} is not installed: the extra dev has it")
    builder = runpy.run_path(str(FOLDER / "build.py"))
    script = FOLDER / "quickstart.py"

    title, first, *_ = builder["build"](script, "https://github.com/owner/name").cells
    colab = "https://colab.research.google.com/github/owner/name/blob/main/notebooks/"
    assert title.source.endswith(f"[Open in Colab]({colab}quickstart.ipynb)")
    assert '\nSOURCE = "git+https://github.com/owner/name"\n' in first.source

    # Colab opens no other addresses, but pip does.
    title, first, *_ = builder["build"](script, "https://example.org/name").cells
    assert "Colab" not in title.source
    assert '\nSOURCE = "git+https://example.org/name"\n' in first.source


def check_outputs(name, cells):
    """Checks that the cells of a notebook show its pictures and pages, and no errors.

    Nothing is on standard error, which notebooks show in red.
    """
    outputs = []
    for cell in cells:
        outputs += cell.get("outputs", [])
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]

    shown = [output["data"] for output in outputs if "data" in output]
    pictures = [data for data in shown if "image/png" in data]
    pages = [data for data in shown if "<iframe" in "".join(data.get("text/html", ""))]
    expected_pictures, expected_pages = PICTURES.get(name, (0, 0))
    assert len(pictures) == expected_pictures, name
    assert len(pages) == expected_pages, name


@pytest.mark.ci
@pytest.mark.smoke
@pytest.mark.timeout(1800)
def test_cells_run(tmp_path):
    """In a Jupyter kernel if there is one, else as plain scripts; Colab's notebook runs below."""
    names = [name for name in NAMES if name != "colab_tpu"]
    if importlib.util.find_spec("nbclient") is None:
        for name in names:
            (tmp_path / f"{name}.py").write_text(shortened(name), encoding="utf-8")
            command = [sys.executable, f"{name}.py"]
            subprocess.run(command, cwd=tmp_path, env=environment(), check=True)
        return

    for name, cells in run_in_kernel(names, tmp_path).items():
        check_outputs(name, cells)


def run_in_kernel(names, folder):
    """Runs all cells in one kernel, which forgets names between notebooks; returns the cells."""
    import jupytext
    import nbclient
    import nbformat

    cells = {}
    notebook = nbformat.v4.new_notebook(cells=[])
    reset = nbformat.v4.new_code_cell("%reset -f")
    for name in names:
        cells[name] = jupytext.reads(shortened(name), fmt="py:percent").cells
        notebook.cells += [*cells[name], reset]

    variables = environment()
    del variables["MPLBACKEND"]
    client = nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3")
    client.execute(cwd=str(folder), env=variables)
    return cells


class ColabMachine:
    """A folder in which the Colab notebook runs as a script, on four simulated devices."""

    def __init__(self, folder):
        self.folder = folder
        self.log = ""
        self.mirror = folder / "drive" / "jaxformer" / "colab"
        folder.mkdir()

    def run(self, train="state = train(config, WORKDIR)"):
        script = shortened("colab_tpu").replace("state = train(config, WORKDIR)", train)
        (self.folder / "script.py").write_text(script, encoding="utf-8")

        result = subprocess.run(
            [sys.executable, "script.py"],
            cwd=self.folder,
            env=environment(devices=4),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.log = result.stdout
        return result.returncode

    def results(self):
        """Returns final loss and hash, which the notebook prints, and the copy's parameters."""
        printed = re.findall(r"^(?:validation loss|SHA-256).*$", self.log, flags=re.M)
        _, params = jaxformer.load_model(self.mirror)
        return printed, jax.device_get(params)


@pytest.mark.ci
@pytest.mark.smoke
@pytest.mark.timeout(1800)
def test_a_killed_colab_kernel_resumes_from_the_mirror_on_a_new_disk(tmp_path):
    """The kernel is killed after two copies, its disk deleted; the next run gives the same bits."""
    whole = ColabMachine(tmp_path / "whole")
    assert whole.run() == 0, whole.log
    assert "4 x " in whole.log

    killed = ColabMachine(tmp_path / "killed")
    assert killed.run(KILLED) == -signal.SIGKILL, killed.log
    shutil.rmtree(killed.folder / "runs")
    assert killed.run() == 0, killed.log
    assert re.search(r"resumed from step [1-9]", killed.log), killed.log

    expected, params = whole.results()
    printed, restored = killed.results()
    assert len(expected) == 2
    assert printed == expected
    jax.tree.map(np.testing.assert_array_equal, restored, params)
