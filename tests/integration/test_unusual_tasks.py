"""Tasks and optimizers that researchers write: each trains, or an error names what is expected."""

import functools
import itertools
import json
import time
from typing import NamedTuple

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
        rng = np.random.default_rng(number)
        x = rng.normal(size=(8, 4)).astype(np.float32)
        is_positive = x[:, 0] > 0
        return {"x": x, "y": is_positive.astype(np.int32)}

    def identity(self):
        return {"data": "generated"}

    def evaluate(self, params, mesh, check_stop):
        return {}


def mesh_of(devices, **sizes):
    used = jax.devices()[:devices]
    return jaxformer.make_mesh(MeshConfig(**sizes), used)


def fail(step, state, sums):
    """A hook that ends the run."""
    raise ZeroDivisionError


def train(task, folder, optimizer=None, mesh=None, hooks=(), **settings):
    usual = {
        "steps": 4,
        "log_every": 4,
        "checkpoint_every": 4,
        "eval_every": 4,
    }
    fields = usual | settings
    return fit(
        task,
        optimizer or optax.sgd(0.5),
        folder / "run",
        FitConfig(**fields),
        mesh=mesh or mesh_of(1),
        hooks=hooks,
    )


def changed(**functions):
    cls = type("Changed", (Softmax,), functions)
    return cls()


def other_batch(change):
    def batch(self, number):
        usual = Softmax().batch(number)
        return change(usual)

    return changed(batch=batch)


def other_init(**arrays):
    def init(self, key):
        usual = Softmax().init(key)
        return usual | arrays

    return changed(init=init)


def transformation(change):
    """Returns an optimizer that applies a function to each array of updates."""

    def update(updates, params):
        return jax.tree.map(change, updates)

    return optax.stateless(update)


def as_lists(batch):
    return {name: array.tolist() for name, array in batch.items()}


def without_rows(batch):
    return {name: array[:0] for name, array in batch.items()}


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (other_batch(as_lists), "NumPy arrays of lists"),
        (other_batch(lambda b: b | {"t": np.float32(1)}), r"\['t'\]: .* got a scalar; repeat it"),
        (other_batch(lambda b: b | {"id": np.array(["a"] * 8)}), r"\['id'\]: .* got dtype <U1; k"),
        (other_batch(without_rows), r"got no rows, shape \(0, 4\)"),
        (other_init(n=np.zeros((), np.int32)), "of floating-point numbers, .*: got n of dtype i"),
        (other_init(mask=np.array([0, -np.inf], np.float32)), "finite parameters: mask holds NaN"),
    ],
)
def test_batches_and_parameters_that_cannot_be_trained(task, message, tmp_path):
    with pytest.raises(UserError, match=message):
        train(task, tmp_path)


def test_an_edited_loss_does_not_change_a_finished_run_which_says_so(tmp_path, capsys):
    state = train(Softmax(), tmp_path)
    capsys.readouterr()

    def loss(self, params, batch, randomness):
        return {"loss": params["w"].sum(), "count": 1}

    edited = changed(loss=loss)
    found = train(edited, tmp_path)

    np.testing.assert_array_equal(found.params["w"], state.params["w"])
    assert capsys.readouterr().err.endswith(
        "nothing to do: fit.steps=4 are done, and the parameters come from the checkpoint of step "
        f"4 in {tmp_path / 'run'}; to train again after a change of code or data, use another "
        "workdir; to train longer, raise fit.steps\n"
    )


def test_a_slow_restore_and_validation_are_announced(tmp_path, capsys, monkeypatch):
    def slow(function):
        def sleep_and_call(*arguments, **options):
            time.sleep(0.5)
            return function(*arguments, **options)

        return sleep_and_call

    task = changed(evaluate=slow(lambda *_: {"loss": 1.0}))
    train(task, tmp_path, checkpoint_every=2, eval_every=2)
    capsys.readouterr()

    monkeypatch.setattr(waits, "SECONDS", 0.2)
    monkeypatch.setattr(Checkpoints, "restore", slow(Checkpoints.restore))
    train(task, tmp_path, steps=6, checkpoint_every=2, eval_every=2)

    lines = capsys.readouterr().err.splitlines()
    assert "verifying and restoring the checkpoint of step 4 ..." in lines
    announced = lines.index("validating step 6 ...")
    assert lines[announced + 1] == "step 6/6  validation: loss 1.000"


def test_meshes_of_others(tmp_path):
    mesh = jax.make_mesh((1,), ("batch",), devices=jax.devices()[:1])
    with pytest.raises(UserError, match="with the axes data, fsdp, tensor: got batch"):
        train(Softmax(), tmp_path, mesh=mesh)


def test_no_checkpoint_is_named_before_the_first_is_saved(tmp_path):
    nan = transformation(lambda array: array * jnp.nan)
    with pytest.raises(FloatingPointError, match="last 12 steps; nothing is saved yet"):
        train(
            Softmax(),
            tmp_path,
            nan,
            steps=12,
            checkpoint_every=12,
            eval_every=12,
            log_every=12,
        )


def test_init_may_return_variables(tmp_path):
    """As flax's init does, {"params": ...}; the parameters are trained as without that level."""

    def init(self, key):
        return {"params": Softmax().init(key)}

    def loss(self, params, batch, randomness):
        return Softmax().loss(params["params"], batch, randomness)

    task = changed(init=init, loss=loss)
    nested = train(task, tmp_path / "nested")
    flat = train(Softmax(), tmp_path / "flat")
    np.testing.assert_array_equal(nested.params["params"]["w"], flat.params["w"])


def test_line_searches_get_the_value_function_of_the_whole_batch(tmp_path):
    """Four steps of L-BFGS on two devices equal optax's own loop over the mean loss."""
    task = Softmax()
    optimizer = optax.lbfgs(memory_size=3)

    @jax.jit
    def step(params, state, batch):
        def mean(params):
            sums = task.loss(params, batch, None)
            return sums["loss"] / 8

        value, grad = jax.value_and_grad(mean)(params)
        updates, state = optimizer.update(
            grad,
            state,
            params,
            value=value,
            grad=grad,
            value_fn=mean,
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
    start = np.full(3, 1 + 2j, np.complex64)

    def squares(self, params, batch, _):
        total = (jnp.abs(params["c"]) ** 2).sum()
        return {"loss": total, "count": 1}

    task = changed(init=lambda self, key: {"c": jnp.asarray(start)}, loss=squares)

    # Each of the four steps of 0.25 halves the parameters.
    conjugate = transformation(jnp.conj)
    optimizer = optax.chain(conjugate, optax.sgd(0.25))
    good = train(task, tmp_path / "good", optimizer)
    np.testing.assert_allclose(good.params["c"], start / 16, rtol=1e-5)

    imaginary_nan = transformation(lambda array: array + 1j * jnp.nan)
    bad = train(task, tmp_path / "bad", imaginary_nan)
    assert int(bad.skipped) == 4
    np.testing.assert_array_equal(bad.params["c"], start)


def rising(count):
    return 0.1 * (count + 1)


EACH_STEP = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
# An update, by the mean gradient, after every third step.
EVERY_THIRD = [0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.2]
RISING_OUTSIDE = optax.chain(
    optax.MultiSteps(optax.identity(), 3),
    optax.scale_by_schedule(rising),
)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (optax.MultiSteps(optax.sgd(rising), 3), EVERY_THIRD),
        (optax.chain(optax.MultiSteps(optax.sgd(0.5), 3)), EVERY_THIRD),
        (RISING_OUTSIDE, EACH_STEP),
        (optax.sgd(0.5), EACH_STEP),
    ],
    ids=["within", "constant", "outside", "none"],
)
def test_the_reported_learning_rate_is_the_last_one_used(optimizer, expected, tmp_path):
    config = FitConfig(steps=7, log_every=1, checkpoint_every=7, eval_every=7)
    fit(
        Softmax(),
        optimizer,
        tmp_path,
        config,
        mesh=mesh_of(1),
        learning_rate=rising,
    )
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
    x = batch["x"]
    queries = x @ params["w"]
    keys = x[:, ::-1] @ params["w"]
    own = jnp.arange(len(keys))
    if gather:
        own += len(keys) * jax.lax.axis_index("data")
        keys = jax.lax.all_gather(keys, "data", tiled=True)

    logits = queries @ keys.T
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, own)
    return {"loss": nll.sum(), "count": len(nll)}


GATHERED = changed(loss=staticmethod(functools.partial(contrast, True)))
APART = changed(loss=staticmethod(functools.partial(contrast, False)))


def test_losses_over_the_whole_batch_gather_it(tmp_path, capsys):
    """Its steps equal those on one device. Over fsdp alone, nothing needs to be gathered."""
    alone = train(GATHERED, tmp_path / "alone")
    expected = alone.params["w"]
    for task, sizes in (
        (GATHERED, {"data": 2, "fsdp": 2}),
        (APART, {"data": 1, "fsdp": 4}),
    ):
        mesh = mesh_of(4, **sizes)
        found = train(task, tmp_path / str(sizes), mesh=mesh)
        np.testing.assert_allclose(found.params["w"], expected, rtol=1e-4, atol=1e-6)

    assert "warning" not in capsys.readouterr().err


def test_a_loss_over_the_whole_batch_that_does_not_gather_it_gets_a_warning(tmp_path, capsys):
    params = jax.jit(Softmax().init)(jax.random.key(0))
    w = np.asarray(params["w"])
    x = Softmax().batch(0)["x"]

    # The first row of each shard, and of each micro-batch.
    for rows, settings in (
        (x[::2], {"mesh": mesh_of(4)}),
        (x[:2], {"gradient_accumulation": 2}),
    ):
        train(APART, tmp_path / str(len(rows)), **settings)

        queries = rows @ w
        keys = rows[:, ::-1] @ w
        odds = np.exp(queries @ keys.T)  # [row, key]
        probabilities = odds.diagonal() / odds.sum(1)
        loss = -np.log(probabilities).mean()
        warning = f"the loss of the same rows is {loss:.4g} in one batch, but 0 in the shards and"
        assert warning in capsys.readouterr().err


COUNT = optax.sgd(1.0)
COUNTER = {  # its parameter counts the steps
    "init": staticmethod(lambda key: {"step": jnp.zeros(())}),
    "loss": staticmethod(lambda params, *_: {"loss": -params["step"], "count": 1}),
    "best": ("reward", "max"),
}


class Validated(NamedTuple):
    """The last step of a run, and the one with the best score."""

    last: int
    best: int


def validate(values, folder, **settings):
    """Validates with ``values(step)`` after every other step."""

    def evaluate(self, params, mesh, check_stop):
        step = int(params["step"])
        return values(step)

    task = changed(evaluate=evaluate, **COUNTER)
    usual = {"steps": 20, "checkpoint_every": 2, "eval_every": 2}
    fields = usual | settings
    state = train(task, folder, COUNT, **fields)
    checkpoints = Checkpoints(folder / "run" / "checkpoints")
    return Validated(int(state.step), checkpoints.best_step())


def test_patience_ends_an_interrupted_run_at_the_same_step(tmp_path, capsys):
    cut = tmp_path / "cut"
    whole = tmp_path / "whole"
    by_validation = [0, 1, 3, 2.5, jnp.nan, 2, 9, 9, 9, 9, 9]

    def rewards(step):
        return {"loss": 1.0, "reward": by_validation[step // 2]}

    for end in (5, 6, 8, 9):
        with pytest.raises(ZeroDivisionError):
            validate(rewards, cut, patience=3, hooks=[every(end, fail)])

    assert validate(rewards, cut, patience=3) == Validated(last=10, best=4)
    assert validate(rewards, whole, patience=3) == Validated(last=10, best=4)
    reason = "no better reward in the last 3 validations"
    assert f"stopped early at step 10: {reason}" in capsys.readouterr().err

    # Again, there is nothing to do, unless the patience is greater.
    assert validate(rewards, whole, patience=3) == Validated(last=10, best=4)
    log = capsys.readouterr().err
    assert f"nothing to do: {reason}, and the parameters come from the checkpoint of step 10" in log
    assert log.endswith("to train longer, raise fit.patience\n")
    assert validate(rewards, whole, patience=5) == Validated(last=20, best=20)

    # The metric that decides is the first of a report.
    first, *_ = (whole / "run" / "metrics.jsonl").read_text().splitlines()
    assert list(json.loads(first)) == ["kind", "step", "reward", "loss"]


def test_the_best_metric_of_the_settings(tmp_path):
    def values(step):
        return {"reward": -step, "loss": -step, "error": abs(step - 3.5)}

    for metric, best in (
        (None, 2),
        ("loss", 6),
        ("reward", 2),
        ("error:min", 4),
        ("error:max", 6),
    ):
        folder = tmp_path / f"{metric}"
        found = validate(values, folder, steps=6, best_metric=metric)
        assert found == Validated(last=6, best=best)

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
        if step == 6:
            return {"loss": 0}
        return {"reward": 1 / (step - 4)}

    assert validate(later, tmp_path, steps=8) == Validated(last=8, best=8)
    log = capsys.readouterr().err
    failed = "validation failed, the checkpoint has no score"
    assert f"step 4/8  {failed}: ZeroDivisionError" in log
    assert "in later\n" in log
    assert f"step 6/8  {failed}: UserError: expected 'reward'" in log


def test_injected_hyperparameters_stay_and_are_named(tmp_path, capsys):
    def sgd(rate):
        schedule = optax.linear_schedule(1.0, 0.5, 100)
        make_sgd = optax.inject_hyperparams(optax.sgd)
        sgd = make_sgd(learning_rate=rate, momentum=schedule)
        return optax.chain(optax.clip(1.0), sgd)

    for steps, rate, lines in ((4, 0.25, 0), (8, 0.125, 1), (12, 0.25, 0)):
        state = train(Softmax(), tmp_path, sgd(rate), steps=steps)

        hyperparameters = state.opt_state[1].hyperparams
        assert float(hyperparameters["learning_rate"]) == 0.25
        log = capsys.readouterr().err
        assert log.count("inject_hyperparams: learning_rate stays") == lines


def test_a_rule_per_layer_trains_and_resumes_on_another_mesh(tmp_path):
    def init(self, key):
        return {
            "layers": {
                "w": jax.random.normal(key, (2, 4, 4)),
                "b": jax.random.normal(key, (2, 4)),
            },
            "out": {"w": jax.random.normal(key, (4, 3))},
        }

    def loss(self, params, batch, randomness):
        x = batch["x"]
        layers = params["layers"]
        for w, b in zip(layers["w"], layers["b"], strict=True):
            x = jnp.tanh(x @ w + b)
        return Softmax().loss(params["out"], batch | {"x": x}, randomness)

    task = changed(init=init, loss=loss)
    mask = {"layers": True, "out": {"w": False}}  # a tree that ends at the stack
    lamb = jaxformer.per_layer(optax.lamb(0.1))
    rule = optax.masked(lamb, mask)
    optimizer = optax.chain(rule, optax.clip(0.1))
    whole = train(task, tmp_path / "whole", optimizer, steps=8)
    train(task, tmp_path / "two", optimizer)
    other_mesh = mesh_of(4, data=2, fsdp=2)
    resumed = train(task, tmp_path / "two", optimizer, mesh=other_mesh, steps=8)

    compare = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(compare, resumed, whole)
    state_of_lamb = whole.opt_state[0].inner_state
    momentum = state_of_lamb[0].mu
    last_layer = momentum["layers"][1]
    assert last_layer["w"].shape == (4, 4)
