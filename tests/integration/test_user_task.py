"""A user's own task through public API: trained, killed, resumed, sharded, logged, refused."""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxformer
from jaxformer import Checkpoints, Config, FitConfig, MeshConfig, Task, UserError, every, fit
from jaxformer.nn import ParameterInfo
from jaxformer.runs.manifest import Manifest

from .. import runs
from ..runs import Killed

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the angry bear " * 8
SETTINGS = {"steps": 12, "log_every": 2, "checkpoint_every": 4, "eval_every": 4}
OPTIMIZER = optax.adam(0.1)


def init(key):
    return {"table": 0.1 * jax.random.normal(key, (32, 32)), "prior": jnp.zeros(32)}


def loss(params, batch, randomness):
    letters, following, weights = batch["letters"], batch["following"], batch["weights"]
    table = jax.lax.with_sharding_constraint(params["table"], PartitionSpec())
    logits = table[letters] + params["prior"]
    if randomness is not None:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(randomness.key, randomness.row_ids)
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.8, (1, 32)))(keys)
        logits = jnp.where(kept, logits, 0) / 0.8
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, following)
    right = (logits.argmax(-1) == following) * weights
    total = (nll * weights).sum()
    return {"loss": total, "nll": total, "right": right.sum(), "count": weights.sum()}


class Bigrams(Task):
    """Logits of the next letter given a letter, with dropout on the logits."""

    # Not methods, so that all runs share their programs.
    init, loss = staticmethod(init), staticmethod(loss)

    def __init__(self, text=TEXT):
        self.ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32) % 32

    def describe(self):
        return {"table": ParameterInfo(("vocab", "d_model"), "table"), "prior": None}

    def batch(self, number):
        rng = np.random.default_rng(number)
        starts = rng.integers(0, len(self.ids) - 7, 8)
        rows = np.stack([self.ids[start : start + 7] for start in starts])
        # Rows have uneven length, so some letters have weight 0.
        weights = (np.arange(6) < rng.integers(0, 7, (8, 1))).astype(np.float32)
        return {"letters": rows[:, :-1], "following": rows[:, 1:], "weights": weights}

    def batches(self, start, shards):
        for number in itertools.count(start):
            yield shards.local(self.batch(number))

    def evaluate(self, params, mesh, check_stop):
        batches = (self.batch(10**6 + n) for n in range(2))
        return jaxformer.evaluate_loss(self.loss, params, batches, mesh, check_stop)

    def identity(self):
        return {"text": hashlib.sha256(self.ids.tobytes()).hexdigest()}


def changed(**attributes):
    task = Bigrams()
    vars(task).update(attributes)
    return task


class Notes:
    def __init__(self):
        self.reports, self.closed = [], 0

    def write(self, step, kind, values):
        self.reports.append((step, kind, values))

    def close(self):
        self.closed += 1


def one_device():
    return jaxformer.make_mesh(devices=jax.devices()[:1])


def cube():
    return jaxformer.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))


def run(folder, task=None, optimizer=OPTIMIZER, mesh=None, hooks=(), writers=(), **settings):
    task, mesh = task or Bigrams(), mesh or one_device()
    settings = FitConfig(**SETTINGS | settings)
    return fit(task, optimizer, folder, settings, mesh=mesh, hooks=hooks, writers=writers)


def assert_equal(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(actual), jax.device_get(expected))


def assert_close(actual, expected, rtol=1e-4, atol=1e-5):
    actual, expected = jax.device_get((actual.params, expected.params))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol), actual, expected
    )


def steps_in(folder):
    return Checkpoints(folder / "checkpoints").steps()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Returns the final state and the reports of an uninterrupted run."""
    notes = Notes()
    folder = tmp_path_factory.mktemp("whole")
    state = run(folder, writers=[notes])
    assert notes.closed == 1
    return state, notes.reports, folder


@pytest.mark.smoke
def test_task_learns_and_reports(uninterrupted):
    _, reports, folder = uninterrupted
    train = [values["loss"] for _, kind, values in reports if kind == "train"]
    assert len(train) == 6
    assert train[-1] < train[0] - 0.5
    valid = [values for _, kind, values in reports if kind == "valid"]
    assert valid[-1]["perplexity"] == pytest.approx(math.exp(valid[-1]["loss"]))
    assert 0 < valid[-1]["right"] <= 1
    assert [(r["step"], r["kind"], r["loss"]) for r in runs.reports(folder)] == [
        (step, kind, values["loss"]) for step, kind, values in reports
    ]
    assert json.loads((folder / "identity.json").read_text()) == Bigrams().identity()
    assert steps_in(folder) == [4, 8, 12]


def test_shapes_are_compiled_ahead_and_batches_prefetched(tmp_path, uninterrupted, capsys):
    task = Bigrams()
    types = {name: array.dtype for name, array in task.batch(0).items()}

    def shaped(rows):
        shapes = {name: jax.ShapeDtypeStruct((rows, 6), dtype) for name, dtype in types.items()}
        return changed(
            shapes=lambda shards: [shapes],
            batches=lambda start, shards: jaxformer.prefetch(
                lambda number: shards.local(task.batch(number)), start
            ),
        )

    run(tmp_path / "run", shaped(8), steps=4)
    assert "compiling the step for shape 1 of 1: " in capsys.readouterr().err
    assert_equal(run(tmp_path / "run", shaped(8)), uninterrupted[0])
    with pytest.raises(UserError, match=r"expected a batch of one of Task\.shapes, got"):
        run(tmp_path / "wrong", shaped(16))


def test_eight_devices_equal_one(tmp_path, uninterrupted):
    notes = Notes()
    state = run(tmp_path, mesh=cube(), writers=[notes])
    assert state.params["table"].sharding.shard_shape((32, 32)) == (16, 16)
    assert_close(state, uninterrupted[0])
    for (_, _, values), (_, _, expected) in zip(notes.reports, uninterrupted[1], strict=True):
        assert values["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert values["right"] == expected["right"]


def test_accumulation_and_resuming_on_another_mesh_change_nothing(tmp_path, uninterrupted):
    mesh = jaxformer.make_mesh(devices=jax.devices()[:4])
    run(tmp_path, steps=4, gradient_accumulation=2, mesh=mesh)
    assert_close(run(tmp_path, gradient_accumulation=4), uninterrupted[0])


def test_a_global_mesh_of_the_users_own_changes_nothing(tmp_path, uninterrupted):
    with jax.set_mesh(jax.make_mesh((8,), ("rows",))):
        run(tmp_path, steps=4)
        assert_equal(run(tmp_path), uninterrupted[0])


def kill_at_9(step, state, sums):
    if step == 9:
        raise Killed


def test_any_optimizer_is_resumed_exactly(tmp_path):
    """One that sees the loss; test_averages.py has others with averages in their states."""
    optimizer = optax.chain(optax.adam(0.1), optax.contrib.reduce_on_plateau(patience=2))
    expected = run(tmp_path / "whole", optimizer=optimizer)
    with pytest.raises(Killed):
        run(tmp_path / "run", optimizer=optimizer, hooks=[kill_at_9])
    assert_equal(run(tmp_path / "run", optimizer=optimizer), expected)
    start = jaxformer.init_state(init, optimizer, one_device()).params["table"]
    assert np.abs(np.asarray(expected.params["table"]) - np.asarray(start)).max() > 0.1


def test_hooks_see_every_step_and_their_errors_end_the_run(tmp_path, uninterrupted):
    seen = []

    def note(step, state, sums):
        seen.append((step, int(state.step), float(sums["loss"]) / float(sums["count"])))

    with pytest.raises(ZeroDivisionError):
        run(tmp_path, hooks=[note, every(8, lambda *_: 1 / 0)], log_every=1)
    assert [(step, number) for step, number, _ in seen] == [(step, step) for step in range(1, 9)]
    losses = [report["loss"] for report in runs.reports(tmp_path, "train")]
    assert losses == pytest.approx([loss for _, _, loss in seen], rel=1e-6)
    # The step after which the hook failed is saved.
    assert max(steps_in(tmp_path)) == 8
    assert_equal(run(tmp_path), uninterrupted[0])


def test_a_failed_save_during_a_validation_ends_the_run(tmp_path, monkeypatch):
    """It is not taken for a failed validation."""

    def evaluate(params, mesh, check_stop):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            check_stop()
            time.sleep(0.05)
        return {"loss": 1.0}

    monkeypatch.setattr(Manifest, "write", mock.Mock(side_effect=OSError("no space left")))
    with pytest.raises(OSError, match=r"step 4 could not be saved; the steps .* no space left"):
        run(tmp_path, changed(evaluate=evaluate))
    assert "failed_validation" not in (tmp_path / "metrics.jsonl").read_text()


def wider(key):
    return {"table": jnp.zeros((32, 64)), "prior": jnp.zeros(32)}


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (Bigrams(TEXT[:-1]), {}, "the run began with other data: text was"),
        (changed(identity=dict), {}, r"other data: text was [0-9a-f]+, now None"),
        (Bigrams(), {"seed": 5}, r"holds a run with fit\.seed=0, but 5 was given"),
        (changed(init=wider), {}, "expected params/table to be float32"),
    ],
)
def test_other_data_and_another_seed_are_refused(task, settings, message, uninterrupted):
    with pytest.raises(UserError, match=message):
        run(uninterrupted[2], task, **settings)


def test_named_fields_may_change(tmp_path, uninterrupted):
    run(tmp_path, steps=8)
    with pytest.raises(UserError, match=r"may_change: .* got fit\.best_metric, fit\.steps"):
        run(tmp_path, seed=5, may_change="best_metric, seed, steps")
    state = run(tmp_path, seed=5, may_change="seed")
    assert int(state.step) == 12
    assert not np.array_equal(state.params["table"], uninterrupted[0].params["table"])
    with pytest.raises(UserError, match=r"holds a run with fit\.seed=5, but 0 was given"):
        run(tmp_path)


def test_workdirs_of_others_are_refused(tmp_path, uninterrupted):
    with pytest.raises(UserError, match=r"expected a workdir of this task, but it holds a run of"):
        jaxformer.train(Config(), uninterrupted[2])
    run(tmp_path, steps=4)
    (tmp_path / "config.json").unlink()
    message = r"or the config.json of the run whose checkpoint of step 4 is there; bring it back"
    with pytest.raises(UserError, match=message):
        run(tmp_path, seed=7)
    assert not (tmp_path / "config.json").exists()


@dataclasses.dataclass(frozen=True)
class Own:
    """A config of the user, whose sections have names of ours."""

    values: dict

    def to_dict(self):
        return self.values

    @classmethod
    def from_dict(cls, values):
        return cls(values)


def test_a_config_of_the_users_own_must_match(tmp_path):
    own = {"diffusion": {"steps": 1000}, "mesh": {"resolution": 64}, "training": {"steps": 1}}

    def again(**sections):
        settings = FitConfig(**SETTINGS | {"steps": 1, "eval_every": 4})
        fit(Bigrams(), OPTIMIZER, tmp_path, settings, mesh=one_device(), config=Own(own | sections))

    again()
    with pytest.raises(UserError, match=r"holds a run with diffusion\.steps=.* but 10 was"):
        again(diffusion={"steps": 10})
    again(training={"steps": 2})


def few_batches(start, shards):
    return itertools.islice(Bigrams().batches(start, shards), 5)


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (changed(batches=few_batches), {}, "expected batches for 12 steps, but there were only 5"),
        (changed(loss=lambda *a: loss(*a)["loss"]), {}, 'a dict of sums with "loss", "count"'),
        (changed(loss=lambda *a: loss(*a) | {"right": a[1]["weights"]}), {}, r"\(8, 6\); sum it"),
        (Bigrams(), {"gradient_accumulation": 3}, "rows divisible by 3, for 1 shards of 3 micro-"),
    ],
)
def test_mistakes_of_a_task_are_reported(task, settings, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run(tmp_path, task, **settings)


def test_train_step_without_task_or_workdir():
    """The count is a constant: it is summed over eight devices like values of the batch."""

    def without_dropout(params, batch, randomness):
        return loss(params, batch, None) | {"count": len(batch["weights"])}

    batch, mesh, optimizer = Bigrams().batch(0), jaxformer.make_mesh(), optax.sgd(1.0)
    step = jaxformer.make_train_step(without_dropout, optimizer, mesh)
    state = jaxformer.init_state(init, optimizer, mesh)
    params = jax.device_get(state.params)

    @jax.jit
    @jax.value_and_grad
    def mean(params):
        logits = params["table"][batch["letters"]] + params["prior"]
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["following"][..., None], -1)
        return -(picked[..., 0] * batch["weights"]).sum() / len(batch["weights"])

    expected, gradient = jax.device_get(mean(params))
    batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec(("data", "fsdp"))))
    with jax.set_mesh(jax.make_mesh((4, 2), ("x", "y"))), jax.transfer_guard("disallow"):
        state, sums = step(state, batch)
    assert float(sums["loss"]) / float(sums["count"]) == pytest.approx(expected, rel=1e-6)
    for name, found in jax.device_get(state.params).items():
        np.testing.assert_allclose(found, params[name] - gradient[name], rtol=1e-5, atol=1e-6)
