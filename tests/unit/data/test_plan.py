import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.config import DataConfig
from jaxformer.data.plan import bucket_plan, make_plan, packing_plan, sequential_plan
from jaxformer.data.store import TokenStore
from jaxformer.errors import UserError

from ...profiles import by_profile

LENGTH = st.integers(2, 30)
PAIRS = st.lists(st.tuples(LENGTH, LENGTH), min_size=1, max_size=120)
KINDS = st.sampled_from(["buckets", "packing", "sequential"])
FEW = settings(max_examples=by_profile(40, nightly=100))


def plan_for(pairs, kind, tokens, seed=0):
    src, tgt = np.array(pairs, np.int32).T
    if kind == "packing":
        return packing_plan(
            src,
            tgt,
            tokens_per_batch=tokens,
            row_length=30,
            seed=seed,
        )
    if kind == "buckets":
        return bucket_plan(src, tgt, tokens_per_batch=tokens, seed=seed)
    return sequential_plan(src, tgt, tokens_per_batch=tokens)


def ids(batch):
    return list(itertools.chain.from_iterable(batch))


def numbers_of(plan, epoch):
    """Returns the numbers of the batches of an epoch."""
    first = epoch * plan.batches_per_epoch
    end = first + plan.batches_per_epoch
    return range(first, end)


def epoch_of(plan, epoch):
    batches = [plan.rows(n) for n in numbers_of(plan, epoch)]
    return [rows for _, rows in batches]


def size_of(row, pairs):
    """Returns the source and the target tokens of a row."""
    src = sum(pairs[i][0] for i in row)
    tgt = sum(pairs[i][1] for i in row)
    return src, tgt


# Lengths from 2 to 30, in many combinations.
MANY = [(2 + i % 29, 2 + i * 7 % 29) for i in range(300)]


@FEW
@given(PAIRS, KINDS, st.integers(30, 300))
def test_every_example_once_an_epoch_and_no_row_over_its_shape(pairs, kind, tokens):
    plan = plan_for(pairs, kind, tokens)
    assert len(plan.shapes) <= 12

    computed = 0
    for epoch in range(2):
        seen = []
        for n in numbers_of(plan, epoch):
            shape, rows = plan.rows(n)
            row_count, src_length, tgt_length = shape
            assert shape in plan.shapes
            assert 0 < len(rows) <= row_count
            assert row_count * max(src_length, tgt_length) <= tokens

            for row in rows:
                src, tgt = size_of(row, pairs)
                assert src <= src_length
                assert tgt <= tgt_length

            computed += row_count * (src_length + tgt_length)
            seen += ids(rows)
        assert sorted(seen) == list(range(len(pairs)))

    real = 2 * sum(map(sum, pairs))
    assert plan.efficiency == pytest.approx(real / computed)


@FEW
@given(PAIRS, KINDS, st.integers(0, 50), st.integers(-3, 3))
def test_batch_n_depends_only_on_n(pairs, kind, n, seed):
    walked = plan_for(pairs, kind, 60, seed=seed)
    for before in range(n):
        walked.rows(before)

    fresh = plan_for(pairs, kind, 60, seed=seed)
    assert fresh.rows(n) == walked.rows(n)


@pytest.mark.parametrize("kind", ["buckets", "packing"])
def test_epochs_and_seeds_change_the_composition_of_batches(kind):
    plan = plan_for(MANY, kind, 120)
    other_seed = plan_for(MANY, kind, 120, seed=1)
    epochs = [
        epoch_of(plan, 0),
        epoch_of(plan, 1),
        epoch_of(other_seed, 0),
    ]

    for one, other in itertools.combinations(epochs, 2):
        mates = {frozenset(ids(batch)) for batch in one}
        other_mates = {frozenset(ids(batch)) for batch in other}
        # Not only the order of the batches changes, but also their examples.
        assert len(mates & other_mates) < len(other) / 10


def store_of(pairs):
    src_lengths, tgt_lengths = np.array(pairs, np.int32).T
    store = mock.create_autospec(TokenStore, instance=True)
    store.src_lengths = src_lengths
    store.tgt_lengths = tgt_lengths
    store.__len__.return_value = len(pairs)
    return store


@pytest.mark.parametrize("batching", ["buckets", "packing"])
def test_the_config_chooses_the_kind(batching):
    config = DataConfig(batching=batching, tokens_per_batch=120, max_length=30)
    plan = make_plan(store_of(MANY), config, seed=5)

    expected = plan_for(MANY, batching, 120, seed=5)
    assert epoch_of(plan, 0) == epoch_of(expected, 0)


@pytest.mark.parametrize("batching", ["buckets", "packing"])
def test_examples_may_be_repeated(batching):
    """In every epoch, batch n depends only on n, and no row exceeds its shape."""
    config = DataConfig(batching=batching, tokens_per_batch=120, max_length=30)
    times = np.arange(len(MANY)) % 3 + 1

    def repeated():
        return make_plan(store_of(MANY), config, seed=5, repetitions=times)

    walked = repeated()
    for epoch in range(2):
        batches = epoch_of(walked, epoch)
        seen = ids(map(ids, batches))
        np.testing.assert_array_equal(np.bincount(seen), times)

    for n in range(2 * walked.batches_per_epoch):
        shape, rows = walked.rows(n)
        if n % 10 == 0:
            assert repeated().rows(n) == (shape, rows)

        _, src_length, tgt_length = shape
        for row in rows:
            src, tgt = size_of(row, MANY)
            assert src <= src_length
            assert tgt <= tgt_length


def test_an_example_can_take_every_slot_of_its_class():
    plan = plan_for([(5, 5)] * 4, "buckets", 30)
    assert plan.batches_per_epoch == 1

    orders = set()
    for epoch in range(400):
        (batch,) = epoch_of(plan, epoch)
        orders.add(tuple(ids(batch)))
    assert len(orders) == 24  # all permutations: each is missed with probability 4e-8


def test_validation_keeps_its_order():
    plan = plan_for(MANY, "sequential", 120)
    assert epoch_of(plan, 0) == epoch_of(plan, 1)

    for batch in epoch_of(plan, 0):
        assert ids(batch) == sorted(ids(batch))


def test_pairs_that_do_not_fit():
    with pytest.raises(UserError, match="pairs of at most 30 tokens to pack: got 31"):
        plan_for([(3, 31)], "packing", 40)

    plan = plan_for([(30, 2)], "sequential", 20)
    assert plan.shapes == ((1, 30, 30),)
