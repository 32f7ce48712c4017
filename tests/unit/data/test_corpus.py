"""Several corpora in one split: a mixture."""

import hashlib

import numpy as np
import pytest

from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.corpus import VerifiedCorpus, parse_mixture
from jaxformer.data.file_corpora import TextCorpus
from jaxformer.data.store import build_store
from jaxformer.errors import UserError

SPLIT = "news:1,captions:3"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two corpora, with an empty line."""
    monkeypatch.chdir(tmp_path)
    for name, size in (("news", 5), ("captions", 3)):
        for language in ("en", "de"):
            lines = [f"{name} {language} {number}\n" for number in range(size)]
            (tmp_path / f"{name}.{language}").write_text("".join(lines))

    (tmp_path / "captions.de").write_text("a\n\nb\n")
    return tmp_path


@pytest.fixture
def mixed(folder):
    return VerifiedCorpus(TextCorpus("en", "de"))


def test_a_mixture_is_its_corpora_in_turn(mixed):
    plain = TextCorpus("en", "de")
    expected = [*plain.pairs("news"), *plain.pairs("captions")]
    assert list(mixed.pairs(SPLIT)) == expected

    prints = f"{plain.fingerprint('news')} {plain.fingerprint('captions')}"
    assert mixed.fingerprint(SPLIT) == hashlib.sha256(prints.encode()).hexdigest()
    assert mixed.fingerprint("news:2,captions:2") == mixed.fingerprint(SPLIT)
    assert mixed.fingerprint("captions:1,news:3") != mixed.fingerprint(SPLIT)


def test_places_and_notes_are_of_the_files(mixed):
    places = [mixed.place(SPLIT, number, 1) for number in (0, 4, 5, 7)]
    assert places == ["news.de:1", "news.de:5", "captions.de:1", "captions.de:3"]
    assert mixed.place("news", 2, 0) == "news.en:3"

    assert mixed.notes(SPLIT) == [
        "news: 5 pairs, each 1 times an epoch",
        "captions: 3 pairs, each 3 times an epoch",
    ]


def test_repetitions_are_of_the_pairs_that_are_left(mixed, folder):
    """The pair with an empty side is in no store."""
    split = "news:2,captions:3"
    tokenizer = train_tokenizer(["news captions"] * 3, 272)
    store = build_store(
        mixed,
        split,
        tokenizer,
        max_length=99,
        cache=folder / "cache",
    )
    assert len(store) == 7

    again = VerifiedCorpus(TextCorpus("en", "de"))  # has not read the pairs: the store is cached
    repetitions = again.repetitions(split, store.numbers)
    np.testing.assert_array_equal(repetitions, [2, 2, 2, 2, 2, 3, 3])


@pytest.mark.parametrize("split", ["train", "a,b", "a:1", "train[:90%]", "C:1"])
def test_other_splits_are_names(split):
    assert parse_mixture(split) == {}


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("a:1,b", "expected a weight for each corpus"),
        ("a:1,b:0", "whole numbers from 1 to 1000, .*: got 0 in 'a:1,b:0'"),
        ("a:1,a:2", "expected different corpora"),
    ],
)
def test_malformed_mixtures_are_refused(split, message):
    with pytest.raises(UserError, match=message):
        parse_mixture(split)
