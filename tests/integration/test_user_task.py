"""A user's own task through public API: trained, killed, resumed, sharded, logged, refused."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import jaxformer
from jaxformer import Checkpoints, Config, FitConfig, MeshConfig, Task, UserError, every, fit
from jaxformer.checkpoint.manifest import Manifest
from jaxformer.nn import ParameterInfo
from jaxformer.workdir import Workdir

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the angry bear " * 8
SETTINGS = {"steps": 12, "log_every": 2, "checkpoint_every": 4, "eval_every": 4}
OPTIMIZER = optax.adam(0.1)


class Bigrams(Task):
    """Logits of the next letter given a letter, with dropout on the logits."""

    def __init__(self, text=TEXT, dropout=0.2):
        self.ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32) % 32
        self.dropout = dropout
        self.asked_for = []

    def init(self, key):
        return {"table": 0.1 * jax.random.normal(key, (32, 32)), "prior": jnp.zeros(32)}

    def describe(self):
        return {"table": ParameterInfo(("vocab", "d_model"), "table"), "prior": None}

    def loss(self, params, batch, randomness):
        letters, following, weights = batch["letters"], batch["following"], batch["weights"]
        table = jax.lax.with_sharding_constraint(params["table"], PartitionSpec())
        logits = table[letters] + params["prior"]
        if randomness is not None:
            keys = jax.vmap(jax.random.fold_in, (None, 0))(randomness.key, randomness.row_ids)
            kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - self.dropout, (1, 32)))(keys)
            logits = jnp.where(kept, logits, 0) / (1 - self.dropout)
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, following)
        right = (logits.argmax(-1) == following) * weights
        total = (nll * weights).sum()
        return {"loss": total, "nll": total, "right": right.sum(), "count": weights.sum()}

    def batch(self, number):
        rng = np.random.default_rng(number)
        starts = rng.integers(0, len(self.ids) - 7, 8)
        rows = np.stack([self.ids[start : start + 7] for start in starts])
        # Rows have uneven length, so some letters have weight 0.
        weights = (np.arange(6) < rng.integers(0, 7, (8, 1))).astype(np.float32)
        return {"letters": rows[:, :-1], "following": rows[:, 1:], "weights": weights}

    def batches(self, start, shards):
        self.asked_for.append(start)
        for number in itertools.count(start):
            yield shards.local(self.batch(number))

    def evaluate(self, params, mesh, check_stop):
        batches = (self.batch(10**6 + n) for n in range(2))
        return jaxformer.evaluate_loss(self.loss, params, batches, mesh, check_stop)

    def identity(self):
        return {"text": hashlib.sha256(self.ids.tobytes()).hexdigest()}


class Notes:
    """A writer that keeps what it is given."""

    def __init__(self):
        self.reports, self.closed = [], 0

    def write(self, step, kind, values):
        self.reports.append((step, kind, values))

    def close(self):
        self.closed += 1


def one_device():
    return jaxformer.make_mesh(devices=jax.devices()[:1])


def run(folder, task=None, optimizer=OPTIMIZER, mesh=None, hooks=(), writers=(), **settings):
    task, mesh = task or Bigrams(), mesh or one_device()
    settings = FitConfig(**SETTINGS | settings)
    return fit(task, optimizer, folder, settings, mesh=mesh, hooks=hooks, writers=writers)


def assert_equal(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(actual), jax.device_get(expected))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Returns the final state and the reports of an uninterrupted run."""
    notes = Notes()
    folder = tmp_path_factory.mktemp("whole")
    state = run(folder, writers=[notes])
    assert notes.closed == 1
    return state, notes.reports, folder


class Killed(BaseException):
    """An exception that stands in for the end of the process."""


def at(step, error):
    def hook(found, state, sums):
        if found == step:
            raise error

    return hook


@pytest.mark.smoke
def test_task_learns_and_reports(uninterrupted):
    _, reports, folder = uninterrupted
    train = [values["loss"] for _, kind, values in reports if kind == "train"]
    assert len(train) == 6
    assert train[-1] < train[0] - 0.5
    valid = [values for _, kind, values in reports if kind == "valid"]
    assert valid[-1]["perplexity"] == pytest.approx(math.exp(valid[-1]["loss"]))
    assert 0 < valid[-1]["right"] <= 1
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [(r["step"], r["kind"], r["loss"]) for r in map(json.loads, lines)] == [
        (step, kind, values["loss"]) for step, kind, values in reports
    ]
    assert json.loads((folder / "identity.json").read_text()) == Bigrams().identity()
    assert Checkpoints(folder / "checkpoints").steps() == [4, 8, 12]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Killed(), OSError("disk")], ids=repr)
def test_resumes_bit_for_bit_after_interruption_between_checkpoints(error, tmp_path, uninterrupted):
    notes, task = Notes(), Bigrams()
    with pytest.raises(type(error)):
        run(tmp_path, hooks=[at(7, error)], writers=[notes])
    with pytest.raises(type(error)):  # Interrupted again before the next checkpoint.
        run(tmp_path, hooks=[at(5, error)], writers=[notes])
    state = run(tmp_path, task, writers=[notes])
    assert task.asked_for == [4]
    assert_equal(state, uninterrupted[0])
    # Each report appears once, though steps 5 to 7 were computed three times.
    assert [(step, kind) for step, kind, _ in notes.reports] == [
        (step, kind) for step, kind, _ in uninterrupted[1]
    ]
    for (_, _, values), (_, _, expected) in zip(notes.reports, uninterrupted[1], strict=True):
        assert values["loss"] == expected["loss"]
    assert notes.closed == 3


def test_batches_may_be_prefetched_in_threads(tmp_path, uninterrupted):
    class Prefetched(Bigrams):
        def batches(self, start, shards):
            return jaxformer.prefetch(lambda number: shards.local(self.batch(number)), start)

    run(tmp_path, Prefetched(), steps=4)
    assert_equal(run(tmp_path, Prefetched()), uninterrupted[0])


def test_a_signal_saves_first(tmp_path, uninterrupted):
    hook = every(5, lambda step, state, sums: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt, match="SIGTERM: step 5 is saved"):
        run(tmp_path, hooks=[hook])
    assert Checkpoints(tmp_path / "checkpoints").steps() == [4, 5]
    assert_equal(run(tmp_path), uninterrupted[0])


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import test_user_task
state = test_user_task.run(sys.argv[2], steps=int(sys.argv[3]))
"""


def start(folder, steps):
    here = pathlib.Path(__file__).parent
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(here), str(folder), str(steps)],
        cwd=here.parents[1],
        env=os.environ | {"XLA_FLAGS": ""},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.ci
def test_kill_9_loses_nothing(tmp_path):
    killed = start(tmp_path / "killed", 100_000)
    deadline = time.monotonic() + 120
    while not (steps := Checkpoints(tmp_path / "killed" / "checkpoints").steps()):
        assert time.monotonic() < deadline
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    last = max(Checkpoints(tmp_path / "killed" / "checkpoints").steps()) + 20
    resumed = start(tmp_path / "killed", last)
    _, log = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, log
    assert "resumed from step" in log
    assert steps
    assert_equal(run(tmp_path / "killed", steps=last), run(tmp_path / "whole", steps=last))


@pytest.mark.parametrize("sizes", [(8, 1, 1), (1, 8, 1), (2, 2, 2)], ids=str)
def test_eight_devices_equal_one(sizes, tmp_path, uninterrupted):
    data, fsdp, tensor = sizes
    mesh = jaxformer.make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor))
    notes = Notes()
    state = run(tmp_path, mesh=mesh, writers=[notes])
    assert state.params["table"].sharding.shard_shape((32, 32)) == (32 // tensor, 32 // fsdp)
    for name, found in jax.device_get(state.params).items():
        np.testing.assert_allclose(found, uninterrupted[0].params[name], rtol=1e-4, atol=1e-5)
    for (_, _, values), (_, _, expected) in zip(notes.reports, uninterrupted[1], strict=True):
        assert values["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert values["right"] == expected["right"]


class Plain(Bigrams):
    """A loss that ignores devices: each device has a copy of all parameters."""

    describe = Task.describe

    def init(self, key):
        first, second = jax.random.split(key)
        return {
            "embedding": jax.random.normal(first, (32, 16)),
            "inner": jax.random.normal(second, (16, 32)) / 4,
        }

    def loss(self, params, batch, randomness):
        hidden = params["embedding"][batch["letters"]]
        logits = jax.nn.relu(hidden @ params["inner"]) @ params["inner"].T @ params["embedding"].T
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch["following"])
        return {"loss": (nll * batch["weights"]).sum(), "count": batch["weights"].sum()}


@pytest.mark.smoke
@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 2, 1)], ids=str)
def test_task_without_sharding_runs_on_every_mesh(sizes, tmp_path):
    data, fsdp, tensor = sizes
    mesh = jaxformer.make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor))
    one = run(tmp_path / "one", Plain(), steps=4)
    many = run(tmp_path / "many", Plain(), steps=4, mesh=mesh)
    assert many.params["inner"].sharding.is_fully_replicated
    for name, found in jax.device_get(many.params).items():
        np.testing.assert_allclose(found, one.params[name], rtol=1e-3, atol=1e-4)


def test_accumulation_and_resuming_on_another_mesh_change_nothing(tmp_path, uninterrupted):
    run(
        tmp_path,
        steps=4,
        gradient_accumulation=2,
        mesh=jaxformer.make_mesh(devices=jax.devices()[:4]),
    )
    state = run(tmp_path, gradient_accumulation=4)
    for name, found in jax.device_get(state.params).items():
        np.testing.assert_allclose(found, uninterrupted[0].params[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adafactor(0.1, min_dim_size_to_factor=8),
        optax.chain(optax.clip(0.1), optax.sgd(3.0, momentum=0.9)),
        optax.contrib.schedule_free_adamw(0.1),
        optax.chain(optax.adam(0.1), optax.contrib.reduce_on_plateau(patience=2)),
    ],
    ids=["adafactor", "sgd", "schedule free", "plateau"],
)
def test_any_optimizer_is_resumed_exactly(optimizer, tmp_path):
    expected = run(tmp_path / "whole", optimizer=optimizer)
    with pytest.raises(Killed):
        run(tmp_path / "run", optimizer=optimizer, hooks=[at(9, Killed())])
    assert_equal(run(tmp_path / "run", optimizer=optimizer), expected)
    start = jaxformer.init_state(Bigrams().init, optimizer, one_device()).params["table"]
    assert np.abs(expected.params["table"] - start).max() > 0.1


def test_hooks_see_every_step_and_their_errors_end_the_run(tmp_path, uninterrupted):
    seen = []

    def note(step, state, sums):
        seen.append((step, int(state.step), float(sums["loss"] / sums["count"])))

    with pytest.raises(ZeroDivisionError):
        run(tmp_path, hooks=[note, every(8, lambda *_: 1 / 0)], log_every=1)
    assert [(step, step) for step, _, _ in seen] == [(step, step) for step in range(1, 9)]
    assert [number for _, number, _ in seen] == list(range(1, 9))
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    reports = [json.loads(line) for line in lines]
    losses = [report["loss"] for report in reports if report["kind"] == "train"]
    assert losses == pytest.approx([loss for _, _, loss in seen], rel=1e-6)
    # The step after which the hook failed is saved.
    assert max(Checkpoints(tmp_path / "checkpoints").steps()) == 8
    assert_equal(run(tmp_path), uninterrupted[0])


def test_failing_writer_is_dropped_and_training_continues(tmp_path, uninterrupted, capsys):
    class Offline(Notes):
        def write(self, step, kind, values):
            super().write(step, kind, values)
            raise ConnectionError("no route to host")

    offline, notes = Offline(), Notes()
    assert_equal(run(tmp_path, writers=[offline, notes]), uninterrupted[0])
    assert len(offline.reports) == 1
    assert len(notes.reports) == len(uninterrupted[1])
    message = "Offline failed and gets no more reports: ConnectionError: no route to host"
    assert capsys.readouterr().err.count(message) == 1


def test_best_checkpoint_is_chosen_by_the_tasks_score(tmp_path):
    class Scored(Bigrams):
        best = "score", "max"

        def evaluate(self, params, mesh, check_stop):
            score = {4: 3.0, 8: 5.0}.get(self.step, 1.0)
            return {"loss": jnp.float32(1), "score": np.float32(score)}

    task = Scored()

    def note(step, state, sums):
        task.step = step + 1

    run(tmp_path, task, hooks=[note], steps=20, keep_checkpoints=1)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert (checkpoints.steps(), checkpoints.best_step()) == ([8, 20], 8)


def test_without_an_evaluation(tmp_path, uninterrupted):
    class NotEvaluated(Bigrams):
        evaluate = Task.evaluate

    notes = Notes()
    assert_equal(run(tmp_path, NotEvaluated(), writers=[notes]), uninterrupted[0])
    assert {kind for _, kind, _ in notes.reports} == {"train"}


def keep_asking(check_stop, is_done=lambda: False):
    """Calls a function for a minute, or until something is done."""
    until = time.monotonic() + 60
    while not is_done() and time.monotonic() < until:
        check_stop()
        time.sleep(0.05)


def test_a_step_is_in_the_mirror_while_it_is_validated(tmp_path):
    """A long validation is the likeliest time for a preemption."""
    copies = []

    class Slow(Bigrams):
        def evaluate(self, params, mesh, check_stop):
            step = len(copies) * 4 + 4
            manifest = tmp_path / "copy" / "checkpoints" / str(step) / "manifest.json"
            keep_asking(check_stop, manifest.exists)
            copies.append((step, manifest.exists()))
            return super().evaluate(params, mesh, check_stop)

    run(tmp_path / "run", Slow(), mirror=str(tmp_path / "copy"))
    assert copies == [(4, True), (8, True), (12, True)]


def test_a_save_that_fails_during_a_validation_ends_the_run(tmp_path, monkeypatch):
    """It is not taken for a failed validation."""

    def refuse(manifest, folder):
        raise OSError("no space left")

    class Waiting(Bigrams):
        def evaluate(self, params, mesh, check_stop):
            keep_asking(check_stop)

    monkeypatch.setattr(Manifest, "write", refuse)
    with pytest.raises(OSError, match=r"step 4 could not be saved; the steps .* no space left"):
        run(tmp_path, Waiting())
    assert "failed_validation" not in (tmp_path / "metrics.jsonl").read_text()


def test_a_full_disk_during_a_validation_ends_the_run(tmp_path, monkeypatch):
    """Even if the task catches the error."""

    def refuse(workdir, step):
        raise OSError("no space left")

    class Catching(Bigrams):
        def evaluate(self, params, mesh, check_stop):
            with contextlib.suppress(OSError):
                keep_asking(check_stop)
            return {"loss": 1.0}

    monkeypatch.setattr(Workdir, "record_commit", refuse)
    with pytest.raises(OSError, match="no space left"):
        run(tmp_path, Catching())


def test_another_machine_that_comes_back_keeps_the_best_step(tmp_path):
    """It was lost in the validation of the step that another machine then found the best."""
    step = {"n": 4}

    class Scored(Bigrams):
        lost = False

        def evaluate(self, params, mesh, check_stop):
            now = step["n"]
            step["n"] += 4
            if self.lost and now == 8:
                raise Killed
            return {"loss": abs(now - 8.0)}

    def train(name, first, task=None, **settings):
        step["n"] = first
        run(
            tmp_path / name,
            task or Scored(),
            keep_checkpoints=1,
            mirror=str(tmp_path / "copy"),
            **settings,
        )

    lost = Scored()
    lost.lost = True
    with pytest.raises(Killed):
        train("first", 4, lost)
    shutil.rmtree(tmp_path / "copy" / "checkpoints" / "8", ignore_errors=True)
    train("second", 8)
    train("first", 16, steps=16)
    with Checkpoints(tmp_path / "first" / "checkpoints") as checkpoints:
        assert (checkpoints.steps(), checkpoints.best_step()) == ([8, 16], 8)


def test_evaluation_without_the_score_is_reported(tmp_path, uninterrupted, capsys):
    class Wrong(Bigrams):
        best = "bleu", "max"

    notes = Notes()
    assert_equal(run(tmp_path, Wrong(), writers=[notes]), uninterrupted[0])
    message = "the checkpoint has no score: UserError: Wrong.best names 'bleu', but evaluate "
    assert f"{message}returned 'loss'" in capsys.readouterr().err
    found, expected = (
        [report for report in reports if report[1] == "valid"]
        for reports in (notes.reports, uninterrupted[1])
    )
    assert len(found) == 3
    assert found == expected


class Wider(Bigrams):
    def init(self, key):
        return {"table": jnp.zeros((32, 64)), "prior": jnp.zeros(32)}


def test_other_data_and_another_seed_are_refused(tmp_path, uninterrupted):
    with pytest.raises(UserError, match="the run began with other data: text was"):
        run(uninterrupted[2], Bigrams(TEXT[:-1]))
    with pytest.raises(UserError, match=r"holds a run with fit\.seed=0, but 5 was given"):
        run(uninterrupted[2], seed=5)
    with pytest.raises(UserError, match="expected params/table to be float32"):
        run(uninterrupted[2], Wider())

    class Forgetful(Bigrams):
        def identity(self):
            return {}

    with pytest.raises(UserError, match=r"other data: text was [0-9a-f]+, now None"):
        run(uninterrupted[2], Forgetful())


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
    for section, name, value in [("diffusion", "steps", 10), ("mesh", "resolution", 8)]:
        with pytest.raises(
            UserError, match=rf"holds a run with {section}\.{name}=.* but {value} was"
        ):
            again(**{section: {name: value}})
    again(training={"steps": 2})


def test_checkpoints_without_a_config_are_not_taken_over(tmp_path):
    run(tmp_path, steps=4)
    (tmp_path / "config.json").unlink()
    message = r"or the config.json of the run whose checkpoint of step 4 is there; bring it back"
    with pytest.raises(UserError, match=message):
        run(tmp_path, seed=7)
    assert not (tmp_path / "config.json").exists()


def test_workdirs_of_tasks_and_of_configs_are_not_mixed(tmp_path, uninterrupted):
    with pytest.raises(UserError, match=r"expected a workdir of this task, but it holds a run of"):
        jaxformer.train(Config(), uninterrupted[2])
    (tmp_path / "config.json").write_text(json.dumps(Config().to_dict()))
    with pytest.raises(UserError, match=r"expected a workdir of this task, but it holds a run of"):
        run(tmp_path)


def test_shapes_are_compiled_ahead_and_others_are_refused(tmp_path, uninterrupted, capsys):
    class Shaped(Bigrams):
        rows = 8

        def shapes(self, shards):
            batch = self.batch(0)
            return [
                {
                    name: jax.ShapeDtypeStruct((self.rows, 6), array.dtype)
                    for name, array in batch.items()
                }
            ]

    assert_equal(run(tmp_path / "run", Shaped()), uninterrupted[0])
    assert "compiling the step for shape 1 of 1: " in capsys.readouterr().err
    wrong = Shaped()
    wrong.rows = 16
    with pytest.raises(UserError, match=r"expected a batch of one of Task\.shapes, got"):
        run(tmp_path / "wrong", wrong)


def test_mistakes_of_a_task_are_reported(tmp_path):
    class Few(Bigrams):
        def batches(self, start, shards):
            return itertools.islice(super().batches(start, shards), 5)

    with pytest.raises(UserError, match="expected batches for 12 steps, but there were only 5"):
        run(tmp_path / "few", Few())
    with pytest.raises(UserError, match=r"rows divisible by 24, for 8 shards of 3 micro-batches"):
        run(tmp_path / "rows", mesh=jaxformer.make_mesh(), gradient_accumulation=3)

    class Mean(Bigrams):
        def loss(self, params, batch, randomness):
            return super().loss(params, batch, randomness)["loss"]

    with pytest.raises(UserError, match='loss: expected a dict of sums with "loss", "count"'):
        run(tmp_path / "mean", Mean())

    class Unsummed(Bigrams):
        def loss(self, params, batch, randomness):
            sums = super().loss(params, batch, randomness)
            return sums | {"right": batch["weights"]}

    with pytest.raises(UserError, match=r'got "right" of shape \(8, 6\); sum it'):
        run(tmp_path / "unsummed", Unsummed())

    class Empty(Bigrams):
        def init(self, key):
            return super().init(key) | {"unused": jnp.zeros((0, 4))}

        def describe(self):
            return super().describe() | {"unused": None}

    message = r"at least one element, .* got params/unused of shape \(0, 4\)"
    with pytest.raises(UserError, match=message):
        run(tmp_path / "empty", Empty())

    class Unfinished(Task):
        def init(self, key):
            return {}

    with pytest.raises(TypeError, match="abstract"):
        Unfinished()
    with pytest.raises(UserError, match=r"got the class Bigrams; give Bigrams\(\.\.\.\)"):
        fit(Bigrams, OPTIMIZER, tmp_path / "class")


def test_constant_counts_are_summed_over_devices(tmp_path):
    """Constants are summed like values that depend on the batch."""

    class Constant(Bigrams):
        def loss(self, params, batch, randomness):
            total = super().loss(params, batch, randomness)["loss"]
            return {"loss": total, "count": len(batch["letters"])}

    one = run(tmp_path / "one", Constant(), steps=2)
    eight = run(tmp_path / "eight", Constant(), steps=2, mesh=jaxformer.make_mesh())
    for name, found in jax.device_get(eight.params).items():
        np.testing.assert_allclose(found, one.params[name], rtol=1e-4, atol=1e-5)


def test_train_step_without_task_or_workdir():
    task, mesh = Bigrams(dropout=0.0), one_device()
    step = jaxformer.make_train_step(task.loss, optax.sgd(1.0), mesh)
    state = jaxformer.init_state(task.init, optax.sgd(1.0), mesh)
    params, batch = jax.device_get(state.params), task.batch(0)

    def mean(params):
        logits = params["table"][batch["letters"]] + params["prior"]
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["following"][..., None], -1)
        return -(picked[..., 0] * batch["weights"]).sum() / batch["weights"].sum()

    gradient = jax.grad(mean)(jax.tree.map(jnp.asarray, params))
    state, sums = step(state, batch)
    assert float(sums["loss"] / sums["count"]) == pytest.approx(float(mean(params)), rel=1e-6)
    for name, found in jax.device_get(state.params).items():
        np.testing.assert_allclose(found, params[name] - gradient[name], rtol=1e-5, atol=1e-6)
