"""The command ``doctor``: bug reports, and the memory that an experiment needs."""

import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import tomllib

import jax
import pytest

import jaxformer
from jaxformer.analysis import memory
from jaxformer.cli import environment, main

# ml_collections 1.1 loads config files in a way that Python has deprecated (2026-11).
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

PROJECT = pathlib.Path(__file__).parents[2]
SMALL = [
    f"--config={PROJECT / 'configs' / 'base.py'}:tiny",
    *("--config.model.vocab_size=100", "--config.model.d_model=16", "--config.model.d_ff=32"),
    *("--config.model.num_layers=1", "--config.data.tokens_per_batch=2048"),
]


@pytest.fixture
def report(capsys, monkeypatch):
    """Runs the command without options, and returns its lines by section."""

    def run(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert main(["doctor"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        sections = re.findall(r"^(\S.*):\n((?:  .*\n)+)", out, re.MULTILINE)
        assert "".join(f"{title}:\n{lines}" for title, lines in sections) == out
        return {title: [line[2:] for line in text.splitlines()] for title, text in sections}

    return run


def test_a_bug_report_has_versions_devices_the_cache_and_only_variables_of_jax(report, tmp_path):
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "one").write_bytes(bytes(1_500_000))
    secrets = {"AWS_SECRET": "xyz", "MY_JAX_KEY": "k"}
    found = report(JAXFORMER_CACHE=str(tmp_path), JAX_ENABLE_X64="0", **secrets)
    versions, variables = found["versions"], found["environment variables"]
    for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"):
        assert f"{name} {importlib.metadata.version(name)}" in versions
    assert versions[0].startswith(f"jaxformer {jaxformer.__version__} in ")
    assert versions[0].endswith(pathlib.Path(jaxformer.__file__).parent.name)
    assert versions[1].startswith(f"python {platform.python_version()} in ")
    assert "cpu: 8 x cpu" in found["machine"]
    assert found["cache"] == [f"{tmp_path}: 1.5 MB in 1 files"]
    assert {f"XLA_FLAGS={os.environ['XLA_FLAGS']}", "JAX_ENABLE_X64=0"} < {*variables}
    names = {line.partition("=")[0] for line in variables}
    assert not names & {*secrets, "PATH", "HOME"}


def test_a_bug_report_survives_failing_sections(report, monkeypatch, tmp_path):
    def broken():
        raise RuntimeError("no TPU")

    monkeypatch.setattr(jax, "local_devices", broken)
    found = report(JAXFORMER_NOTE="not UTF-8: \udcf6", JAXFORMER_CACHE=str(tmp_path / "new"))
    assert found["cache"] == [f"{tmp_path / 'new'}: does not exist yet"]
    assert found["machine"][-1] == "failed with RuntimeError: no TPU"
    assert r"JAXFORMER_NOTE=not UTF-8: \udcf6" in found["environment variables"]


def test_optional_packages_match_the_project(report):
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = settings["project"]["optional-dependencies"]
    ours = [list(extra.requirements) for extra in environment.EXTRAS]
    names = ["plots", "tfds", "tensorboard", "wmt", "parquet", "interop", "export", "ctranslate2"]
    assert ours[: len(names)] == [extras[name] for name in names]
    for extra, line in zip(environment.EXTRAS, report()["optional packages"], strict=True):
        missing = [name for name in extra.modules if importlib.util.find_spec(name) is None]
        end = f"not installed: pip install {shlex.join(extra.requirements)}"
        assert line.endswith(end if missing else ": installed")


def test_the_package_is_a_command_and_has_a_version():
    command = [sys.executable, "-m", "jaxformer", "--version"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert finished.stdout == f"jaxformer {jaxformer.__version__}\n"


def test_it_tries_all_settings_that_save_memory(capsys, monkeypatch):
    # The measurement itself is slow, and tested elsewhere.
    monkeypatch.setattr(memory, "step_memory", lambda config: memory.StepMemory(10**7, 2 * 10**7))
    arguments = ["doctor", *SMALL, "--config.training.remat=layer", "--memory"]
    assert main([*arguments, "29 MB"]) == 2
    out, err = capsys.readouterr()
    tried = [line.partition(": ")[2] for line in out.splitlines()[1:]]
    assert tried[0] == "as it is"
    assert tried[-1].split() == [
        "--config.mesh.data=-1",
        "--config.mesh.fsdp=8",
        "--config.training.gradient_accumulation=8",
        "--config.training.adam_dtype=bfloat16",
    ]
    assert "base.py:tiny needs 0.03 GB on each device with any settings" in err
    assert main([*arguments, "30 MB"]) == 0


@pytest.mark.ci
def test_a_step_is_measured_on_simulated_devices():
    command = [sys.executable, "-m", "jaxformer.cli", "doctor", *SMALL, "--memory", "1GiB"]
    finished = subprocess.run([*command, "--devices", "3"], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    first, second = finished.stdout.splitlines()
    assert first == (
        "A step of 2,048 tokens per side in sentences of 128, on 3 cpu device(s). "
        "Each has 1.07 GB and needs:"
    )
    assert second.endswith(" fits: as it is")


@pytest.mark.nightly
def test_a_language_model_is_measured(capsys):
    config = f"--config={PROJECT / 'configs' / 'shakespeare.py'}:smoke"
    assert main(["doctor", config, "--memory", "1GB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("A step of 8 rows of 64 tokens, on ")
    assert re.search(r"GB \(0\.00 of it parameters, optimizer state and batch\) fits", lines[1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--memory", "16GB"], "--memory needs --config FILE"),
        (["--devices", "2"], "--devices needs --config FILE"),
        (["--config.model.d_model=8"], "--config.model.d_model=8 needs --config FILE"),
        (["--config", "none.py"], "none.py: no such file; name another"),
        (["--config", "base:huge"], "known variants: none (the default), 'tiny'"),
        ([*SMALL, "--memory", "16"], "--memory: expected a size such as 16GB or 16GiB, got '16'"),
        ([*SMALL, "--memory", "0GB"], "--memory must be at least 1 byte: got '0GB'"),
        ([*SMALL, "--devices", "0"], "--devices must be at least 1: got 0"),
        ([*SMALL, "--config.model.num_layer=1"], "model.num_layer; did you mean model.num_layers?"),
        ([*SMALL, "--config.model.num_heads=3"], "model.num_heads must divide model.d_model"),
        (
            [*SMALL, "--config.model.num_heads=x"],
            "--config.model.num_heads: expected an integer, got 'x'",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(capsys, arguments, words):
    assert main(["doctor", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
