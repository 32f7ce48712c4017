"""A user's own task through public API: trained, killed, resumed, sharded, logged, refused."""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import signal
import time
from typing import Any, NamedTuple
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
    return {
        "table": 0.1 * jax.random.normal(key, (32, 32)),
        "prior": jnp.zeros(32),
    }


def keep_letters(randomness):
    """Draws the letters of each row that dropout keeps, with probability 0.8."""

    def draw(row_id):
        key = jax.random.fold_in(randomness.key, row_id)
        return jax.random.bernoulli(key, 0.8, (1, 32))

    return jax.vmap(draw)(randomness.row_ids)


def loss(params, batch, randomness):
    table = jax.lax.with_sharding_constraint(params["table"], PartitionSpec())
    logits = table[batch["letters"]] + params["prior"]  # [B, T, 32]
    if randomness is not None:
        logits = jnp.where(keep_letters(randomness), logits, 0) / 0.8

    following = batch["following"]
    weights = batch["weights"]
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, following)  # [B, T]
    is_right = logits.argmax(-1) == following
    total = (nll * weights).sum()
    right = (is_right * weights).sum()
    return {"loss": total, "nll": total, "right": right, "count": weights.sum()}


class Bigrams(Task):
    """Logits of the next letter given a letter, with dropout on the logits."""

    # Not methods, so that all runs share their programs.
    init = staticmethod(init)
    loss = staticmethod(loss)

    def __init__(self, text=TEXT):
        letters = np.frombuffer(text.encode(), np.uint8)
        self.ids = letters.astype(np.int32) % 32

    def describe(self):
        return {
            "table": ParameterInfo(("vocab", "d_model"), "table"),
            "prior": None,
        }

    def batch(self, number):
        rng = np.random.default_rng(number)
        starts = rng.integers(0, len(self.ids) - 7, 8)
        windows = [self.ids[start : start + 7] for start in starts]
        rows = np.stack(windows)

        # Rows have uneven length, so some letters have weight 0.
        lengths = rng.integers(0, 7, (8, 1))
        is_real = np.arange(6) < lengths
        return {
            "letters": rows[:, :-1],
            "following": rows[:, 1:],
            "weights": is_real.astype(np.float32),
        }

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
        self.reports = []
        self.closed = 0

    def write(self, step, kind, values):
        self.reports.append((step, kind, values))

    def close(self):
        self.closed += 1


def one_device():
    return jaxformer.make_mesh(devices=jax.devices()[:1])


def cube():
    return jaxformer.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))


def run(
    folder,
    task=None,
    optimizer=OPTIMIZER,
    mesh=None,
    hooks=(),
    writers=(),
    **settings,
):
    return fit(
        task or Bigrams(),
        optimizer,
        folder,
        FitConfig(**SETTINGS | settings),
        mesh=mesh or one_device(),
        hooks=hooks,
        writers=writers,
    )


def assert_equal(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(actual), jax.device_get(expected))


def assert_close(actual, expected):
    """Checks that two states have almost the same parameters."""
    found = jax.device_get(actual.params)
    wanted = jax.device_get(expected.params)
    compare = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(compare, found, wanted)


def steps_in(folder):
    return Checkpoints(folder / "checkpoints").steps()


class FinishedRun(NamedTuple):
    """The final state of a run, its reports to a writer, and its folder."""

    state: Any
    reports: list
    folder: Any


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Returns an uninterrupted run."""
    notes = Notes()
    folder = tmp_path_factory.mktemp("whole")
    state = run(folder, writers=[notes])
    assert notes.closed == 1
    return FinishedRun(state, notes.reports, folder)


@pytest.mark.smoke
def test_task_learns_and_reports(uninterrupted):
    _, given, folder = uninterrupted
    losses = [values["loss"] for _, kind, values in given if kind == "train"]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.5

    validations = [values for _, kind, values in given if kind == "valid"]
    last = validations[-1]
    assert last["perplexity"] == pytest.approx(math.exp(last["loss"]))
    assert 0 < last["right"] <= 1

    # The file has what the writer was given.
    written = runs.reports(folder)
    for report, (step, kind, values) in zip(written, given, strict=True):
        assert report["step"] == step
        assert report["kind"] == kind
        assert report["loss"] == values["loss"]

    identity = json.loads((folder / "identity.json").read_text())
    assert identity == Bigrams().identity()
    assert steps_in(folder) == [4, 8, 12]


def test_shapes_are_compiled_ahead_and_batches_prefetched(tmp_path, uninterrupted, capsys):
    task = Bigrams()

    def prefetched(start, shards):
        def local_batch(number):
            return shards.local(task.batch(number))

        return jaxformer.prefetch(local_batch, start)

    def shaped(rows):
        shapes = {
            name: jax.ShapeDtypeStruct((rows, 6), array.dtype)
            for name, array in task.batch(0).items()
        }
        return changed(shapes=lambda shards: [shapes], batches=prefetched)

    run(tmp_path / "run", shaped(8), steps=4)
    assert "compiling the step for shape 1 of 1: " in capsys.readouterr().err

    state = run(tmp_path / "run", shaped(8))
    assert_equal(state, uninterrupted.state)

    with pytest.raises(UserError, match=r"expected a batch of one of Task\.shapes, got"):
        run(tmp_path / "wrong", shaped(16))


def test_eight_devices_equal_one(tmp_path, uninterrupted):
    notes = Notes()
    state = run(tmp_path, mesh=cube(), writers=[notes])
    assert state.params["table"].sharding.shard_shape((32, 32)) == (16, 16)
    assert_close(state, uninterrupted.state)

    for found, expected in zip(notes.reports, uninterrupted.reports, strict=True):
        _, _, values = found
        _, _, expected_values = expected
        assert values["loss"] == pytest.approx(expected_values["loss"], rel=1e-5)
        assert values["right"] == expected_values["right"]


def test_accumulation_and_resuming_on_another_mesh_change_nothing(tmp_path, uninterrupted):
    mesh = jaxformer.make_mesh(devices=jax.devices()[:4])
    run(tmp_path, steps=4, gradient_accumulation=2, mesh=mesh)
    state = run(tmp_path, gradient_accumulation=4)
    assert_close(state, uninterrupted.state)


def test_a_global_mesh_of_the_users_own_changes_nothing(tmp_path, uninterrupted):
    with jax.set_mesh(jax.make_mesh((8,), ("rows",))):
        run(tmp_path, steps=4)
        state = run(tmp_path)
        assert_equal(state, uninterrupted.state)


def kill_at_9(step, state, sums):
    if step == 9:
        raise Killed


def test_any_optimizer_is_resumed_exactly(tmp_path):
    """One that sees the loss; test_averages.py has others with averages in their states."""
    on_plateau = optax.contrib.reduce_on_plateau(patience=2)
    optimizer = optax.chain(optax.adam(0.1), on_plateau)
    expected = run(tmp_path / "whole", optimizer=optimizer)

    with pytest.raises(Killed):
        run(tmp_path / "run", optimizer=optimizer, hooks=[kill_at_9])
    resumed = run(tmp_path / "run", optimizer=optimizer)
    assert_equal(resumed, expected)

    # The optimizer moves the parameters.
    start = jaxformer.init_state(init, optimizer, one_device())
    before = np.asarray(start.params["table"])
    after = np.asarray(expected.params["table"])
    assert np.abs(after - before).max() > 0.1


def test_hooks_see_every_step_and_their_errors_end_the_run(tmp_path, uninterrupted):
    steps = []
    losses = []

    def note(step, state, sums):
        assert int(state.step) == step
        steps.append(step)
        losses.append(float(sums["loss"]) / float(sums["count"]))

    def fail(step, state, sums):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(tmp_path, hooks=[note, every(8, fail)], log_every=1)

    assert steps == list(range(1, 9))
    reported = [report["loss"] for report in runs.reports(tmp_path, "train")]
    assert reported == pytest.approx(losses, rel=1e-6)

    # The step after which the hook failed is saved.
    assert max(steps_in(tmp_path)) == 8
    assert_equal(run(tmp_path), uninterrupted.state)


def test_a_run_is_compared_with_what_it_began_with(tmp_path, uninterrupted, capsys):
    def kill(step, state, sums):
        if step == 7:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path, eval_on_start=True, hooks=[kill])
    state = run(tmp_path, eval_on_start=True)
    assert_equal(state, uninterrupted.state)
    assert steps_in(tmp_path) == [4, 8, 12]

    first, *others = runs.reports(tmp_path, "valid")
    assert others == runs.reports(uninterrupted.folder, "valid")

    # The parameters that the run began with, and the sums in NumPy.
    kept = []
    fit(
        Bigrams(),
        OPTIMIZER,
        tmp_path / "fresh",
        FitConfig(**SETTINGS | {"steps": 1}),
        mesh=one_device(),
        start_from=lambda fresh: kept.append(fresh) or fresh,
    )
    params = jax.device_get(kept[0])
    total = count = 0.0
    for n in range(2):
        batch = Bigrams().batch(10**6 + n)
        logits = params["table"][batch["letters"]] + params["prior"]
        chosen = np.take_along_axis(logits, batch["following"][..., None], axis=-1)[..., 0]
        nll = np.log(np.exp(logits).sum(-1)) - chosen
        total += (nll * batch["weights"]).sum()
        count += batch["weights"].sum()

    assert first["step"] == 0
    assert first["loss"] == pytest.approx(total / count, rel=1e-5)

    last = others[-1]
    log = capsys.readouterr().err
    _, _, table = log.partition("validation     before      after\n")
    assert table.startswith(f"loss        {first['loss']:9.4g}  {last['loss']:9.4g}\nppl  ")
    assert log.count("after\n") == 1


def test_a_stop_before_the_first_step_saves_nothing(tmp_path, uninterrupted):
    class Stopped(Bigrams):
        def evaluate(self, params, mesh, check_stop):
            signal.raise_signal(signal.SIGTERM)
            check_stop()

    with pytest.raises(KeyboardInterrupt, match="SIGTERM: no step was taken"):
        run(tmp_path, Stopped(), eval_on_start=True)
    assert steps_in(tmp_path) == []
    assert runs.reports(tmp_path) == []

    assert_equal(run(tmp_path, eval_on_start=True), uninterrupted.state)
    assert [report["step"] for report in runs.reports(tmp_path, "valid")] == [0, 4, 8, 12]


def test_a_failed_save_during_a_validation_ends_the_run(tmp_path, monkeypatch):
    """It is not taken for a failed validation."""

    def evaluate(params, mesh, check_stop):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            check_stop()
            time.sleep(0.05)
        return {"loss": 1.0}

    full_disk = mock.Mock(side_effect=OSError("no space left"))
    monkeypatch.setattr(Manifest, "write", full_disk)
    with pytest.raises(OSError, match=r"step 4 could not be saved; the steps .* no space left"):
        run(tmp_path, changed(evaluate=evaluate))

    metrics = (tmp_path / "metrics.jsonl").read_text()
    assert "failed_validation" not in metrics


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
        run(uninterrupted.folder, task, **settings)


def test_named_fields_may_change(tmp_path, uninterrupted):
    run(tmp_path, steps=8)
    with pytest.raises(UserError, match=r"may_change: .* got fit\.best_metric, fit\.steps"):
        run(tmp_path, seed=5, may_change="best_metric, seed, steps")

    state = run(tmp_path, seed=5, may_change="seed")
    assert int(state.step) == 12
    with_seed_0 = uninterrupted.state.params["table"]
    assert not np.array_equal(state.params["table"], with_seed_0)

    with pytest.raises(UserError, match=r"holds a run with fit\.seed=5, but 0 was given"):
        run(tmp_path)


def test_workdirs_of_others_are_refused(uninterrupted):
    with pytest.raises(UserError, match=r"expected a workdir of this task, but it holds a run of"):
        jaxformer.train(Config(), uninterrupted.folder)


def test_a_workdir_without_its_config_is_refused(tmp_path):
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
        fit(
            Bigrams(),
            OPTIMIZER,
            tmp_path,
            FitConfig(**SETTINGS | {"steps": 1}),
            mesh=one_device(),
            config=Own(own | sections),
        )

    again()
    with pytest.raises(UserError, match=r"holds a run with diffusion\.steps=.* but 10 was"):
        again(diffusion={"steps": 10})
    again(training={"steps": 2})


def few_batches(start, shards):
    return itertools.islice(Bigrams().batches(start, shards), 5)


def loss_without_count(*arguments):
    return loss(*arguments)["loss"]


def loss_with_an_array(params, batch, randomness):
    return loss(params, batch, randomness) | {"right": batch["weights"]}


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (changed(batches=few_batches), {}, "expected batches for 12 steps, but there were only 5"),
        (changed(loss=loss_without_count), {}, 'a dict of sums with "loss", "count"'),
        (changed(loss=loss_with_an_array), {}, r"\(8, 6\); sum it"),
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

    batch = Bigrams().batch(0)
    mesh = jaxformer.make_mesh()
    optimizer = optax.sgd(1.0)
    step = jaxformer.make_train_step(without_dropout, optimizer, mesh)
    state = jaxformer.init_state(init, optimizer, mesh)
    params = jax.device_get(state.params)

    @jax.jit
    @jax.value_and_grad
    def mean(params):
        logits = params["table"][batch["letters"]] + params["prior"]
        log_p = jax.nn.log_softmax(logits)  # [B, T, V]
        following = batch["following"][..., None]
        picked = jnp.take_along_axis(log_p, following, -1)[..., 0]
        weights = batch["weights"]
        return -(picked * weights).sum() / len(weights)

    expected, gradient = jax.device_get(mean(params))

    # A global mesh of the user's own, and no transfer to or from devices.
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    on_devices = jax.device_put(batch, rows)
    own_mesh = jax.make_mesh((4, 2), ("x", "y"))
    with jax.set_mesh(own_mesh), jax.transfer_guard("disallow"):
        state, sums = step(state, on_devices)

    found = float(sums["loss"]) / float(sums["count"])
    assert found == pytest.approx(expected, rel=1e-6)
    for name, found in jax.device_get(state.params).items():
        by_hand = params[name] - gradient[name]
        np.testing.assert_allclose(found, by_hand, rtol=1e-5, atol=1e-6)
