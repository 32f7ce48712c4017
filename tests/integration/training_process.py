"""A tiny run of train.py in a separate process."""

import os
import pathlib
import subprocess
import sys
from typing import IO

PROJECT = pathlib.Path(__file__).parents[2]
SETTINGS = {
    "model.vocab_size": 300,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "model.max_length": 64,
    "data.batching": "packing",
    "data.tokens_per_batch": 512,
    "training.log_every": 10,
    "training.checkpoint_every": 10,
    "training.keep_checkpoints": 2,
}


def command(folder: pathlib.Path, script: str = "train.py", **settings: object) -> list[str]:
    """Returns the command of the run."""
    return [
        *(sys.executable, script, "--config=configs/numerals.py", f"--workdir={folder}"),
        *(f"--config.{name}={value}" for name, value in (SETTINGS | settings).items()),
    ]


def environment(devices: int = 1) -> dict[str, str]:
    """Returns the environment of a run on simulated devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    path = str(PROJECT)
    return {**os.environ, "XLA_FLAGS": flags, "PYTHONWARNINGS": "default", "PYTHONPATH": path}


def start_training(
    folder: pathlib.Path,
    *flags: str,
    devices: int = 1,
    stderr: int | IO = subprocess.PIPE,
    script: str = "train.py",
    variables: dict[str, str] | None = None,
    **settings: object,
):
    """Starts the run on ``devices`` simulated devices; its ``stderr`` has the errors."""
    return subprocess.Popen(
        [*command(folder, script, **settings), *flags],
        cwd=PROJECT,
        env=environment(devices) | (variables or {}),
        stderr=stderr,
        text=True,
    )
