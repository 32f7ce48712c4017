"""Batches of arrays: every row once an epoch, the same means on any number of devices."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import BatchShards, MeshConfig, UserError, epochs, evaluate_arrays, make_mesh


def numbers(count):
    return {"x": np.arange(count), "y": -np.arange(count)}


def take(count, **options):
    batches = epochs(numbers(10), 4, 7, **options)
    return list(itertools.islice(batches, count))


def test_every_row_occurs_once_in_every_epoch():
    batches = take(10)

    # Ten batches of four rows are four epochs of ten.
    rows = np.concatenate([batch["x"] for batch in batches])
    orders = set()
    for order in rows.reshape(4, 10).tolist():
        assert sorted(order) == list(range(10))
        orders.add(tuple(order))
    assert len(orders) == 4  # in another order each time

    for batch in batches:
        np.testing.assert_array_equal(batch["y"], -batch["x"])
        assert batch["real"].all()

    resumed = take(3, start=7)
    for batch, again in zip(batches[7:], resumed, strict=True):
        np.testing.assert_array_equal(batch["x"], again["x"])


def test_shards_get_the_same_rows_and_repeated_ones():
    whole = take(3)
    padded = take(3, shards=BatchShards(6, range(6), 6))
    second = take(3, shards=BatchShards(6, [1], 2))

    is_real = [True, True, True, True, False, False]
    for one, all_shards, half in zip(whole, padded, second, strict=True):
        a, b, c, d = one["x"].tolist()
        assert all_shards["x"].tolist() == [a, b, c, d, a, b]
        assert all_shards["real"].tolist() == is_real
        assert half["x"].tolist() == [d, a, b]


@pytest.mark.parametrize("devices", [1, 8])
def test_means_over_all_rows(devices):
    rng = np.random.default_rng(0)
    x = rng.normal(size=13).astype(np.float32)

    def loss(params, batch, randomness):
        assert randomness is None
        x = batch["x"]
        real = batch["real"]
        squares = jnp.where(real, (x - params) ** 2, 0)

        # A metric with a count of its own: the share of positive numbers that are above 1.
        positive = real & (x > 0)
        large = positive & (x > 1)
        return {
            "loss": squares.sum(),
            "count": real.sum(),
            "share": (large.sum(), positive.sum()),
        }

    expected = {
        "loss": ((x - 0.5) ** 2).mean(),
        "share": (x > 1).sum() / (x > 0).sum(),
    }

    params = jnp.float32(0.5)
    mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
    for options in ({"mesh": mesh}, {}):
        values = evaluate_arrays(
            loss,
            params,
            {"x": x},
            5,
            **options,
        )
        assert values == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("arrays", "rows", "message"),
    [
        (np.zeros(3), 2, "expected arrays by name"),
        ({}, 2, "expected arrays by name"),
        ({"real": np.zeros(3)}, 2, 'none of them named "real"'),
        ({"x": np.zeros(3), "y": np.zeros(2)}, 2, "at least one: got x with 3, y with 2"),
        ({"x": np.zeros((0, 4))}, 2, "at least one: got x with 0"),
        ({"x": 3}, 2, "at least one: got x with 0"),
        ({"x": np.zeros(3)}, 0, "at least one row in a batch: got rows=0"),
    ],
)
def test_other_arrays_are_refused(arrays, rows, message):
    with pytest.raises(UserError, match=message):
        epochs(arrays, rows, 0)
