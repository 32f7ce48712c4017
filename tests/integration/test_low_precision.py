"""Parameters in bfloat16 and float16: `fit` trains them as optax's own loop does, and resumes."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, PyTree

import jaxformer
from jaxformer import FitConfig, MeshConfig, Task, UserError, fit
from jaxformer.training.averaging import ema_params, with_ema


class Line(Task):
    """Regression with 128 inputs and outputs, in the given dtypes of its matrix and bias."""

    def __init__(self, matrix, bias, count):
        self.dtypes = (matrix, bias)
        self.count = count

    def init(self, key):
        matrix, bias = self.dtypes
        return {
            "w": jnp.full((128, 128), 0.1, matrix),
            "b": jnp.full(128, 0.1, bias),
        }

    def loss(self, params, batch, randomness):
        x = batch["x"]
        target = x[:, ::-1]
        w = params["w"].astype("float32")
        error = x @ w + params["b"] - target
        return {"loss": (error**2).sum(), "count": self.count(error)}

    def batches(self, start, shards):
        for number in itertools.count(start):
            yield shards.local(self.batch(number))

    def batch(self, number):
        rng = np.random.default_rng(number)
        return {"x": rng.normal(size=(8, 128)).astype(np.float32)}

    def identity(self):
        return {"data": "generated"}


def float_count(error):
    return jnp.ones_like(error).sum()


def low_count(error):
    return jnp.full((), error.size, jnp.bfloat16)  # exact, since it is a multiple of 128


def int_count(error):
    return error.size


def train(
    task,
    optimizer,
    folder,
    steps=4,
    devices=1,
    accumulation=1,
    evaluated=None,
):
    settings = FitConfig(
        steps=steps,
        gradient_accumulation=accumulation,
        log_every=2,
        checkpoint_every=2,
        eval_every=2,
    )
    mesh = jaxformer.make_mesh(MeshConfig(), jax.devices()[:devices])
    return fit(task, optimizer, folder, settings, mesh=mesh, evaluated=evaluated)


def train_plainly(task, optimizer, steps=4):
    """The loop of optax's documentation, without jaxformer."""

    def mean(params, batch):
        sums = task.loss(params, batch, None)
        return sums["loss"] / jnp.float32(sums["count"])

    @jax.jit
    def step(params, state, batch):
        gradients = jax.grad(mean)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    params = task.init(jax.random.key(0))
    state = optimizer.init(params)
    for number in range(steps):
        params, state = step(params, state, task.batch(number))
    return params, state


def dtypes(tree):
    return [leaf.dtype for leaf in jax.tree.leaves(tree)]


def assert_equal(found, expected):
    found = jax.device_get(found)
    expected = jax.device_get(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


class Case(NamedTuple):
    matrix: str
    bias: str
    count: Callable
    optimizer: optax.GradientTransformation
    devices: int = 1
    accumulation: int = 1


CASES = [
    Case("bfloat16", "bfloat16", float_count, optax.adam(0.01)),
    Case("float16", "float16", int_count, optax.sgd(1.0, momentum=0.9), devices=2),
    Case("bfloat16", "float32", low_count, optax.adafactor(0.01), accumulation=2),
    Case("float16", "bfloat16", float_count, optax.contrib.muon(0.01), devices=2, accumulation=2),
]


@pytest.mark.parametrize("case", CASES, ids=["adam", "sgd", "adafactor", "muon"])
def test_parameters_are_trained_as_by_optax_and_resume(case, tmp_path):
    task = Line(case.matrix, case.bias, case.count)
    optimizer = case.optimizer
    options = {"devices": case.devices, "accumulation": case.accumulation}
    expected, expected_state = train_plainly(task, optimizer)

    whole = train(task, optimizer, tmp_path / "whole", **options)

    assert int(whole.skipped) == 0
    assert dtypes(whole.params) == dtypes(expected)
    assert dtypes(whole.opt_state) == dtypes(expected_state)

    epsilons = [float(jnp.finfo(dtype).eps) for dtype in task.dtypes]
    eps = max(epsilons)
    for name, array in jax.device_get(whole.params).items():
        found = array.astype(np.float32)
        reference = np.asarray(expected[name], np.float32)
        # The mean, since Adam gives gradients that are almost 0 an update with any sign.
        error = np.abs(found - reference).mean()
        size = np.abs(reference).mean()
        assert error <= eps * size, name

    cut = tmp_path / "cut"
    train(task, optimizer, cut, steps=2, **options)
    resumed = train(task, optimizer, cut, **options)
    assert_equal(resumed, whole)


def test_an_optimizer_that_float16_makes_divide_by_0_is_explained(tmp_path):
    class Small(Line):
        def loss(self, params, batch, randomness):
            return {"loss": (params["w"] * 1e-4).sum(), "count": 1}

    message = (
        "last 10 steps, with parameters in float16, .*Adam's epsilon of 1e-8 become 0; let Task"
    )
    with pytest.raises(FloatingPointError, match=message):
        train(Small("float16", "float32", None), optax.adam(0.01), tmp_path, steps=10)


def test_gradients_are_summed_in_float32(tmp_path):
    """In float16, the sum over the rows of all micro-batches, 8 * 40000, would be infinite."""

    class Constant(Line):
        def loss(self, params, batch, randomness):
            rows = len(batch["x"])
            slope = jnp.float16(20_000 * rows)
            return {"loss": params["b"][0] * slope, "count": rows}

    task = Constant("float32", "float16", None)
    state = train(
        task,
        optax.sgd(2.0**-14),
        tmp_path / "run",
        steps=1,
        devices=2,
        accumulation=2,
    )

    assert int(state.skipped) == 0
    update = np.float16(2.0**-14) * np.float16(20_000)
    assert state.params["b"][0] == np.float16(0.1) - update


def test_an_average_of_bfloat16_parameters_is_kept_in_float32():
    """After 300 updates to 1 and 300 to 2; in bfloat16, it would stay at 1."""
    decay = 0.999
    values = np.repeat([1.0, 2.0], 300)
    optimizer = with_ema(optax.sgd(1.0), decay)
    params = {"w": jnp.ones(3, jnp.bfloat16)}

    def update(carry: Any, value: Array) -> tuple[Any, None]:
        params, state = carry
        gradients = {"w": params["w"] - value}
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), None

    @jax.jit
    def average(params: PyTree) -> PyTree:
        values_in_bfloat16 = jnp.asarray(values, jnp.bfloat16)
        first: Any = (params, optimizer.init(params))
        (last, state), _ = jax.lax.scan(update, first, values_in_bfloat16)
        return ema_params(state, last)

    found = average(params)["w"]

    ages = np.arange(len(values))[::-1]
    weights = decay**ages
    expected = (weights * values).sum() / weights.sum()
    assert found.dtype == jnp.bfloat16
    found = found.astype(np.float32)
    np.testing.assert_allclose(found, np.full(3, expected), rtol=2**-8)


def test_a_run_with_an_average_saves_it_in_bfloat16(tmp_path):
    task = Line("bfloat16", "bfloat16", float_count)
    optimizer = with_ema(optax.adam(0.01), 0.5)
    state = train(task, optimizer, tmp_path, evaluated=ema_params)

    saved = jaxformer.load_params(tmp_path, task)
    average = jax.device_get(state.opt_state.average)
    expected = jax.tree.map(lambda a: a.astype("bfloat16"), average)
    assert_equal(saved, expected)


def counting(before, after):
    """An optimizer whose state becomes another one."""

    def update(updates, state, params=None):
        return updates, after(state)

    return optax.GradientTransformation(lambda params: {"n": before}, update)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (
            counting(jnp.zeros((), jnp.int32), lambda state: {"n": state["n"] + 0.5}),
            r"expected n in its state to stay int32 of shape \(\), but an update makes it float32",
        ),
        (
            counting(jnp.zeros(2), lambda state: {"n": jnp.zeros((3, 2))}),
            r"stay float32 of shape \(2,\), but an update makes it float32 of shape \(3, 2\)",
        ),
        (
            counting(jnp.zeros(2), lambda state: {"m": state["n"]}),
            r"expected update to return parameters and a state with the structure .*'n'.*: got .*m",
        ),
        (
            optax.inject_hyperparams(optax.adam)(0.1),
            "expected inner_state/0/mu/w in its state to stay bfloat16 .* one dtype",
        ),
    ],
)
def test_states_that_change_are_refused_at_the_first_step(optimizer, message, tmp_path):
    with pytest.raises(UserError, match=f"^optimizer: .*{message}"):
        train(Line("bfloat16", "float32", int_count), optimizer, tmp_path)
