"""The blocks of docs/training.md and docs/optimizers.md run; loggers of others are stand-ins."""

import itertools
import pathlib
import sys
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import optax
import pytest

import jaxformer
from jaxformer import Checkpoints, FitConfig, fit, make_mesh

from ..runs import reports
from . import pages

pytestmark = pytest.mark.ci


class Page(NamedTuple):
    """The names that the blocks have defined, the stand-ins, and the folder of a run."""

    names: dict[str, Any]
    loggers: dict[str, mock.Mock]
    folder: pathlib.Path


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    loggers = {"wandb": mock.Mock(), "trackio": mock.Mock()}
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, module in loggers.items():
            patch.setitem(sys.modules, name, module)
        names = pages.execute("training.md")
        names = pages.execute("optimizers.md", **names)
    return Page(names, loggers, folder / "runs" / "bigrams")


def test_the_task_learns(page):
    steps = [report["step"] for report in reports(page.folder, "train")]
    assert steps == [20, 40, 60, 80, 100]

    first, *_, last = reports(page.folder, "valid")
    assert last["perplexity"] < first["perplexity"] < 128
    assert last["accuracy"] > 0.4
    assert Checkpoints(page.folder / "checkpoints").best_step() == 100


def test_the_contrastive_loss_is_the_same_on_one_device(page, tmp_path):
    task = page.names["Pairs"]()
    settings = FitConfig(
        steps=40,
        log_every=20,
        checkpoint_every=20,
        eval_every=20,
    )
    mesh = make_mesh(devices=jax.devices()[:1])
    alone = fit(task, optax.adam(0.01), tmp_path, settings, mesh=mesh)

    found = page.names["contrastive"].params["w"]
    np.testing.assert_allclose(found, alone.params["w"], rtol=1e-4, atol=1e-5)


def test_the_teacher_stays_and_the_statistics_move(page):
    task = page.names["Student"]()
    seed = page.names["settings"].seed
    found = page.names["student"].params

    start = task.init(jax.random.key(seed))
    np.testing.assert_array_equal(found["teacher"], start["teacher"])

    # An exponential average of the means of 40 batches.
    mean = np.zeros(6)
    shards = jaxformer.BatchShards(1, [0], 1)
    for batch in itertools.islice(task.batches(0, shards), 40):
        of_batch = batch["x"].mean(axis=0)
        mean += 0.1 * (of_batch - mean)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-5)


@pytest.mark.parametrize(("logger", "step"), [("wandb", 60), ("trackio", 80)])
def test_loggers_get_each_report_once(page, logger, step):
    module = page.loggers[logger]
    module.init.assert_called_once_with(project="bigrams")
    module.finish.assert_called_once_with()

    logged = []
    for call in module.log.call_args_list:
        (values,) = call.args
        for name, value in values.items():
            logged.append((call.kwargs["step"], name, value))

    expected = []
    for report in reports(page.folder):
        kind = report.pop("kind")
        if report.pop("step") == step:
            for name, value in report.items():
                expected.append((step, f"{kind}/{name}", value))
    assert logged == expected
