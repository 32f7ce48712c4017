"""The blocks of docs/training.md run, in order; loggers of others are stand-ins."""

import itertools
import sys
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


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names that the blocks have defined, the stand-ins, and the folder of the runs."""
    modules = {name: mock.Mock() for name in ("wandb", "trackio")}
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        names = pages.execute("training.md")
    return names, modules, folder / "runs" / "bigrams"


def test_the_task_learns(page):
    _, _, folder = page
    assert [r["step"] for r in reports(folder, "train")] == [20, 40, 60, 80, 100]
    valid = reports(folder, "valid")
    assert valid[-1]["perplexity"] < valid[0]["perplexity"] < 128
    assert valid[-1]["accuracy"] > 0.4
    assert Checkpoints(folder / "checkpoints").best_step() == 100


def test_the_contrastive_loss_is_the_same_on_one_device(page, tmp_path):
    settings = FitConfig(steps=40, log_every=20, checkpoint_every=20, eval_every=20)
    mesh = make_mesh(devices=jax.devices()[:1])
    alone = fit(page[0]["Pairs"](), optax.adam(0.01), tmp_path, settings, mesh=mesh)
    found = page[0]["contrastive"].params["w"]
    np.testing.assert_allclose(found, alone.params["w"], rtol=1e-4, atol=1e-5)


def test_the_teacher_stays_and_the_statistics_move(page):
    names, *_ = page
    task, found = names["Student"](), names["student"].params
    start, mean = task.init(jax.random.key(names["settings"].seed)), np.zeros(6)
    np.testing.assert_array_equal(found["teacher"], start["teacher"])
    shards = jaxformer.BatchShards(1, [0], 1)
    for batch in itertools.islice(task.batches(0, shards), 40):
        mean += 0.1 * (batch["x"].mean(axis=0) - mean)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-5)


def test_loggers_get_each_report_once(page):
    _, modules, folder = page
    for logger, step in (("wandb", 60), ("trackio", 80)):
        module = modules[logger]
        module.init.assert_called_once_with(project="bigrams")
        module.finish.assert_called_once_with()
        logged = [
            (call.kwargs["step"], name, value)
            for call in module.log.call_args_list
            for name, value in call.args[0].items()
        ]
        assert logged == [
            (step, f"{report['kind']}/{name}", value)
            for report in reports(folder)
            if report["step"] == step
            for name, value in report.items()
            if name not in ("kind", "step")
        ]
