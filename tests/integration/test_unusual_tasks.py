"""Tasks and optimizers that researchers write: each trains, or an error names what is expected."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxformer
from jaxformer import FitConfig, Task, UserError, fit


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


def train(task, folder, optimizer=None, mesh=None, **settings):
    """Trains on one device."""
    intervals = dict.fromkeys(("log_every", "checkpoint_every", "eval_every"), 4)
    mesh = mesh or jaxformer.make_mesh(devices=jax.devices()[:1])
    config = FitConfig(**{"steps": 4, **intervals, **settings})
    return fit(task, optimizer or optax.sgd(0.5), folder / "run", config, mesh=mesh)


def changed(**functions):
    """Returns a task with other methods."""
    return type("Changed", (Softmax,), functions)()


def other_batch(change):
    return changed(batch=lambda self, number: change(Softmax().batch(number)))


def other_init(**arrays):
    return changed(init=lambda self, key: Softmax().init(key) | arrays)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            other_batch(lambda b: {k: v.tolist() for k, v in b.items()}),
            r"batch\['x'\]\[0\]\[0\]: expected an array .* float; make NumPy arrays of lists",
        ),
        (
            other_batch(lambda b: b | {"t": np.float32(1)}),
            r"batch\['t'\]: .* got a scalar; repeat it for each row",
        ),
        (
            other_batch(lambda b: b | {"id": np.array(["a"] * 8)}),
            r"batch\['id'\]: .* got dtype <U1; keep texts and objects out",
        ),
        (
            other_batch(lambda b: {k: v[:0] for k, v in b.items()}),
            r"batch\['x'\]: .* got no rows, shape \(0, 4\)",
        ),
        (
            other_init(n=np.zeros((), np.int32)),
            "expected parameters of floating-point numbers, .*: got n of dtype int32",
        ),
        (
            other_init(mask=np.array([0, -np.inf], np.float32)),
            "expected finite parameters: mask holds NaN or Inf before the first step",
        ),
    ],
)
def test_batches_and_parameters_that_cannot_be_trained(task, message, tmp_path):
    with pytest.raises(UserError, match=message):
        train(task, tmp_path)


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
    mesh = jaxformer.make_mesh(devices=jax.devices()[:2])
    found = train(task, tmp_path, optimizer, mesh)
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


@pytest.mark.ci
def test_fit_works_without_jit(tmp_path):
    with jax.disable_jit():
        state = train(Softmax(), tmp_path, steps=1)
    expected = train(Softmax(), tmp_path / "jitted", steps=1)
    np.testing.assert_allclose(state.params["w"], expected.params["w"], rtol=1e-5)
