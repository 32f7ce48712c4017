"""Dynamic loss scaling for float16, compared with loops in NumPy by PyTorch's rule."""

import itertools

import jax
import numpy as np
import optax
import pytest

import jaxformer
from jaxformer import FitConfig, MeshConfig, Task, fit
from jaxformer.nn.matmul import project
from jaxformer.training import loss_scale
from jaxformer.training.loss_scale import LossScale

from ..runs import Killed, reports

GROWTH_STEPS = 3  # of the runs below, in place of 2,000
RATE = 0.1
LARGE = {0: 10.0, 1: 10.0, 7: 1e3, 8: 1e3, 15: 10.0}  # slopes of some batches; of others, 1e-9


def test_the_scale_follows_the_rule_of_pytorch():
    """It doubles after 2,000 steps without overflow, and each overflow halves it, down to 1."""
    rng = np.random.default_rng(0)
    calm = rng.random(9000) > 1e-3
    stormy = rng.random(100) > 0.7
    flags = np.concatenate([calm, stormy, np.zeros(20, bool), np.ones(4001, bool)])

    values = []
    counts = []
    value = 2.0**15
    good_steps = 0
    for finite in flags:
        good_steps = good_steps + 1 if finite else 0
        if not finite:
            value = max(1.0, value * 0.5)
        elif good_steps == 2000:
            value *= 2.0
            good_steps = 0
        values.append(value)
        counts.append(good_steps)

    @jax.jit
    def follow(flags):
        def step(scale, finite):
            scale = scale.after(finite)
            return scale, scale

        return jax.lax.scan(step, LossScale.initial(), flags)[1]

    found = jax.device_get(follow(flags))
    np.testing.assert_array_equal(found.value, np.asarray(values, np.float32))
    np.testing.assert_array_equal(found.good_steps, counts)
    assert {1.0, 2.0, 2.0**14} <= set(values)
    assert values[-1] == 4.0


class Slopes(Task):
    """A matmul in float16, with given gradients of its results; the count has their size."""

    scales_loss = True

    def init(self, key):
        return {"w": np.zeros((4, 3), np.float32)}

    def loss(self, params, batch, randomness):
        product = project(batch["x"], params["w"], compute_dtype="float16")
        return {"loss": (product * batch["slopes"]).sum(), "count": batch["sizes"].sum()}

    def batch(self, number):
        rng = np.random.default_rng(number)
        slope = LARGE.get(number, 1e-9)
        return {
            "x": rng.normal(size=(8, 4)).astype(np.float32),
            "slopes": (slope * rng.uniform(0.5, 1, (8, 3))).astype(np.float32),
            "sizes": np.full(8, slope, np.float32),
        }

    def batches(self, start, shards):
        for number in itertools.count(start):
            yield shards.local(self.batch(number))

    def identity(self):
        return {"data": "generated"}


def train_plainly(steps):
    """Returns the parameters after SGD in NumPy, the steps it skipped, and the scale of each."""
    task = Slopes()
    w = np.zeros((4, 3), np.float32)
    scale = np.float32(2.0**15)
    good_steps = 0
    skipped = []
    scales = []
    for number in range(steps):
        batch = task.batch(number)
        x = batch["x"].astype(np.float16)
        with np.errstate(over="ignore", invalid="ignore"):
            slopes = (scale * batch["slopes"]).astype(np.float16)
            scaled = x.astype(np.float32).T @ slopes.astype(np.float32)

        if np.isfinite(scaled).all():
            w -= RATE * scaled / scale / batch["sizes"].sum()
            good_steps += 1
        else:
            skipped.append(number + 1)
            scale /= 2
            good_steps = 0
        if good_steps == GROWTH_STEPS:
            scale *= 2
            good_steps = 0
        scales.append(float(scale))
    return w, skipped, scales


def train(folder, task=None, steps=20, devices=1, accumulation=1, hooks=()):
    settings = FitConfig(
        steps=steps,
        gradient_accumulation=accumulation,
        log_every=1,
        checkpoint_every=5,
        eval_every=5,
    )
    mesh = jaxformer.make_mesh(MeshConfig(), jax.devices()[:devices])
    return fit(task or Slopes(), optax.sgd(RATE), folder, settings, mesh=mesh, hooks=hooks)


@pytest.fixture
def fast_growth(monkeypatch):
    monkeypatch.setattr(loss_scale, "_GROWTH_STEPS", GROWTH_STEPS)


def scale_of(state):
    """Returns the scale after a run, and the number of steps since it changed."""
    assert state.loss_scale is not None
    value, good_steps = jax.device_get(state.loss_scale)
    return value, good_steps


def assert_same(found, expected):
    found = jax.device_get(found)
    expected = jax.device_get(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.usefixtures("fast_growth")
def test_runs_equal_a_loop_in_numpy_on_every_mesh_and_resume(tmp_path):
    w, skipped, scales = train_plainly(20)
    assert len(skipped) > len(LARGE) / 2
    assert len(set(scales)) > 2

    whole = train(tmp_path / "whole")
    np.testing.assert_allclose(whole.params["w"], w, rtol=1e-5)
    assert int(whole.skipped) == len(skipped)

    found = reports(tmp_path / "whole", "train")
    assert [report["loss_scale"] for report in found] == scales
    assert [report["skipped"] for report in found] == [step in skipped for step in range(1, 21)]

    # Killed between two checkpoints, and resumed.
    def kill(step, state, sums):
        if step == 13:
            raise Killed

    cut = tmp_path / "cut"
    with pytest.raises(Killed):
        train(cut, hooks=[kill])
    assert_same(train(cut), whole)

    split = train(tmp_path / "split", devices=2, accumulation=2)
    assert_same(split._replace(params=None), whole._replace(params=None))
    np.testing.assert_allclose(split.params["w"], whole.params["w"], rtol=1e-6)


@pytest.mark.usefixtures("fast_growth")
def test_a_run_that_had_no_scale_begins_with_the_initial_one(tmp_path):
    """As a checkpoint of an earlier version, or of a run in float32."""
    task = Slopes()
    task.scales_loss = False
    before = train(tmp_path, task, steps=5)
    assert before.loss_scale is None
    assert int(before.skipped) == 0
    assert "loss_scale" not in reports(tmp_path, "train")[-1]

    # Gradients of 1e-9 are 0 without a scale.
    after = train(tmp_path, steps=6)
    assert scale_of(after) == (2.0**15, 1)
    norms = [report["grad_norm"] for report in reports(tmp_path, "train")]
    assert norms[2:5] == [0, 0, 0]
    assert norms[5] > 0.1

    # A run that leaves float16 ignores the saved scale.
    back = train(tmp_path, task, steps=7)
    assert back.loss_scale is None


@pytest.mark.usefixtures("fast_growth")
def test_overflows_that_no_scale_cures_end_the_run(tmp_path):
    """Of 40 steps, 15 halve the scale to 1, and ten more are in a row."""

    class Endless(Slopes):
        def batch(self, number):
            return super().batch(0) | {"slopes": np.full((8, 3), 1e5, np.float32)}

    with pytest.raises(FloatingPointError, match="NaN or Inf for the last 10 steps"):
        train(tmp_path, Endless(), steps=40)
    assert reports(tmp_path, "train")[-1]["step"] == 25
