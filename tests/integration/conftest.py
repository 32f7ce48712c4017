"""Small runs for the tests of this folder."""

import dataclasses
import fcntl
import functools
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxformer.config import Config, DataConfig, ModelConfig, StreamConfig, TrainingConfig

# Programs that tests run in processes of their own.
collect_ignore = [
    *("audited_use.py", "exactly_once_run.py", "faulty_training.py", "hostile_pickles.py"),
]

# With packing, all batches have one shape, so there is one program to compile.
TINY = Config(
    model=ModelConfig(
        vocab_size=300, d_model=16, d_ff=32, num_heads=2, num_layers=1, max_length=64
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


@pytest.fixture(scope="module", autouse=True)
def _cheap_runs() -> Iterator[None]:
    """Traces each program once for all runs, since tracing is most of a tiny run.

    Runs in separate processes trace everything themselves, as a user's runs do.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module, name, function in _cached_functions():
            patch.setattr(module, name, function)
        yield


@functools.cache
def _cached_functions() -> list[tuple[Any, str, Callable]]:
    """Returns modules and the cached replacements of their functions, shared by all tests."""
    from jaxformer import experiment
    from jaxformer.data import numerals
    from jaxformer.tasks import translation
    from jaxformer.training import evaluation, fitting

    make_optimizer = functools.cache(experiment.make_optimizer)
    make_loss = functools.cache(translation.make_loss)
    make_init = functools.cache(translation.make_init)

    def shared(argument: Any) -> Any:
        """Returns one function instead of the methods of all tasks with the same program."""
        task = getattr(argument, "__self__", None)
        if not isinstance(task, translation.Translation):
            return argument
        methods = {
            "init": lambda: make_init(task.config.model),
            "loss": lambda: make_loss(_program(task.config)),
            "describe": lambda: None,  # the descriptions of the parameters themselves
        }
        return methods[argument.__name__]()

    def share(function: Callable) -> Callable:
        cached = functools.cache(function)
        return lambda *rest, **named: cached(
            *map(shared, rest), **{name: shared(value) for name, value in named.items()}
        )

    return [
        (experiment, "make_optimizer", lambda config: make_optimizer(_program(config))),
        (fitting, "make_train_step", share(fitting.make_train_step)),
        (fitting, "abstract_state", share(fitting.abstract_state)),
        (evaluation, "_eval_step", share(evaluation.make_eval_step)),
        (numerals, "numbers", functools.cache(numerals.numbers)),
    ]


def _program(config: Config) -> Config:
    """Returns the config with default values for all fields that no program depends on."""
    if isinstance(config.data, StreamConfig):
        return config
    often = {name: getattr(TINY.training, name) for name in _NOT_COMPILED}
    if config.training.schedule in ("linear", "cosine"):  # They depend on the number of steps.
        often["steps"] = config.training.steps
    training = dataclasses.replace(config.training, **often)
    return dataclasses.replace(config, data=TINY.data, training=training)


_NOT_COMPILED = ("steps", "log_every", "checkpoint_every", "eval_every", "eval_sentences")


@pytest.fixture(scope="session")
def tiny_config():
    """Returns a function of training settings to a config that trains in seconds."""

    def config(**training):
        return dataclasses.replace(TINY, training=dataclasses.replace(TINY.training, **training))

    return config


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
