"""An interrupted run equals an uninterrupted one: weights, every report, every validation, best.

``jaxformer replay`` takes a step again with the same bits, and finds the examples to blame.
"""

import contextlib
import functools
import math
import random
import re
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import Checkpoints, FitConfig, UserError, experiment, fit
from jaxformer.cli import main
from jaxformer.errors import StoppedError
from jaxformer.training.replay import replay_step
from jaxformer.training.train_state import restore_or_initialize

from ..profiles import by_profile
from ..runs import Killed, reports
from .test_user_task import OPTIMIZER, Bigrams, Notes, assert_equal, one_device

STEPS = 14
# Steps between reports, checkpoints and validations.
INTERVALS = [
    (5, 3, 6),
    (7, 2, 2),
    (1, 4, 8),
    (4, 6, 12),
    (100, 5, 5),
    (3, 1, 4),
]
TIMES = {"seconds_per_step", "waiting", "tokens_per_second"}
SKIPPED = (3, 4, 9)


class Interrupted(Bigrams):
    """Some updates are not finite. The run is interrupted at one step, in one of five ways."""

    way = "never"
    step = 0

    def batch(self, number):
        batch = super().batch(number)
        if number + 1 in SKIPPED:
            batch["weights"][0, 0] = np.nan
        return batch

    def batches(self, start, shards):
        batches = super().batches(start, shards)
        for number, batch in enumerate(batches, start=start):
            if number == self.step and self.way == "waiting":
                signal.raise_signal(signal.SIGHUP)
                time.sleep(60)
            yield batch

    def hook(self, step, state, sums):
        if step == self.step and self.way == "signal":
            signal.raise_signal(signal.SIGTERM)
        if step == self.step and self.way == "killed":
            raise Killed

    def evaluate(self, params, mesh, check_stop):
        if self.way == "validation":
            signal.raise_signal(signal.SIGINT)
            check_stop()
        values = super().evaluate(params, mesh, check_stop)
        if self.way == "validated":
            signal.raise_signal(signal.SIGTERM)
        return values


TASK = Interrupted()
MESH = one_device()


def run(folder, intervals, notes, way="never", step=0):
    TASK.way = way
    TASK.step = step
    log_every, checkpoint_every, eval_every = intervals
    settings = FitConfig(
        steps=STEPS,
        keep_checkpoints=2,
        log_every=log_every,
        checkpoint_every=checkpoint_every,
        eval_every=eval_every,
    )
    return fit(
        TASK,
        OPTIMIZER,
        folder,
        settings,
        mesh=MESH,
        hooks=[TASK.hook],
        writers=[notes],
    )


def without_times(report):
    return {name: value for name, value in report.items() if name not in TIMES}


def results(folder, notes):
    """Returns everything that must not depend on interruptions."""
    checkpoints = Checkpoints(folder / "checkpoints")
    writer = []
    for step, kind, values in notes.reports:
        writer.append((step, kind, without_times(values)))
    return {
        "metrics": [without_times(report) for report in reports(folder)],
        "writer": writer,
        "steps": checkpoints.steps(),
        "best": checkpoints.best_step(),
    }


@pytest.mark.parametrize("intervals", by_profile(INTERVALS[:1], nightly=INTERVALS), ids=str)
def test_interrupted_runs_equal_uninterrupted_ones(intervals, tmp_path):
    notes = Notes()
    state = run(tmp_path / "whole", intervals, notes)
    expected = results(tmp_path / "whole", notes)
    assert int(state.skipped) == len(SKIPPED)

    chance = random.Random(str(intervals))
    for number in range(by_profile(1, nightly=4)):
        folder = tmp_path / str(number)
        notes = Notes()
        ways = ["waiting", "signal", "killed", "validation", "validated"]
        for step in sorted(chance.sample(range(STEPS), len(ways))):
            way = ways.pop(chance.randrange(len(ways)))
            with contextlib.suppress(StoppedError, Killed):
                run(folder, intervals, notes, way, step)

        resumed = run(folder, intervals, notes)
        assert_equal(resumed, state)
        found = results(folder, notes)
        for name, value in expected.items():
            np.testing.assert_equal(found[name], value, name)


def test_a_run_that_dies_between_the_report_and_the_score_reports_once(tmp_path):
    class Fatal(Notes):
        def write(self, step, kind, values):
            super().write(step, kind, values)
            if kind == "valid":
                raise Killed

    notes = Notes()
    state = run(tmp_path / "whole", (7, 4, 4), notes)
    expected = results(tmp_path / "whole", notes)

    fatal = Fatal()
    for _ in range(4):  # validations
        with pytest.raises(Killed):
            run(tmp_path / "killed", (7, 4, 4), fatal)

    resumed = run(tmp_path / "killed", (7, 4, 4), fatal)
    assert_equal(resumed, state)
    np.testing.assert_equal(results(tmp_path / "killed", fatal), expected)


def test_a_state_that_is_not_finite_is_never_saved(tmp_path):
    poison = optax.GradientTransformation(
        init=lambda params: np.full(2, np.nan),
        update=lambda updates, state, params: (updates, state),
    )
    poisoned = optax.chain(OPTIMIZER, poison)
    settings = FitConfig(steps=9, log_every=9, checkpoint_every=3, eval_every=3)
    with pytest.raises(FloatingPointError, match="NaN or Inf at step 3, which is not saved"):
        fit(Bigrams(), poisoned, tmp_path, settings, mesh=MESH)
    assert Checkpoints(tmp_path / "checkpoints").steps() == []


class ManySizes(Bigrams):
    """Parameters of many sizes, whose copies in NumPy are aligned by chance."""

    @staticmethod
    def init(key):
        return {f"w{number}": jnp.zeros(300_000 + 1000 * number) for number in range(60)}

    @staticmethod
    def loss(params, batch, randomness):
        total = sum(array.sum() for array in params.values())
        weights = batch["weights"]
        return {"loss": total * weights.sum(), "count": weights.sum()}

    def describe(self):
        return {f"w{number}": None for number in range(60)}


def test_the_first_step_after_a_resume_needs_no_second_state(tmp_path):
    """Its results take the memory of all restored arrays."""
    task = ManySizes()
    fit(task, optax.sgd(0.0), tmp_path, FitConfig(steps=1), mesh=MESH)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        state, _ = restore_or_initialize(
            task, optax.sgd(0.0), MESH, seed=0, checkpoints=checkpoints, start_from=None
        )

    def places(params):
        return {name: array.unsafe_buffer_pointer() for name, array in params.items()}

    before = places(state.params)
    step = jax.jit(lambda params: jax.tree.map(lambda x: x + 1, params), donate_argnums=0)
    after = places(step(state.params))
    assert set(after.values()) == set(before.values())


def replay_command(workdir, step):
    return main(["replay", "--workdir", str(workdir), "--step", str(step)])


def test_the_largest_gradients_are_printed_first(tiny_workdir, capsys, monkeypatch):
    """Examples, which share rows, sum to their batch."""
    before = sorted(tiny_workdir.rglob("*"))
    found = experiment.replay(tiny_workdir, 4)
    assert found.start == 2

    sums = found.sums
    examples = found.contributions
    assert sum(each.count for each in examples) == sums["count"]
    losses = [each.loss * each.count for each in examples]
    assert sum(losses) == pytest.approx(sums["loss"], rel=1e-5)

    norms = [each.grad_norm for each in examples]
    assert norms == sorted(norms, reverse=True)
    assert max(norms) < sums["grad_norm"] < sum(norms)

    # The command prints the same, and writes nothing.
    capsys.readouterr()
    monkeypatch.setattr(experiment, "replay", lambda workdir, step: found)
    assert replay_command(tiny_workdir, 4) == 0
    assert sorted(tiny_workdir.rglob("*")) == before

    head, totals, names, *lines = capsys.readouterr().out.splitlines()
    assert head == "step 4, computed from the checkpoint of step 2"
    assert re.fullmatch(r"loss [\d.]+, gradient norm [\d.]+, \d+ tokens", totals)
    assert names.split() == ["norm", "loss", "tokens", "example"]
    printed = [float(line.split()[0]) for line in lines]
    assert printed == pytest.approx(norms, rel=1e-5)
    for line in lines:
        assert re.fullmatch(r" +\S+ +\S+ +\d+  pair \d+: .+ \|\|\| \S+", line)


def test_a_step_that_was_not_taken_is_refused(tiny_workdir, capsys):
    assert replay_command(tiny_workdir, 7) == 2
    message = "error: expected a step that the run has taken, from 1 to 6: got 7\n"
    assert capsys.readouterr().err == message


def test_a_step_has_the_same_bits_and_names_the_example_that_makes_it_nan(tmp_path):
    """Row 0 of each skipped batch has a weight of NaN."""
    run(tmp_path, (1, 3, 3), Notes())
    settings = FitConfig(steps=STEPS)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        replay = functools.partial(replay_step, TASK, OPTIMIZER, checkpoints, MESH)
        good = replay(settings, step=8)
        bad = replay(settings, step=SKIPPED[-1])

        # A longer run may have taken the steps until the next checkpoint.
        for steps, step, last in (
            (STEPS, 0, STEPS),
            (10**6, 90_000, STEPS + 3),
        ):
            settings = FitConfig(steps=steps, checkpoint_every=3)
            with pytest.raises(UserError, match=f"taken, from 1 to {last}: got {step}"):
                replay(settings, step=step)

    (report,) = (report for report in reports(tmp_path, "train") if report["step"] == 8)
    assert good.sums["loss"] / good.sums["count"] == report["loss"]
    assert good.sums["grad_norm"] == report["grad_norm"]

    assert bad.sums["skipped"] == 1
    first, *others = bad.contributions
    assert first.text == "row 0"
    assert math.isnan(first.grad_norm)
    for other in others:
        assert np.isfinite(other.grad_norm)
        assert np.isfinite(other.count)
