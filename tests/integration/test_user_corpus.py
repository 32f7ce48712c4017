"""A user's own corpus of sentence pairs works like the built-in ones, through public API only."""

import hashlib

import optax
import pytest

from jaxformer import Corpus, experiment, train

from ..runs import changed
from .conftest import TINY

SIZES = {"tokens_per_batch": 64, "max_length": 32}
CONFIG = changed(
    TINY,
    model={"vocab_size": 280, "d_model": 8, "d_ff": 16},
    data={"corpus": "text", "train": "even", "valid": "odd"} | SIZES,
    training={"warmup_steps": 2, "eval_sentences": 0},
)


class Counting:
    """Numbers and their words in reverse, in a class with the two methods of a corpus."""

    target_symbols = False

    def __init__(self, last=60):
        self.last = last

    def pairs(self, split):
        for n in range(split == "odd", self.last, 2):
            yield f"number {n}", f"{n} rebmun"

    def fingerprint(self, split):
        return hashlib.sha256(repr(list(self.pairs(split))).encode()).hexdigest()


def test_corpus_and_custom_optimizer_replace_those_of_the_config(tmp_path, monkeypatch):
    assert isinstance(Counting(), Corpus)
    given = []

    def run(task, optimizer, *_, learning_rate, **__):
        given.append((task.summary().split(" (")[0], optimizer, learning_rate))
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "Run", run)
    optimizer = optax.sgd(0.0)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, corpus=Counting(), optimizer=optimizer)
    assert given == [("30 training pairs, 0 skipped", optimizer, None)]
