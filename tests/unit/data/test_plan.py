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
        return packing_plan(src, tgt, tokens_per_batch=tokens, row_length=30, seed=seed)
    if kind == "buckets":
        return bucket_plan(src, tgt, tokens_per_batch=tokens, seed=seed)
    return sequential_plan(src, tgt, tokens_per_batch=tokens)


def ids(batch):
    return [i for row in batch for i in row]


def epoch_of(plan, epoch):
    first = epoch * plan.batches_per_epoch
    return [plan.rows(n)[1] for n in range(first, first + plan.batches_per_epoch)]


MANY = [(2 + i % 29, 2 + i * 7 % 29) for i in range(300)]


@FEW
@given(PAIRS, KINDS, st.integers(30, 300))
def test_every_example_once_an_epoch_and_no_row_over_its_shape(pairs, kind, tokens):
    plan = plan_for(pairs, kind, tokens)
    computed = 0
    for epoch in range(2):
        for n in range(epoch * plan.batches_per_epoch, (epoch + 1) * plan.batches_per_epoch):
            shape, rows = plan.rows(n)
            assert shape in plan.shapes
            assert 0 < len(rows) <= shape[0]
            assert shape[0] * max(shape[1:]) <= tokens
            for row in rows:
                assert sum(pairs[i][0] for i in row) <= shape[1]
                assert sum(pairs[i][1] for i in row) <= shape[2]
            computed += shape[0] * (shape[1] + shape[2])
        seen = [ids(batch) for batch in epoch_of(plan, epoch)]
        assert sorted(itertools.chain(*seen)) == list(range(len(pairs)))
    assert plan.efficiency == pytest.approx(2 * sum(map(sum, pairs)) / computed)
    assert len(plan.shapes) <= 12


@FEW
@given(PAIRS, KINDS, st.integers(0, 50), st.integers(-3, 3))
def test_batch_n_depends_only_on_n(pairs, kind, n, seed):
    walked = plan_for(pairs, kind, 60, seed)
    for before in range(n):
        walked.rows(before)
    assert plan_for(pairs, kind, 60, seed).rows(n) == walked.rows(n)


@pytest.mark.parametrize("kind", ["buckets", "packing"])
def test_epochs_and_seeds_change_the_composition_of_batches(kind):
    plan = plan_for(MANY, kind, 120)
    epochs = [epoch_of(plan, 0), epoch_of(plan, 1), epoch_of(plan_for(MANY, kind, 120, 1), 0)]
    for i, one in enumerate(epochs):
        for other in epochs[:i]:
            mates = [{frozenset(ids(batch)) for batch in epoch} for epoch in (one, other)]
            # Not only the order of the batches changes, but also their examples.
            assert len(mates[0] & mates[1]) < len(one) / 10


def store_of(pairs):
    store = mock.create_autospec(TokenStore, instance=True)
    store.src_lengths, store.tgt_lengths = np.array(pairs, np.int32).T
    store.__len__.return_value = len(pairs)
    return store


@pytest.mark.parametrize("batching", ["buckets", "packing"])
def test_the_config_chooses_the_kind_and_examples_may_be_repeated(batching):
    """In every epoch, batch n depends only on n, and no row exceeds its shape."""
    config = DataConfig(batching=batching, tokens_per_batch=120, max_length=30)
    plan = make_plan(store_of(MANY), config, seed=5)
    assert epoch_of(plan, 0) == epoch_of(plan_for(MANY, batching, 120, seed=5), 0)
    times = np.arange(len(MANY)) % 3 + 1

    def repeated():
        return make_plan(store_of(MANY), config, seed=5, repetitions=times)

    walked = repeated()
    for epoch in range(2):
        counts = np.bincount(list(itertools.chain(*map(ids, epoch_of(walked, epoch)))))
        np.testing.assert_array_equal(counts, times)
    for n in range(2 * walked.batches_per_epoch):
        shape, rows = walked.rows(n)
        if n % 10 == 0:
            assert (shape, rows) == repeated().rows(n)
        for side in (0, 1):
            assert max(sum(MANY[i][side] for i in row) for row in rows) <= shape[1 + side]


def test_an_example_can_take_every_slot_of_its_class():
    plan = plan_for([(5, 5)] * 4, "buckets", 30)
    assert plan.batches_per_epoch == 1
    orders = {tuple(ids(epoch_of(plan, e)[0])) for e in range(400)}
    assert len(orders) == 24  # all permutations: each is missed with probability 4e-8


def test_validation_keeps_its_order():
    plan = plan_for(MANY, "sequential", 120)
    assert epoch_of(plan, 0) == epoch_of(plan, 1)
    for batch in epoch_of(plan, 0):
        assert ids(batch) == sorted(ids(batch))


def test_pairs_that_do_not_fit():
    with pytest.raises(UserError, match="pairs of at most 30 tokens to pack: got 31"):
        plan_for([(3, 31)], "packing", 40)
    assert plan_for([(30, 2)], "sequential", 20).shapes == ((1, 30, 30),)
