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
    return build_store(CORPUS, "held_out", tokenizer, 64, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module", params=["buckets", "packing"])
def plan(request, store):
    lengths = (store.src_lengths, store.tgt_lengths)
    if request.param == "packing":
        return packing_plan(*lengths, tokens_per_batch=640, row_length=64, seed=1)
    return bucket_plan(*lengths, tokens_per_batch=640, seed=1)


def assert_equal(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_batches_follow_the_plan_and_resume_anywhere(store, plan):
    stop = plan.batches_per_epoch + 3
    batches = list(load_batches(store, plan, stop=stop))
    assert len(batches) == stop
    for n, batch in enumerate(batches):
        shape, rows = plan.rows(n)
        assert_equal(batch, make_batch([[store[i] for i in row] for row in rows], shape))
    resumed = load_batches(store, plan, start=stop - 5, stop=stop)
    for one, other in zip(batches[-5:], resumed, strict=True):
        assert_equal(one, other)


SHARDS = [[[0]], [[0], [1]], [[0], [1], [2]], [[0], [1], [2], [3]], [[0, 3], [1, 2]]]


@pytest.mark.parametrize("parts", SHARDS, ids=str)
def test_shards_of_processes_make_the_whole(store, plan, parts, monkeypatch):
    order = list(itertools.chain(*parts))
    options = {"stop": plan.batches_per_epoch, "row_multiple": 12}
    whole = list(load_batches(store, plan, **options))
    seen, read = [], TokenStore.__getitem__
    monkeypatch.setattr(TokenStore, "__getitem__", lambda s, i: (seen.append(i), read(s, i))[1])
    loaders = [
        load_batches(store, plan, **options, local_shards=part, shard_count=len(order))
        for part in parts
    ]
    shapes = set()
    for batch, *found in zip(whole, *loaders, strict=True):
        for array, *own in zip(batch, *found, strict=True):
            shards = [s for a, part in zip(own, parts, strict=True) for s in np.split(a, len(part))]
            in_order = [shards[place] for place in np.argsort(order)]
            np.testing.assert_array_equal(array, np.concatenate(in_order))
        assert len({part.src.shape for part in found}) == 1
        shapes.add((*batch.src.shape, batch.tgt_in.shape[1]))
    assert shapes == {(round_up(rows, 12), src, tgt) for rows, src, tgt in plan.shapes}
    assert all(rows % 12 == 0 for rows, _, _ in shapes)
    # Each process reads only its own rows: every example is read once in an epoch.
    assert sorted(seen) == list(range(len(store)))
