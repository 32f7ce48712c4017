"""A validation split held out from the training text: disjoint, complete, without copies."""

import hashlib

import pytest

from jaxformer.data.corpus import DataConfig, VerifiedCorpus, open_corpus
from jaxformer.data.held_out import hold_out, open_splits, parse_share
from jaxformer.errors import UserError

# Sources occur several times.
PAIRS = [(f"source {n % 150}", f"target {n}") for n in range(400)]


def write_lines(path, pairs):
    lines = [f"{source}\t{target}\n" for source, target in pairs]
    path.write_text("".join(lines), encoding="utf-8")


def opened(folder, train="a", valid="20%"):
    write_lines(folder / "a", PAIRS)
    write_lines(folder / "b", PAIRS[:9])

    config = DataConfig(corpus="tsv", train=train, valid=valid)
    return VerifiedCorpus(hold_out(open_corpus(config), config.train, config.valid))


def test_both_splits_together_are_the_text_and_share_no_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = opened(tmp_path)
    train = list(corpus.pairs("a"))
    valid = list(corpus.pairs("20%"))
    assert sorted(train + valid) == sorted(PAIRS)

    # The first 16 bits of the hash of a source decide.
    def is_held_out(source):
        digest = hashlib.sha256(source.encode()).hexdigest()
        return int(digest[:4], 16) < 0.2 * 2**16

    assert valid == [pair for pair in PAIRS if is_held_out(pair[0])]
    assert 40 < len(valid) < 120

    assert corpus.fingerprint("a") != corpus.fingerprint("20%")
    larger = opened(tmp_path, valid="30%")
    assert corpus.fingerprint("20%") != larger.fingerprint("30%")

    line = PAIRS.index(valid[3]) + 1
    assert corpus.place("20%", 3, 0) == f"a:{line}"
    line = PAIRS.index(train[3]) + 1
    assert corpus.place("a", 3, 1) == f"a:{line}"


def test_a_mixture_is_held_out_from_every_corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = opened(tmp_path, train="a:1,b:3")
    train = list(corpus.pairs("a:1,b:3"))
    valid = list(corpus.pairs("20%"))

    assert valid
    assert not set(valid) & set(train)
    assert len(train) + len(valid) == 409

    origins = list(corpus.origins("20%"))
    own = list(opened(tmp_path, train="a").pairs("20%"))
    other = list(opened(tmp_path, train="b").pairs("20%"))
    assert valid == own + other
    assert origins == len(own) * ["a"] + len(other) * ["b"]


SHARES = {
    "5%": 0.05,
    "5 %": 0.05,
    " 0.5% ": 0.005,
    ".5%": 0.005,
    "99.5%": 0.995,
    "1e-1%": 0.001,
}


@pytest.mark.parametrize(("text", "share"), SHARES.items())
def test_shares_are_percentages(text, share):
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("name", ["valid", "my/valid", "train[95%:]", "valid5", "100", "0.05"])
def test_names_are_no_shares(name):
    assert parse_share(name) is None


# A wrong share, and the right one that the message suggests.
WRONG = {
    "0%": "5%",
    "100%": "5%",
    "-1%": "5%",
    "150 %": "5%",
    "1.2.3%": "5%",
    "1,5%": "5%",
    "0.05": "5%",
    ".2": "20%",
    "5": "5%",
    "12.5": "12.5%",
    "0": "5%",
    "-1": "5%",
    "100": "5%",
}


@pytest.mark.parametrize(("share", "meant"), WRONG.items())
def test_other_shares_are_refused_with_the_right_form(share, meant, tmp_path):
    message = f"above 0% and below 100%, .*: got {share}; give --config.data.valid={meant}, for ex"
    with pytest.raises(UserError, match=message):
        opened(tmp_path, valid=share)


def test_a_file_may_have_a_number_as_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "5").write_text("one\teins\n")

    corpus = opened(tmp_path, valid="5")
    assert list(corpus.pairs("5")) == [("one", "eins")]


@pytest.mark.parametrize(
    ("share", "split", "message"),
    [
        ("0.01%", "0.01%", "none of the 400 training pairs are in this share; give a larger one"),
        ("99.99%", "a", "all of the 400 training pairs are in this share; give a smaller one"),
    ],
)
def test_a_share_without_pairs_is_explained(share, split, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = opened(tmp_path, valid=share)
    with pytest.raises(UserError, match=f"data.valid={share}: by the hash .*, {message}"):
        list(corpus.pairs(split))


@pytest.mark.parametrize(
    ("corpus", "example"),
    [
        ("text", "my/train for the files my/train.en and my/train.de, for example"),
        ("tsv", "my/train.tsv, for example"),
        ("tfds", "train, for example"),
    ],
)
def test_data_of_the_user_are_asked_for(corpus, example):
    with pytest.raises(UserError, match=f"got none; give --config.data.train={example}; docs"):
        open_splits(DataConfig(corpus=corpus, train=""))


def test_a_validation_split_is_asked_for():
    with pytest.raises(UserError, match=r"data\.valid: expected .*; give --config\.data\.valid=5%"):
        open_splits(DataConfig(corpus="text", train="a", valid=""))
