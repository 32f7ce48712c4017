"""A validation split held out from the training text: disjoint, complete, without copies."""

import hashlib

import pytest

from jaxformer.data.corpus import DataConfig, VerifiedCorpus, open_corpus
from jaxformer.data.held_out import hold_out
from jaxformer.errors import UserError

PAIRS = [(f"source {n % 150}", f"target {n}") for n in range(400)]  # Sources occur several times.


def opened(folder, train="a", valid="20%"):
    for name, pairs in {"a": PAIRS, "b": PAIRS[:9]}.items():
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (folder / name).write_text(lines, encoding="utf-8")
    config = DataConfig(corpus="tsv", train=train, valid=valid)
    return VerifiedCorpus(hold_out(open_corpus(config), config.train, config.valid))


def test_both_splits_together_are_the_text_and_share_no_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = opened(tmp_path)
    train, valid = (list(corpus.pairs(split)) for split in ("a", "20%"))
    assert sorted(train + valid) == sorted(PAIRS)
    digests = [hashlib.sha256(source.encode()).hexdigest() for source, _ in PAIRS]
    assert valid == [p for p, d in zip(PAIRS, digests, strict=True) if int(d[:4], 16) < 0.2 * 2**16]
    assert 40 < len(valid) < 120
    assert corpus.fingerprint("a") != corpus.fingerprint("20%")
    assert corpus.fingerprint("20%") != opened(tmp_path, valid="30%").fingerprint("30%")
    line = PAIRS.index(valid[3]) + 1
    assert corpus.place("20%", 3, 0) == f"a:{line}"
    assert corpus.place("a", 3, 1) == f"a:{PAIRS.index(train[3]) + 1}"


def test_a_mixture_is_held_out_from_every_corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = opened(tmp_path, train="a:1,b:3")
    valid = set(corpus.pairs("20%"))
    assert valid
    assert not valid & set(corpus.pairs("a:1,b:3"))
    assert len(list(corpus.pairs("a:1,b:3"))) + len(list(corpus.pairs("20%"))) == 409


@pytest.mark.parametrize("share", ["0%", "100%", "1.2.3%"])
def test_shares_between_0_and_100_percent_are_expected(share, tmp_path):
    with pytest.raises(UserError, match="expected a share from 0 % to 100 %, such as 5%: got"):
        opened(tmp_path, valid=share)
