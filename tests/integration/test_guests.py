"""Packages that nothing below them imports: without them, the rest translates and trains."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

PROJECT = pathlib.Path(__file__).parents[2]
GUESTS = [
    "distillation.py",
    "interop",
    "paper",
    "plots",
    "serving",
    "tasks/parsing",
    # Tasks of pictures share their augmentation and their sections.
    "tasks/captions",
    "tasks/image_text",
    "tasks/images",
    "tasks/interleaved",
]
TRAIN = [
    "train.py",
    "--config=configs/numerals.py",
    "--workdir=run",
    "--config.training.steps=2",
    "--config.training.warmup_steps=1",
    "--config.training.checkpoint_every=2",
    "--config.training.eval_every=2",
    "--config.training.eval_sentences=0",
]


@pytest.mark.ci
def test_the_rest_works_without_its_guests(tmp_path):
    for name in ("jaxformer", "configs"):
        shutil.copytree(PROJECT / name, tmp_path / name)
    shutil.copy(PROJECT / "train.py", tmp_path)

    for guest in GUESTS:
        path = tmp_path / "jaxformer" / guest
        assert path.exists(), guest
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    def run(*command, text=""):
        return subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            input=text,
            capture_output=True,
            text=True,
            timeout=600,
        )

    place = run("-c", "import jaxformer; print(jaxformer.__file__)").stdout
    assert place.startswith(str(tmp_path))

    translated = run("-m", "jaxformer", "translate", text="The house is old.\n")
    assert translated.stdout == "Das Haus ist alt.\n", translated.stderr
    trained = run(*TRAIN)
    assert trained.returncode == 0, trained.stderr
    assert "done; translate with" in trained.stderr
