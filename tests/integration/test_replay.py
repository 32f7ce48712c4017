"""``jaxformer replay`` takes a step again with the same bits, and finds the examples to blame."""

import json
import math
import re
import shutil

import numpy as np
import pytest

from jaxformer import Checkpoints, FitConfig, UserError
from jaxformer.cli import main
from jaxformer.experiment import replay
from jaxformer.training.replay import replay as replay_step
from jaxformer.workdir import Workdir

from .test_resume import MESH, SKIPPED, TASK, run
from .test_user_task import OPTIMIZER, Notes


def test_a_step_has_the_same_bits_as_in_training(tiny_workdir):
    lines = map(json.loads, (tiny_workdir / "metrics.jsonl").read_text().splitlines())
    (report,) = (line for line in lines if (line["kind"], line["step"]) == ("train", 4))
    before = sorted(tiny_workdir.rglob("*"))
    found = [replay(tiny_workdir, step) for step in (3, 4)]  # since the report before
    assert [each.start for each in found] == [2, 2]
    loss, count, norm = (
        sum(each.sums[name] for each in found) for name in ("loss", "count", "grad_norm")
    )
    assert (loss / count, norm / 2) == (report["loss"], report["grad_norm"])
    assert sorted(tiny_workdir.rglob("*")) == before
    # The examples, which share rows, sum to their batch.
    sums, contributions = found[0].sums, found[0].contributions
    assert sum(each.count for each in contributions) == sums["count"]
    loss = sum(each.loss * each.count for each in contributions)
    assert loss == pytest.approx(sums["loss"], rel=1e-5)
    norms = [each.grad_norm for each in contributions]
    assert norms == sorted(norms, reverse=True)
    assert max(norms) < sums["grad_norm"] < sum(norms)


@pytest.mark.ci
def test_command_prints_the_largest_gradient_first(tiny_workdir, capsys):
    assert main(["replay", "--workdir", str(tiny_workdir), "--step", "1"]) == 0
    head, totals, names, *lines = capsys.readouterr().out.splitlines()
    assert head == "step 1, computed from the first parameters"
    assert re.fullmatch(r"loss [\d.]+, gradient norm [\d.]+, \d+ tokens", totals)
    assert names.split() == ["norm", "loss", "tokens", "example"]
    norms = [float(line.split()[0]) for line in lines]
    assert norms == sorted(norms, reverse=True)
    assert all(re.fullmatch(r" +\S+ +\S+ +\d+  pair \d+: .+ \|\|\| \S+", line) for line in lines)


@pytest.mark.parametrize("step", [0, 7])
def test_steps_that_the_run_does_not_have_are_refused(tiny_workdir, step, capsys):
    assert main(["replay", "--workdir", str(tiny_workdir), "--step", str(step)]) == 2
    message = f"error: expected a step that the run has taken, from 1 to 6: got {step}\n"
    assert capsys.readouterr().err == message


def test_steps_after_the_newest_checkpoint_are_refused(tiny_workdir, tmp_path):
    folder = Workdir(shutil.copytree(tiny_workdir, tmp_path / "run"))
    values = json.loads(folder.config.read_text())
    values["training"]["steps"] = 10**6
    folder.config.write_text(json.dumps(values))
    with pytest.raises(UserError, match="from 1 to 8: got 90000"):
        replay(folder.path, 90_000)


def test_the_example_that_makes_a_step_nan_comes_first(tmp_path):
    """Row 0 of each skipped batch has a weight of NaN."""
    run(tmp_path, (7, 3, 3), Notes())
    settings, step = FitConfig(steps=14), SKIPPED[1]
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        found = replay_step(TASK, OPTIMIZER, checkpoints, MESH, settings, step)
    assert found.sums["skipped"] == 1
    first, *others = found.contributions
    assert first.text == "row 0"
    assert math.isnan(first.grad_norm)
    assert np.isfinite([(each.grad_norm, each.count) for each in others]).all()
