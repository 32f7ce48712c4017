"""``python train.py``: every mistake gives one line and exit code 2, and nothing is written."""

import os
import pathlib
import subprocess
import sys

import pytest

PROJECT = pathlib.Path(__file__).parents[2]


def run(*arguments):
    return subprocess.run(
        [sys.executable, "train.py", *arguments],
        cwd=PROJECT,
        env={**os.environ, "TFDS_DATA_DIR": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--config=configs/bas.py"],
            ["error: configs/bas.py: no such file; did you mean configs/base.py?"],
        ),
        (
            ["--config=configs/base.py:small"],
            ["unknown variant 'small'; known variants: none (the default), 'tiny'"],
        ),
        (["--confg=base"], ["unknown argument --confg=base; did you mean --config?"]),
        ([], ["error: expected a config, such as --config=numerals; see jaxformer train --help"]),
        (["numeral"], ["error: there is no config 'numeral'; did you mean numerals?"]),
        (["--config=nosuch"], ["error: there is no config 'nosuch'; name one of these, or a file"]),
        (["base", "numerals"], ["error: unknown argument numerals; see jaxformer train --help"]),
        (
            ["numerals", "--coordinator=localhost", "--num_processes=1", "--process_id=0"],
            ["error: --coordinator=HOST:PORT needs", "got localhost, 1 and 0"],
        ),
        (
            ["numerals", "--coordinator=localhost:9", "--num_processes=2", "--process_id=2"],
            ["--process_id=0 to N-1: got localhost:9, 2 and 2"],
        ),
        (["--config=configs/base.py", "--workdir="], ["error: expected --workdir=FOLDER"]),
        (
            ["--config=configs/base.py", "--config.training.steps=9", "--config.model.steps=3"],
            ["unknown config field model.steps; known: activation, "],
        ),
        (
            ["--config=configs/base.py", "--config.model.num_layer=3"],
            ["unknown config field model.num_layer; did you mean model.num_layers?"],
        ),
        (
            ["--config=configs/base.py", "--config.model.num_layers=three"],
            ["--config.model.num_layers: expected an integer, got 'three'"],
        ),
        (
            ["--config=configs/base.py", "--config.model.num_heads=7"],
            [
                "model.num_heads must divide model.d_model when model.d_k is not given",
                "num_heads=8",
            ],
        ),
        (
            ["--config=configs/base.py"],
            ["wmt14-de-en/train-*.parquet: no such file", "jaxformer data wmt14"],
        ),
        (
            ["--config=configs/base.py", "--config.data.corpus=tfds"],
            [
                "wmt14_translate/de-en",
                "pip install importlib_resources tensorflow-cpu",
                "--config.data.corpus=text",
                "--config.data.train=",
            ],
        ),
        (
            ["--config=configs/numerals.py", "--workdir=gs://bucket/run"],
            ["expected a path on a local disk: got gs://bucket/run; work on a local disk and copy"],
        ),
        (
            ["--config=configs/multi30k.py", "--config.data.train=gs://bucket/train"],
            ["data.train: expected a path on a local disk: got gs://bucket/train; "],
        ),
        (
            ["--config=configs/multi30k.py", "--config.data.train=/nonexistent/train"],
            ["/nonexistent/train.en"],
        ),
    ],
)
def test_mistakes(arguments, words, tmp_path):
    workdir = tmp_path / "run"
    result = run(f"--workdir={workdir}", *arguments)
    assert result.returncode == 2, result.stderr
    errors = [line for line in result.stderr.split("\n") if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in errors[0]
    assert not workdir.exists()


def test_help_shows_an_example():
    result = run("--help")
    assert "python train.py --config=configs/numerals.py --workdir=runs/numerals" in result.stdout
