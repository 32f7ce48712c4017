"""Small runs for the tests of this folder."""

import fcntl
import os
import pathlib
import shutil

import pytest

from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig

from ..runs import changed

# Programs that tests run in processes of their own.
collect_ignore = ["audited_use.py", "faulty_training.py"]

# With packing, all batches have one shape, so there is one program to compile.
TINY = Config(
    model=ModelConfig(
        vocab_size=300,
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_layers=1,
        max_length=64,
    ),
    data=DataConfig(
        corpus="numerals",
        train="train",
        valid="held_out",
        batching="packing",
        tokens_per_batch=512,
        max_length=64,
    ),
    training=TrainingConfig(
        steps=6,
        warmup_steps=10,
        log_every=2,
        checkpoint_every=2,
        eval_every=6,
        eval_sentences=4,
        keep_checkpoints=3,
    ),
)


@pytest.fixture(scope="session")
def tiny_config():
    """Returns a function of training settings to a config that trains in seconds."""

    return lambda **training: changed(TINY, training=training)


@pytest.fixture(scope="session")
def tiny_workdir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the workdir of a finished tiny run; tests must not change it."""
    return _trained_once(tmp_path_factory, "tiny", TINY)


@pytest.fixture(scope="session")
def learned_workdir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a copy of a run that spells nearly all number words correctly.

    The original is in the repository, and was trained by an earlier version.
    """
    fixture = pathlib.Path(__file__).parents[1] / "fixtures" / "workdir_8c81d1e" / "run"
    return shutil.copytree(fixture, tmp_path_factory.mktemp("learned") / "run")


def _trained_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, config: Config
) -> pathlib.Path:
    """Returns the workdir of a run that the first process to request it trains."""
    from jaxformer.experiment import train

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).exists():
            train(config, folder / f"{name}.new")
            (folder / f"{name}.new").rename(folder / name)
    return folder / name
