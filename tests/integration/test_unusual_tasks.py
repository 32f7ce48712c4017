"""Tasks and optimizers that researchers write: each trains, or an error names what is expected."""

import functools
import itertools
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxformer
from jaxformer import Checkpoints, FitConfig, MeshConfig, Task, UserError, every, fit, waits

from ..runs import reports


class Softmax(Task):
    """Softmax regression on eight rows of four numbers."""

    def init(self, key):
        return {"w": 0.1 * jax.random.normal(key, (4, 3))}

    def loss(self, params, batch, randomness):
        logits = batch["x"] @ params["w"]
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        return {"loss": nll.sum(), "count": nll.size}

    def batches(self, start, shards):
        for number in itertools.count(start):
            yield shards.local(self.batch(number))

    def batch(self, number):
        x = np.random.default_rng(number).normal(size=(8, 4)).astype(np.float32)
        return {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}

    def identity(self):
        return {"data": "generated"}

    def evaluate(self, params, mesh, check_stop):
        return {}


def mesh_of(devices, **sizes):
    return jaxformer.make_mesh(MeshConfig(**sizes), jax.devices()[:devices])


def train(task, folder, optimizer=None, mesh=None, hooks=(), **settings):
    intervals = dict.fromkeys(("log_every", "checkpoint_every", "eval_every"), 4)
    config = FitConfig(**{"steps": 4, **intervals, **settings})
    optimizer, mesh = optimizer or optax.sgd(0.5), mesh or mesh_of(1)
    return fit(task, optimizer, folder / "run", config, mesh=mesh, hooks=hooks)


def changed(**functions):
    return type("Changed", (Softmax,), functions)()


def other_batch(change):
    return changed(batch=lambda self, number: change(Softmax().batch(number)))


def other_init(**arrays):
    return changed(init=lambda self, key: Softmax().init(key) | arrays)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (other_batch(lambda b: {k: v.tolist() for k, v in b.items()}), "NumPy arrays of lists"),
        (other_batch(lambda b: b | {"t": np.float32(1)}), r"\['t'\]: .* got a scalar; repeat it"),
        (other_batch(lambda b: b | {"id": np.array(["a"] * 8)}), r"\['id'\]: .* got dtype <U1; k"),
        (other_batch(lambda b: {k: v[:0] for k, v in b.items()}), r"got no rows, shape \(0, 4\)"),
        (other_init(n=np.zeros((), np.int32)), "of floating-point numbers, .*: got n of dtype i"),
        (other_init(mask=np.array([0, -np.inf], np.float32)), "finite parameters: mask holds NaN"),
    ],
)
def test_batches_and_parameters_that_cannot_be_trained(task, message, tmp_path):
    with pytest.raises(UserError, match=message):
        train(task, tmp_path)


def test_an_edited_loss_does_not_change_a_finished_run_which_says_so(tmp_path, capsys):
    state = train(Softmax(), tmp_path)
    edited = changed(loss=lambda self, params, *_: {"loss": params["w"].sum(), "count": 1})
    capsys.readouterr()
    found = train(edited, tmp_path)
    np.testing.assert_array_equal(found.params["w"], state.params["w"])
    assert capsys.readouterr().err.endswith(
        "nothing to do: fit.steps=4 are done, and the parameters come from the checkpoint of step "
        f"4 in {tmp_path / 'run'}; to train again after a change of code or data, use another "
        "workdir; to train longer, raise fit.steps\n"
    )


def test_a_slow_restore_and_validation_are_announced(tmp_path, capsys, monkeypatch):
    def slow(function):
        return lambda *arguments, **options: (time.sleep(0.5), function(*arguments, **options))[1]

    task = changed(evaluate=slow(lambda *_: {"loss": 1.0}))
    intervals = dict.fromkeys(("checkpoint_every", "eval_every"), 2)
    train(task, tmp_path, **intervals)
    monkeypatch.setattr(waits, "SECONDS", 0.2)
    monkeypatch.setattr(Checkpoints, "restore", slow(Checkpoints.restore))
    capsys.readouterr()
    train(task, tmp_path, steps=6, **intervals)
    lines = capsys.readouterr().err.splitlines()
    assert "verifying and restoring the checkpoint of step 4 ..." in lines
    assert (
        lines.index("validating step 6 ...") == lines.index("step 6/6  validation: loss 1.000") - 1
    )


def test_meshes_of_others(tmp_path):
    mesh = jax.make_mesh((1,), ("batch",), devices=jax.devices()[:1])
    with pytest.raises(UserError, match="with the axes data, fsdp, tensor: got batch"):
        train(Softmax(), tmp_path, mesh=mesh)


def test_no_checkpoint_is_named_before_the_first_is_saved(tmp_path):
    nan = optax.stateless(lambda updates, params: jax.tree.map(lambda u: u * jnp.nan, updates))
    settings = dict.fromkeys(("steps", "checkpoint_every", "eval_every", "log_every"), 12)
    with pytest.raises(FloatingPointError, match="last 12 steps; nothing is saved yet"):
        train(Softmax(), tmp_path, nan, **settings)


def test_init_may_return_variables(tmp_path):
    """As flax's init does, {"params": ...}; the parameters are trained as without that level."""
    task = changed(
        init=lambda self, key: {"params": Softmax().init(key)},
        loss=lambda self, params, batch, _: Softmax().loss(params["params"], batch, None),
    )
    nested, flat = train(task, tmp_path / "nested"), train(Softmax(), tmp_path / "flat")
    np.testing.assert_array_equal(nested.params["params"]["w"], flat.params["w"])


def test_line_searches_get_the_value_function_of_the_whole_batch(tmp_path):
    """Four steps of L-BFGS on two devices equal optax's own loop over the mean loss."""
    task, optimizer = Softmax(), optax.lbfgs(memory_size=3)

    @jax.jit
    def step(params, state, batch):
        def mean(params):
            return task.loss(params, batch, None)["loss"] / 8

        value, grad = jax.value_and_grad(mean)(params)
        updates, state = optimizer.update(
            grad, state, params, value=value, grad=grad, value_fn=mean
        )
        return optax.apply_updates(params, updates), state

    params = jax.jit(task.init)(jax.random.key(0))
    state = optimizer.init(params)
    for number in range(4):
        params, state = step(params, state, task.batch(number))
    found = train(task, tmp_path, optimizer, mesh_of(2))
    np.testing.assert_allclose(found.params["w"], params["w"], rtol=1e-4, atol=1e-5)
    assert int(found.skipped) == 0


def test_complex_parameters_are_trained_and_checked(tmp_path):
    """The gradient of |c|^2 is 2 conj(c), so a step of 0.5 along its conjugate gives 0."""
    task = changed(
        init=lambda self, key: {"c": jnp.full(3, 1 + 2j, jnp.complex64)},
        loss=lambda self, params, batch, _: {"loss": (jnp.abs(params["c"]) ** 2).sum(), "count": 1},
    )
    conjugate = optax.stateless(lambda updates, params: jax.tree.map(jnp.conj, updates))
    good = train(task, tmp_path / "good", optax.chain(conjugate, optax.sgd(0.25)))
    np.testing.assert_allclose(good.params["c"], np.full(3, (1 + 2j) / 16), rtol=1e-5)
    imaginary_nan = optax.stateless(lambda updates, params: {"c": updates["c"] + 1j * jnp.nan})
    bad = train(task, tmp_path / "bad", imaginary_nan)
    assert int(bad.skipped) == 4
    np.testing.assert_array_equal(bad.params["c"], np.full(3, 1 + 2j, np.complex64))


def rising(count):
    return 0.1 * (count + 1)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        # An update, by the mean gradient, after every third step.
        (optax.MultiSteps(optax.sgd(rising), 3), [0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.2]),
        (optax.chain(optax.MultiSteps(optax.sgd(0.5), 3)), [0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.2]),
        (
            optax.chain(optax.MultiSteps(optax.identity(), 3), optax.scale_by_schedule(rising)),
            [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
        ),
        (optax.sgd(0.5), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]),
    ],
    ids=["within", "constant", "outside", "none"],
)
def test_the_reported_learning_rate_is_the_last_one_used(optimizer, expected, tmp_path):
    config = FitConfig(steps=7, log_every=1, checkpoint_every=7, eval_every=7)
    fit(Softmax(), optimizer, tmp_path, config, mesh=mesh_of(1), learning_rate=rising)
    rates = [report["learning_rate"] for report in reports(tmp_path, "train")]
    assert rates == pytest.approx(expected)


@pytest.mark.ci
def test_fit_works_without_jit(tmp_path):
    with jax.disable_jit():
        state = train(Softmax(), tmp_path, steps=1)
    expected = train(Softmax(), tmp_path / "jitted", steps=1)
    np.testing.assert_allclose(state.params["w"], expected.params["w"], rtol=1e-5)


def contrast(gather, params, batch, randomness):
    """InfoNCE: the reversed columns of a row are to be found among the rows of the batch."""
    keys = batch["x"][:, ::-1] @ params["w"]
    own = jnp.arange(len(keys))
    if gather:
        own += len(keys) * jax.lax.axis_index("data")
        keys = jax.lax.all_gather(keys, "data", tiled=True)
    logits = batch["x"] @ params["w"] @ keys.T
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, own)
    return {"loss": nll.sum(), "count": len(nll)}


def test_losses_over_the_whole_batch_gather_it(tmp_path, capsys):
    """Its steps equal those on one device. Without gathering, there is a warning."""
    gathered, apart = (
        changed(loss=staticmethod(functools.partial(contrast, gather))) for gather in (True, False)
    )
    expected = train(gathered, tmp_path / "alone")
    for task, sizes in ((gathered, {"data": 2, "fsdp": 2}), (apart, {"data": 1, "fsdp": 4})):
        found = train(task, tmp_path / str(sizes), mesh=mesh_of(4, **sizes))
        np.testing.assert_allclose(found.params["w"], expected.params["w"], rtol=1e-4, atol=1e-6)
    assert "warning" not in capsys.readouterr().err
    w, x = np.asarray(jax.jit(Softmax().init)(jax.random.key(0))["w"]), Softmax().batch(0)["x"]
    # The first row of each shard, and of each micro-batch.
    for rows, settings in ((x[::2], {"mesh": mesh_of(4)}), (x[:2], {"gradient_accumulation": 2})):
        train(apart, tmp_path / str(len(rows)), **settings)
        logits = np.exp(rows @ w @ (rows[:, ::-1] @ w).T)
        loss = -np.log(logits.diagonal() / logits.sum(1)).mean()
        warning = f"the loss of the same rows is {loss:.4g} in one batch, but 0 in the shards and"
        assert warning in capsys.readouterr().err


COUNT = optax.sgd(1.0)
COUNTER = {  # its parameter counts the steps
    "init": staticmethod(lambda key: {"step": jnp.zeros(())}),
    "loss": staticmethod(lambda params, *_: {"loss": -params["step"], "count": 1}),
    "best": ("reward", "max"),
}


def validate(values, folder, **settings):
    """Validates with ``values(step)`` after every other step; returns the last and best step."""
    task = changed(evaluate=lambda self, params, *_: values(int(params["step"])), **COUNTER)
    settings = {"steps": 20, "checkpoint_every": 2, "eval_every": 2, **settings}
    state = train(task, folder, COUNT, **settings)
    return int(state.step), Checkpoints(folder / "run" / "checkpoints").best_step()


def test_patience_ends_an_interrupted_run_at_the_same_step(tmp_path, capsys):
    def rewards(step):
        return {"loss": 1.0, "reward": [0, 1, 3, 2.5, jnp.nan, 2, 9, 9, 9, 9, 9][step // 2]}

    for end in (5, 6, 8, 9):
        with pytest.raises(ZeroDivisionError):
            validate(rewards, tmp_path / "cut", patience=3, hooks=[every(end, lambda *_: 1 / 0)])
    for folder in (tmp_path / "cut", tmp_path / "whole"):
        assert validate(rewards, folder, patience=3) == (10, 4)
    reason = "no better reward in the last 3 validations"
    assert f"stopped early at step 10: {reason}" in capsys.readouterr().err
    assert validate(rewards, folder, patience=3) == (10, 4)
    log = capsys.readouterr().err
    assert f"nothing to do: {reason}, and the parameters come from the checkpoint of step 10" in log
    assert log.endswith("to train longer, raise fit.patience\n")
    assert validate(rewards, folder, patience=5) == (20, 20)
    first = (folder / "run" / "metrics.jsonl").read_text().splitlines()[0]
    assert list(json.loads(first)) == ["kind", "step", "reward", "loss"]


def test_the_best_metric_of_the_settings(tmp_path):
    def values(step):
        return {"reward": -step, "loss": -step, "error": abs(step - 3.5)}

    for metric, best in ((None, 2), ("loss", 6), ("reward", 2), ("error:min", 4), ("error:max", 6)):
        assert validate(values, tmp_path / f"{metric}", steps=6, best_metric=metric) == (6, best)
    for metric, message in (
        ("error", "best_metric=error: expected one of loss, .* error:min or error:max"),
        ("loss", "holds a run with fit.best_metric='error:max', but 'loss' was given"),
    ):
        with pytest.raises(UserError, match=message):
            validate(values, tmp_path / "error:max", best_metric=metric)


def test_a_first_validation_that_fails_ends_the_run(tmp_path, capsys):
    """A later one is reported with its traceback; the run then ends like any other."""
    for values, error, message in (
        (lambda step: {"reward": 1 / (step - 2)}, ZeroDivisionError, "division by zero"),
        (lambda step: {"loss": 1, "nll": 2}, UserError, "expected 'reward', .*: got loss, nll"),
        (lambda step: {}, UserError, "expected 'reward', .*: got none"),
    ):
        with pytest.raises(error, match=message):
            validate(values, tmp_path, steps=8, patience=9)

    def later(step):
        return {"loss": 0} if step == 6 else {"reward": 1 / (step - 4)}

    assert validate(later, tmp_path, steps=8) == (8, 8)
    log = capsys.readouterr().err
    failed = "validation failed, the checkpoint has no score"
    assert f"step 4/8  {failed}: ZeroDivisionError" in log
    assert "in later\n" in log
    assert f"step 6/8  {failed}: UserError: expected 'reward'" in log


def test_injected_hyperparameters_stay_and_are_named(tmp_path, capsys):
    def sgd(rate):
        schedule = optax.linear_schedule(1.0, 0.5, 100)
        sgd = optax.inject_hyperparams(optax.sgd)(learning_rate=rate, momentum=schedule)
        return optax.chain(optax.clip(1.0), sgd)

    for steps, rate, lines in ((4, 0.25, 0), (8, 0.125, 1), (12, 0.25, 0)):
        state = train(Softmax(), tmp_path, sgd(rate), steps=steps)
        assert float(state.opt_state[1].hyperparams["learning_rate"]) == 0.25
        assert capsys.readouterr().err.count("inject_hyperparams: learning_rate stays") == lines


def test_a_rule_per_layer_trains_and_resumes_on_another_mesh(tmp_path):
    def init(self, key):
        shapes = {"layers": {"w": (2, 4, 4), "b": (2, 4)}, "out": {"w": (4, 3)}}
        return jax.tree.map(
            lambda s: jax.random.normal(key, s), shapes, is_leaf=lambda s: type(s) is tuple
        )

    def loss(self, params, batch, randomness):
        x, layers = batch["x"], params["layers"]
        for i in range(2):
            x = jnp.tanh(x @ layers["w"][i] + layers["b"][i])
        return Softmax().loss(params["out"], batch | {"x": x}, randomness)

    task, rule = changed(init=init, loss=loss), optax.lamb(0.1)
    mask = {"layers": True, "out": {"w": False}}  # a tree that ends at the stack
    optimizer = optax.chain(optax.masked(jaxformer.per_layer(rule), mask), optax.clip(0.1))
    whole = train(task, tmp_path / "whole", optimizer, steps=8)
    train(task, tmp_path / "two", optimizer)
    resumed = train(task, tmp_path / "two", optimizer, mesh_of(4, data=2, fsdp=2), steps=8)
    for found, expected in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert whole.opt_state[0].inner_state[0].mu["layers"][1]["w"].shape == (4, 4)
