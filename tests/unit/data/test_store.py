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


def build(corpus, split, tokenizer, cache, max_length=64):
    return build_store(corpus, split, tokenizer, max_length=max_length, cache=cache)


def test_holds_the_tokens_of_every_pair(tokenizer, tmp_path):
    store = build(CORPUS, "held_out", tokenizer, cache=tmp_path)

    assert len(store) == len(PAIRS)
    for number, (english, german) in enumerate(PAIRS):
        src, tgt = store[number]
        assert src.tolist() == tokenizer.encode(english)
        assert tgt.tolist() == tokenizer.encode(german)

        # With the end of the sentence.
        assert store.src_lengths[number] == len(src) + 1
        assert store.tgt_lengths[number] == len(tgt) + 1

    assert store.numbers.tolist() == list(range(500))
    assert store.findings == {}


def test_skips_and_counts_long_and_empty_pairs(tokenizer, tmp_path):
    lengths = []
    for english, german in PAIRS:
        source = tokenizer.encode(english)
        target = tokenizer.encode(german)
        longest = max(len(source), len(target))
        lengths.append(longest + 1)
    limit = int(np.median(lengths))
    kept = [number for number, length in enumerate(lengths) if length <= limit]
    long = [number for number, length in enumerate(lengths) if length > limit]

    split = str(tmp_path / "a")
    write_pairs(tmp_path / "a", [*PAIRS, (" ", "eins"), ("one", "")])
    for _ in range(2):  # the second store is from the cache
        store = build(
            TextCorpus("en", "de"),
            split,
            tokenizer,
            cache=tmp_path / "cache",
            max_length=limit,
        )

        assert len(store) == len(kept)
        assert store.numbers.tolist() == kept
        assert store.findings[EMPTY] == Finding(2, [[500, 0], [501, 1]])

        assert len(long) > 10
        assert store.findings[LONG].count == len(long)
        first = [number for number, _ in store.findings[LONG].first]
        assert first == long[:10]


def test_finds_unusual_pairs_and_keeps_them(tokenizer, tmp_path):
    pairs = [
        ("", ""),
        ("one", "eins"),
        ("two\u00a0", "zwei\u2028\u3000"),
        ("OK", "OK"),
        ("\ufeff\u200bthree", "dr\x07ei\u200f\ufffd"),
        ("\u3000\u200b", "leer"),
        ("ESC \x1b[1m", "a\u0085b"),
        ("four\t", "a\rb"),
        ("five", "\u202efünf"),
    ]
    split = str(tmp_path / "a")
    write_pairs(tmp_path / "a", pairs)

    corpus = TextCorpus("en", "de")
    store = build(corpus, split, tokenizer, cache=tmp_path / "cache")

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
    store = build(NumeralsCorpus(), "held_out", tokenizer, cache=tmp_path, max_length=48)
    config = DataConfig(batching=batching, tokens_per_batch=1024, max_length=48)
    plan = make_plan(store, config, seed=7)

    digest = hashlib.sha256()
    for batch in load_batches(store, plan, stop=2 * plan.batches_per_epoch):
        for leaf in batch:
            digest.update(repr(leaf.shape).encode())
            digest.update(leaf.tobytes())

    assert digest.hexdigest() == BATCHES[batching]


def test_errors_leave_no_files(tokenizer, tmp_path):
    cache = tmp_path / "cache"
    message = r"held_out: no sentence pair is left: 500 have .* 2 tokens, .*held_out: pair 1; rais"
    with pytest.raises(UserError, match=message):
        build(CORPUS, "held_out", tokenizer, cache=cache, max_length=2)

    (tmp_path / "a.en").write_bytes(b"one\n" * 11_000 + b"\xff\n")  # After the first tokens.
    (tmp_path / "a.de").write_bytes(b"eins\n" * 11_001)
    with pytest.raises(UserError, match=r"a\.en:11001: not UTF-8"):
        build(TextCorpus("en", "de"), str(tmp_path / "a"), tokenizer, cache=cache)

    assert not list(cache.iterdir())


def contents_of(folder):
    return {path: path.read_bytes() for path in folder.iterdir()}


def test_damaged_stores_are_rebuilt(tokenizer, tmp_path):
    def lengths_of_store():
        return build(CORPUS, "held_out", tokenizer, cache=tmp_path).src_lengths.tolist()

    lengths = lengths_of_store()
    (folder,) = tmp_path.iterdir()
    files = contents_of(folder)
    assert len(files) == 4

    for path, whole in files.items():
        middle = len(whole) // 2
        flipped = bytearray(whole)
        flipped[middle] ^= 0x80
        for damaged in (b"", whole[:middle], bytes(flipped)):
            path.write_bytes(damaged)
            assert lengths_of_store() == lengths
            assert contents_of(folder) == files

        path.unlink()
        assert lengths_of_store() == lengths

    assert list(tmp_path.iterdir()) == [folder]


class Unreadable(HeldOut):
    def pairs(self, split):
        raise AssertionError("read again")


def test_an_undamaged_store_is_not_rebuilt_and_threads_can_share_it(tokenizer, tmp_path):
    def lengths_of_store(_):
        return build(CORPUS, "held_out", tokenizer, cache=tmp_path).src_lengths.tolist()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        lengths = list(pool.map(lengths_of_store, range(8)))
    assert lengths == [lengths[0]] * 8
    assert len(list(tmp_path.iterdir())) == 1

    assert len(build(Unreadable(), "held_out", tokenizer, cache=tmp_path)) == 500
    with pytest.raises(AssertionError, match="read again"):
        build(Unreadable(), "held_out", tokenizer, cache=tmp_path, max_length=63)
