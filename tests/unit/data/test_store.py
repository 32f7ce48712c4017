import concurrent.futures
import hashlib
import pathlib

import numpy as np
import pytest

from jaxformer.config import DataConfig
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.file_corpora import TextCorpus
from jaxformer.data.findings import EMPTY, EQUAL, LONG, Finding
from jaxformer.data.loader import load_batches
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.data.plan import make_plan
from jaxformer.data.store import build_store
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import UserError

from ...runs import write_pairs

PAIRS = list(NumeralsCorpus().pairs("held_out"))


class HeldOut:
    target_symbols = False

    def pairs(self, split):
        return iter(PAIRS)

    def fingerprint(self, split):
        return f"fingerprint of {split}"


CORPUS = HeldOut()


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer((side for pair in PAIRS for side in pair), 320)


def test_holds_the_tokens_of_every_pair(tokenizer, tmp_path):
    store = build_store(CORPUS, "held_out", tokenizer, 64, tmp_path)
    expected = [tuple(map(tokenizer.encode, pair)) for pair in PAIRS]
    found = [tuple(side.tolist() for side in store[i]) for i in range(len(store))]
    assert found == expected
    assert store.src_lengths.tolist() == [len(src) + 1 for src, _ in expected]
    assert store.tgt_lengths.tolist() == [len(tgt) + 1 for _, tgt in expected]
    assert store.numbers.tolist() == list(range(500))
    assert store.findings == {}


def test_skips_and_counts_long_and_empty_pairs(tokenizer, tmp_path):
    lengths = [max(len(tokenizer.encode(side)) + 1 for side in pair) for pair in PAIRS]
    limit = int(np.median(lengths))
    write_pairs(tmp_path / "a", [*PAIRS, (" ", "eins"), ("one", "")])
    corpus = TextCorpus("en", "de")
    for _ in range(2):  # the second store is from the cache
        store = build_store(corpus, str(tmp_path / "a"), tokenizer, limit, tmp_path / "cache")
        assert len(store) == sum(length <= limit for length in lengths)
        kept = [number for number, length in enumerate(lengths) if length <= limit]
        assert store.numbers.tolist() == kept
        assert store.findings[LONG].count == len(PAIRS) - len(store) > 10
        long = [number for number, length in enumerate(lengths) if length > limit]
        assert [number for number, _ in store.findings[LONG].first] == long[:10]
        assert store.findings[EMPTY] == Finding(2, [[500, 0], [501, 1]])


def test_finds_unusual_pairs_and_keeps_them(tokenizer, tmp_path):
    pairs = [
        ("one", "eins"),
        ("two\u00a0", "zwei\u2028\u3000"),
        ("OK", "OK"),
        ("\ufeff\u200bthree", "dr\x07ei\u200f\ufffd"),
        ("\u3000\u200b", "leer"),
        ("ESC \x1b[1m", "a\u0085b"),
        ("four\t", "a\rb"),
        ("five", "\u202efünf"),
    ]
    write_pairs(tmp_path / "a", [("", ""), *pairs])
    corpus, split = TextCorpus("en", "de"), str(tmp_path / "a")
    store = build_store(corpus, split, tokenizer, 64, tmp_path / "cache")
    assert store.numbers.tolist() == [1, 2, 3, 4, 6, 7, 8]
    assert store.findings == {
        EMPTY: Finding(2, [[0, 0], [5, 0]]),
        "tabs or foreign blanks": Finding(2, [[2, 0], [7, 0]]),
        "line separators": Finding(3, [[2, 1], [6, 1], [7, 1]]),
        EQUAL: Finding(1, [[3, 0]]),
        "invisible characters": Finding(1, [[4, 0]]),
        "control characters": Finding(2, [[4, 1], [6, 0]]),
        "directional marks": Finding(2, [[4, 1], [8, 1]]),
        "replacement characters": Finding(1, [[4, 1]]),
    }
    assert corpus.place(split, 4, 1) == f"{split}.de:5"


# Shapes and content of two epochs of batches, as they were before findings were added to stores.
BATCHES = {
    "buckets": "e84ac4eb55d6cfdc6eab74d50b07ba876633632e71f8ea0ff802f190940a5fcf",
    "packing": "ce2122673b585d808e363e75c24f7a24a6d1c23d6bdba21a4216bf3262318e13",
}


@pytest.mark.parametrize("batching", BATCHES)
def test_batches_of_a_corpus_never_change(batching, tmp_path):
    """Otherwise runs of earlier versions could not be resumed exactly."""
    run = pathlib.Path(__file__).parents[2] / "fixtures" / "workdir_8c81d1e" / "run"
    tokenizer = Tokenizer.load(run / "tokenizer.model")
    store = build_store(NumeralsCorpus(), "held_out", tokenizer, 48, tmp_path)
    config = DataConfig(batching=batching, tokens_per_batch=1024, max_length=48)
    plan = make_plan(store, config, seed=7)
    digest = hashlib.sha256()
    for batch in load_batches(store, plan, stop=2 * plan.batches_per_epoch):
        for leaf in batch:
            digest.update(repr(leaf.shape).encode() + leaf.tobytes())
    assert digest.hexdigest() == BATCHES[batching]


def test_errors_leave_no_files(tokenizer, tmp_path):
    message = r"held_out: no sentence pair is left: 500 have .* 2 tokens, .*held_out: pair 1; rais"
    with pytest.raises(UserError, match=message):
        build_store(CORPUS, "held_out", tokenizer, 2, tmp_path / "cache")
    (tmp_path / "a.en").write_bytes(b"one\n" * 11_000 + b"\xff\n")  # After the first tokens.
    (tmp_path / "a.de").write_bytes(b"eins\n" * 11_001)
    with pytest.raises(UserError, match=r"a\.en:11001: not UTF-8"):
        build_store(TextCorpus("en", "de"), str(tmp_path / "a"), tokenizer, 64, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_damaged_stores_are_rebuilt(tokenizer, tmp_path):
    def build():
        return build_store(CORPUS, "held_out", tokenizer, 64, tmp_path)

    lengths = build().src_lengths.tolist()
    (folder,) = tmp_path.iterdir()
    files = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(files) == 4
    for path, whole in files.items():
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 0x80]) + whole[middle + 1 :]
        for damaged in (b"", whole[:middle], flipped):
            path.write_bytes(damaged)
            assert build().src_lengths.tolist() == lengths
            assert {p: p.read_bytes() for p in folder.iterdir()} == files
        path.unlink()
        assert build().src_lengths.tolist() == lengths
    assert list(tmp_path.iterdir()) == [folder]


def test_an_undamaged_store_is_not_rebuilt_and_threads_can_share_it(tokenizer, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        builds = [
            pool.submit(build_store, CORPUS, "held_out", tokenizer, 64, tmp_path) for _ in range(8)
        ]
        lengths = [build.result().src_lengths.tolist() for build in builds]
    assert lengths == [lengths[0]] * 8
    assert len(list(tmp_path.iterdir())) == 1

    class Unreadable(HeldOut):
        def pairs(self, split):
            raise AssertionError("read again")

    assert len(build_store(Unreadable(), "held_out", tokenizer, 64, tmp_path)) == 500
    with pytest.raises(AssertionError, match="read again"):
        build_store(Unreadable(), "held_out", tokenizer, 63, tmp_path)
