"""Averages of parameters, against their formulas: exact resume, checkpoints, validation, meshes."""

import jax
import numpy as np
import optax
import pytest

import jaxformer
from jaxformer import Checkpoints, UserError, ema_params, with_ema

from ..runs import Killed
from .test_user_task import SETTINGS, Bigrams, Notes, assert_close, assert_equal, cube, one_device

DECAY = 0.7
EMA = with_ema(optax.adam(0.1), DECAY)
SCHEDULE_FREE = optax.contrib.schedule_free_sgd(0.3)


class Skipping(Bigrams):
    """The update of step 3 is not finite."""

    def batch(self, number):
        batch = super().batch(number)
        if number == 2:
            batch["weights"] = batch["weights"] / np.nan
        return batch


def run(folder, optimizer, evaluated, mesh=None, kill=0):
    """Returns the final state, the states after all steps, and the values of the validations."""
    states = []
    notes = Notes()

    def hook(step, state, sums):
        states.append(jax.device_get(state))
        if step == kill:
            raise Killed

    state = jaxformer.fit(
        Skipping(),
        optimizer,
        folder,
        settings=jaxformer.FitConfig(**SETTINGS),
        mesh=mesh or one_device(),
        hooks=[hook],
        writers=[notes],
        evaluated=evaluated,
    )
    losses = [values["loss"] for _, kind, values in notes.reports if kind == "valid"]
    return jax.device_get(state), states, losses


def kept(folder, step=None):
    like = jax.eval_shape(Skipping.init, jax.random.key(0))
    with Checkpoints(folder / "checkpoints") as checkpoints:
        restored = checkpoints.restore_params(like, step=step)
    return jax.device_get(restored).params


def taken(states):
    """Returns the states after all steps but the skipped one."""
    return [state for number, state in enumerate(states) if number != 2]


def test_the_exponential_average_is_kept_and_validated(tmp_path):
    state, states, values = run(tmp_path, EMA, ema_params)
    assert state.skipped == 1

    # The mean over steps, with weights decay^age that sum to one.
    states = taken(states)
    ages = np.arange(len(states))[::-1]
    powers = DECAY**ages
    weights = powers / powers.sum()
    for name, found in kept(tmp_path).items():
        params = [np.asarray(each.params[name], np.float64) for each in states]
        expected = np.tensordot(weights, np.stack(params), 1)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    task = Skipping()
    for step, value in zip((4, 8, 12), values, strict=True):
        params = kept(tmp_path, step)
        found = task.evaluate(params, one_device(), lambda: None)
        assert value == pytest.approx(found["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "evaluated"),
    [
        (EMA, ema_params),
        (SCHEDULE_FREE, optax.contrib.schedule_free_eval_params),
    ],
    ids=["ema", "schedule_free"],
)
def test_runs_with_an_average_resume_exactly_on_any_mesh(tmp_path, optimizer, evaluated):
    whole, _, values = run(tmp_path / "whole", optimizer, evaluated)

    with pytest.raises(Killed):
        run(tmp_path / "killed", optimizer, evaluated, kill=6)
    resumed, _, _ = run(tmp_path / "killed", optimizer, evaluated)
    assert_equal(resumed, whole)
    assert_equal(kept(tmp_path / "killed"), kept(tmp_path / "whole"))

    many, _, found = run(tmp_path / "cube", optimizer, evaluated, mesh=cube())
    assert_close(many, whole)
    np.testing.assert_allclose(found, values, rtol=1e-4)


def test_schedule_free_keeps_the_mean_of_its_iterates(tmp_path):
    evaluated = optax.contrib.schedule_free_eval_params
    _, states, _ = run(tmp_path, SCHEDULE_FREE, evaluated)
    iterates = [state.opt_state.z for state in taken(states)]

    params = kept(tmp_path)
    for name, found in params.items():
        of_steps = [z[name] for z in iterates]
        expected = np.mean(of_steps, axis=0)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    trained = states[-1].params
    difference = np.abs(params["prior"] - trained["prior"])
    assert difference.max() > 1e-3


def test_mistakes_are_explained(tmp_path):
    with pytest.raises(UserError, match="with_ema: decay must be between 0 and 1: got 1"):
        with_ema(optax.sgd(1.0), 1)

    def only_prior(state, params):
        return {"prior": params["prior"]}

    message = r"evaluated: expected .*: got table of none, expected float32\[32,32\]"
    with pytest.raises(UserError, match=message):
        run(tmp_path, EMA, only_prior)
