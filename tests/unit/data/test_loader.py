import itertools

import numpy as np
import pytest

from jaxformer.data.batch import make_batch
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.loader import load_batches, round_up
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.data.plan import bucket_plan, packing_plan
from jaxformer.data.store import TokenStore, build_store

CORPUS = NumeralsCorpus()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    pairs = CORPUS.pairs("held_out")
    tokenizer = train_tokenizer(itertools.chain.from_iterable(pairs), 320)
    return build_store(
        CORPUS,
        "held_out",
        tokenizer,
        max_length=64,
        cache=tmp_path_factory.mktemp("cache"),
    )


@pytest.fixture(scope="module", params=["buckets", "packing"])
def plan(request, store):
    if request.param == "packing":
        return packing_plan(
            store.src_lengths,
            store.tgt_lengths,
            tokens_per_batch=640,
            row_length=64,
            seed=1,
        )
    return bucket_plan(store.src_lengths, store.tgt_lengths, tokens_per_batch=640, seed=1)


def batch_of_plan(store, plan, n):
    shape, rows = plan.rows(n)
    pairs = []
    for row in rows:
        pairs.append([store[i] for i in row])
    return make_batch(pairs, shape)


def assert_equal(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_batches_follow_the_plan_and_resume_anywhere(store, plan):
    stop = plan.batches_per_epoch + 3
    batches = list(load_batches(store, plan, stop=stop))

    assert len(batches) == stop
    for n, batch in enumerate(batches):
        assert_equal(batch, batch_of_plan(store, plan, n))

    resumed = load_batches(store, plan, start=stop - 5, stop=stop)
    for one, other in zip(batches[-5:], resumed, strict=True):
        assert_equal(one, other)


# The shards of each process.
SHARDS = [
    [[0]],
    [[0], [1]],
    [[0], [1], [2]],
    [[0], [1], [2], [3]],
    [[0, 3], [1, 2]],
]


def in_order_of_shards(arrays, parts):
    """Returns the global array, of the arrays of each process and its shards."""
    shards = {}
    for array, part in zip(arrays, parts, strict=True):
        rows = np.split(array, len(part))
        shards |= dict(zip(part, rows, strict=True))
    return np.concatenate([shards[number] for number in sorted(shards)])


@pytest.mark.parametrize("parts", SHARDS, ids=str)
def test_shards_of_processes_make_the_whole(store, plan, parts, monkeypatch):
    shard_count = sum(map(len, parts))
    stop = plan.batches_per_epoch
    whole = list(load_batches(store, plan, stop=stop, row_multiple=12))

    seen = []
    read = TokenStore.__getitem__

    def read_and_remember(self, index):
        seen.append(index)
        return read(self, index)

    monkeypatch.setattr(TokenStore, "__getitem__", read_and_remember)
    loaders = [
        load_batches(
            store,
            plan,
            stop=stop,
            row_multiple=12,
            local_shards=part,
            shard_count=shard_count,
        )
        for part in parts
    ]

    shapes = set()
    for batch, *found in zip(whole, *loaders, strict=True):
        for array, *own in zip(batch, *found, strict=True):
            np.testing.assert_array_equal(array, in_order_of_shards(own, parts))
        assert len({part.src.shape for part in found}) == 1
        shapes.add((*batch.src.shape, batch.tgt_in.shape[1]))

    assert shapes == {(round_up(rows, 12), src, tgt) for rows, src, tgt in plan.shapes}
    assert all(rows % 12 == 0 for rows, _, _ in shapes)

    # Each process reads only its own rows: every example is read once in an epoch.
    assert sorted(seen) == list(range(len(store)))
