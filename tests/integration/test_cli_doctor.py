"""The command ``doctor``: what fits, what would make it fit, and mistakes."""

import pathlib
import re
import subprocess
import sys

import pytest

from jaxformer.cli import main
from jaxformer.training import memory

# ml_collections 1.1 loads config files in a way that Python deprecates (2026-11).
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

PROJECT = pathlib.Path(__file__).parents[2]
SMALL = [
    f"--config={PROJECT / 'configs' / 'base.py'}:tiny",
    *("--config.model.vocab_size=100", "--config.model.d_model=16", "--config.model.d_ff=32"),
    *("--config.model.num_layers=1", "--config.data.tokens_per_batch=2048"),
]


def doctor(capsys, *arguments):
    code = main(["doctor", *SMALL, *arguments])
    return code, *capsys.readouterr()


@pytest.mark.slow
def test_it_says_that_an_experiment_fits(capsys):
    code, out, err = doctor(capsys, "--memory", "1GiB")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first == (
        "A step of 2,048 tokens a side in sentences of 128, on 8 cpu device(s). "
        "Each has 1.07 GB and needs:"
    )
    assert second.endswith(" fits: as it is")


def test_it_tries_what_saves_until_nothing_is_left(capsys, monkeypatch):
    # What it measures with is tested elsewhere, and takes its time.
    monkeypatch.setattr(memory, "step_memory", lambda config: memory.StepMemory(10**7, 2 * 10**7))
    code, out, err = doctor(capsys, "--memory", "29 MB", "--config.training.remat=layer")
    assert code == 2
    tried = [line.partition(": ")[2] for line in out.splitlines()[1:]]
    assert tried[0] == "as it is"
    assert tried[-1].split() == [
        "--config.mesh.data=-1",
        "--config.mesh.fsdp=8",
        "--config.training.accumulation=8",
        "--config.training.moments=bfloat16",
    ]
    assert "base.py:tiny needs 0.03 GB on each device whatever" in err
    assert doctor(capsys, "--memory", "30 MB")[0] == 0


@pytest.mark.slow
def test_devices_are_simulated():
    finished = subprocess.run(
        [sys.executable, "-m", "jaxformer.cli", "doctor", *SMALL, "--devices", "3"],
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert "on 3 cpu device(s)" in finished.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--memory", "16"], "--memory: expected a size such as 16GB or 16GiB, got '16'"),
        (["--devices", "0"], "--devices must be at least 1: got 0"),
        (["--config.model.num_layer=1"], 'Did you mean "num_layers"'),
        (["--config.model.num_heads=3"], "model.num_heads must divide model.d_model"),
        (["--config.model.num_heads=x"], "invalid literal for int"),
        (["--memry", "16GB"], "unknown argument --memry; did you mean --memory?"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, words):
    code, out, err = doctor(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_config_that_is_not_there_or_broken(capsys, tmp_path):
    for path, words in [
        (tmp_path / "none.py", "No such file or directory"),
        (PROJECT / "configs" / "base.py:huge", "unknown variant 'huge'; known variants: 'tiny'"),
    ]:
        assert main(["doctor", "--config", str(path)]) == 2
        assert words in capsys.readouterr().err
    broken = tmp_path / "broken.py"
    broken.write_text("def get_config(:\n")
    assert main(["doctor", "--config", str(broken)]) == 2
    assert re.search(r"broken\.py:1: \w", capsys.readouterr().err)
