"""``jaxformer replay`` takes a step again with the same bits, and finds the examples to blame."""

import math
import re

import numpy as np
import pytest

from jaxformer import Checkpoints, FitConfig, UserError, experiment
from jaxformer.cli import main
from jaxformer.training.replay import replay_step

from ..runs import reports
from .test_resume import MESH, SKIPPED, TASK, run
from .test_user_task import OPTIMIZER, Notes


def replay_command(workdir, step):
    return main(["replay", "--workdir", str(workdir), "--step", str(step)])


def test_the_largest_gradients_are_printed_first(tiny_workdir, capsys, monkeypatch):
    """Examples, which share rows, sum to their batch."""
    before = sorted(tiny_workdir.rglob("*"))
    found = experiment.replay(tiny_workdir, 4)
    assert found.start == 2
    sums, contributions = found.sums, found.contributions
    assert sum(each.count for each in contributions) == sums["count"]
    loss = sum(each.loss * each.count for each in contributions)
    assert loss == pytest.approx(sums["loss"], rel=1e-5)
    norms = [each.grad_norm for each in contributions]
    assert norms == sorted(norms, reverse=True)
    assert max(norms) < sums["grad_norm"] < sum(norms)
    capsys.readouterr()
    assert replay_command(tiny_workdir, 7) == 2
    message = "error: expected a step that the run has taken, from 1 to 6: got 7\n"
    assert capsys.readouterr().err == message
    # The command prints the same.
    monkeypatch.setattr(experiment, "replay", lambda workdir, step: found)
    assert replay_command(tiny_workdir, 4) == 0
    assert sorted(tiny_workdir.rglob("*")) == before
    head, totals, names, *lines = capsys.readouterr().out.splitlines()
    assert head == "step 4, computed from the checkpoint of step 2"
    assert re.fullmatch(r"loss [\d.]+, gradient norm [\d.]+, \d+ tokens", totals)
    assert names.split() == ["norm", "loss", "tokens", "example"]
    assert [float(line.split()[0]) for line in lines] == pytest.approx(norms, rel=1e-5)
    assert all(re.fullmatch(r" +\S+ +\S+ +\d+  pair \d+: .+ \|\|\| \S+", line) for line in lines)


def test_a_step_has_the_same_bits_and_names_the_example_that_makes_it_nan(tmp_path):
    """Row 0 of each skipped batch has a weight of NaN."""
    run(tmp_path, (1, 3, 3), Notes())
    (report,) = (report for report in reports(tmp_path, "train") if report["step"] == 8)
    settings = FitConfig(steps=14)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        good, bad = (
            replay_step(TASK, OPTIMIZER, checkpoints, MESH, settings, step)
            for step in (8, SKIPPED[-1])
        )
        for steps, step, last in ((14, 0, 14), (10**6, 90_000, 14 + 3)):  # after the newest one
            settings = FitConfig(steps=steps, checkpoint_every=3)
            with pytest.raises(UserError, match=f"taken, from 1 to {last}: got {step}"):
                replay_step(TASK, OPTIMIZER, checkpoints, MESH, settings, step)
    assert good.sums["loss"] / good.sums["count"] == report["loss"]
    assert good.sums["grad_norm"] == report["grad_norm"]
    assert bad.sums["skipped"] == 1
    first, *others = bad.contributions
    assert first.text == "row 0"
    assert math.isnan(first.grad_norm)
    assert np.isfinite([(each.grad_norm, each.count) for each in others]).all()
