import random

import pytest

from jaxformer.data import tokenizer as tokenizer_lib
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.data.tokenizer import (
    BOS,
    EOS,
    PAD,
    UNK,
    Tokenizer,
    cached_tokenizer,
    train_tokenizer,
)
from jaxformer.errors import UserError

from ...profiles import by_profile

LINES = [side for pair in NumeralsCorpus().pairs("held_out") for side in pair]
TEXTS = [
    "two hundred and seven",
    "zweihundertsieben",
    "½ m² … ﬁne ÅÅ №",
    "日本語 🎉 \u00a0 \x85 \x00",
    "<s> </s> <unk> <pad> <0x41>",
    "▁ a ▁▁b▁",
    "\U0010ffff▁\U0010fffe <0xE2>",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(LINES, 320)


def test_same_lines_same_bytes(tokenizer):
    assert train_tokenizer(iter(LINES), 320).serialized == tokenizer.serialized
    assert train_tokenizer(LINES[:-100], 320).sha256 != tokenizer.sha256


def test_text_round_trips(tokenizer):
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert min(ids) > UNK
        assert max(ids) < tokenizer.vocab_size == tokenizer.target_vocab_size == 320
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode_batch([text, ""]) == [ids, []]
    assert tokenizer.encode("") == tokenizer.encode("   ") == []


def test_special_ids_are_not_decoded(tokenizer):
    ids = tokenizer.encode("seven")
    assert tokenizer.decode([BOS, *ids, UNK, EOS, PAD]) == "seven"
    assert [tokenizer.piece(i) for i in (PAD, EOS, BOS, UNK)] == ["<pad>", "</s>", "<s>", "<unk>"]
    assert "".join(tokenizer.piece(i) for i in ids) == "▁seven"


def test_save_and_load(tokenizer, tmp_path):
    path = tmp_path / "new" / "tokenizer.model"
    tokenizer.save(path)
    assert Tokenizer.load(path).sha256 == tokenizer.sha256
    path.write_bytes(b"junk")
    with pytest.raises(UserError, match=r"tokenizer.model: expected a SentencePiece model"):
        Tokenizer.load(path)


def test_impossible_sizes_name_the_possible_one():
    with pytest.raises(UserError, match=r"too large .*: got 30000, at most (\d+)") as error:
        train_tokenizer(LINES, 30_000)
    largest = int(str(error.value).split("at most ")[1].split()[0])
    assert train_tokenizer(LINES, largest).vocab_size == largest
    with pytest.raises(UserError, match=r"too small .*: got 261, at least \d+"):
        train_tokenizer(LINES, 261)


def test_large_corpora_are_sampled():
    numbers = [str(i) for i in range(10_000)]
    sample = tokenizer_lib._sample(iter(numbers), 1000)
    assert len(set(sample)) == 1000
    # A uniform sample has about 100 of 1000 lines from each tenth, standard deviation 9.5.
    tenths = [sum(int(line) // 1000 == tenth for line in sample) for tenth in range(10)]
    assert all(50 < count < 150 for count in tenths)


class CountingCorpus(NumeralsCorpus):
    reads = 0

    def pairs(self, split):
        self.reads += 1
        return super().pairs(split)

    def fingerprint(self, split):
        return f"fingerprint of {split}"


def test_cache_is_used_verified_and_repaired(tmp_path):
    corpus = CountingCorpus()
    first = cached_tokenizer(corpus, "held_out", 320, tmp_path)
    assert cached_tokenizer(corpus, "held_out", 320, tmp_path).sha256 == first.sha256
    assert corpus.reads == 1
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:500] + b"\0" + whole[501:]):
        path.write_bytes(damaged)
        assert cached_tokenizer(corpus, "held_out", 320, tmp_path).sha256 == first.sha256
        assert path.read_bytes() == whole
    assert corpus.reads == 4


def test_mutated_models_are_refused_or_work(tokenizer):
    """SentencePiece reports some damage only when a piece is asked for, as UnicodeDecodeError."""
    count, refused = by_profile(60, nightly=200), 0
    for seed in range(count):
        generator, model = random.Random(seed), bytearray(tokenizer.serialized)
        for _ in range(generator.choice([1, 5])):
            model[generator.randrange(len(model))] ^= 1 << generator.randrange(8)
        try:
            mutated = Tokenizer(bytes(model))
        except UserError:
            refused += 1
            continue
        for token in range(0, mutated.vocab_size, 7):
            mutated.piece(token)
        mutated.decode(mutated.encode("two hundred \u00bd"))
    assert count / 4 < refused < count
