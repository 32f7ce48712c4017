# ruff: noqa: RUF001
import itertools
import pathlib
import random
import re
import unicodedata
from collections import Counter

import pytest

from jaxformer.data import bpe
from jaxformer.data.bpe import cached_tokenizer, train_tokenizer
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from jaxformer.errors import UserError

from ...profiles import by_profile

MARIAN = pathlib.Path(__file__).parents[2] / "fixtures" / "marian" / "swish_tied"
LINES = [side for pair in NumeralsCorpus().pairs("held_out") for side in pair]
PLACEHOLDERS = ["<name>", "<url>"]
TEXTS = [
    "two hundred and seven",
    "zweihundertsieben",
    "½ m² … ÅÅ №",
    "日本語 🎉 \x00 \ufffd",
    "<s> </s> <unk> <pad> <0x41>",
    "<name>'s <url>: two<name>, <nam>",
    "▁ a ▁▁b▁",
    "\U0010ffff▁\U0010fffe <0xE2>",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(LINES, 320, user_defined_symbols=PLACEHOLDERS)


def test_same_lines_same_bytes(tokenizer):
    same = train_tokenizer(iter(LINES), 320, user_defined_symbols=PLACEHOLDERS)
    assert same.serialized == tokenizer.serialized
    assert train_tokenizer(LINES[:-100], 320).sha256 != tokenizer.sha256


def test_text_round_trips(tokenizer):
    assert tokenizer.vocab_size == 320
    assert tokenizer.target_vocab_size == 320

    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert min(ids) > UNK
        assert max(ids) < 320
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode_batch([text, ""]) == [ids, []]

    assert tokenizer.encode("") == []
    assert tokenizer.encode("   ") == []

    pieces = [tokenizer.piece(i) for i in tokenizer.encode("<url>two<name>")]
    assert [piece for piece in pieces if piece in PLACEHOLDERS] == ["<url>", "<name>"]


# Marks of numbers and verses that enclose or precede their digits: visible, though of category Cf.
PREPENDED = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}


def test_any_blank_is_a_space_and_invisible_characters_have_no_effect(tokenizer):
    apart = tokenizer.encode("two hundred")
    together = tokenizer.encode("twohundred")

    for code in range(1, 0x110000):
        character = chr(code)
        if character.isspace() or character == "\u2800":
            assert tokenizer.encode(f"two{character}hundred") == apart
            assert tokenizer.encode(f"{character} two{2 * character} hundred{character}") == apart
        elif unicodedata.category(character) in ("Cc", "Cf") and code not in PREPENDED:
            assert tokenizer.encode(f"{character}two{character}hundred{character}") == together
            assert tokenizer.encode(2 * character) == []
            assert tokenizer.encode(f" {character} ") == []

    # A variation selector and a grapheme joiner, which are marks.
    assert tokenizer.encode("two\ufe0fhund\u034fred") == together


@pytest.fixture(scope="module")
def western():
    lines = ["Ca, Où? 'Mệt-ắm' 한국 pâté? fi 1.", "می\u200cخواهم ? 1"] * 9
    return train_tokenizer(lines, 330)


def test_decomposed_characters_are_composed(western):
    text = "Où? Mệt ắm 한국 pâté"
    for form in ("NFD", "NFKD"):
        assert western.encode(unicodedata.normalize(form, text)) == western.encode(text)

    # Marks in another order that is equivalent, as Vietnamese keyboards write them.
    for order in itertools.permutations("\u0302\u0323"):
        marks = "".join(order)
        assert western.encode(f"Me{marks}t") == western.encode("Mệt")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Ｏù\uff1f ﬁ… １\uff0e", "Où? fi... 1."),
        ("‘M’\u2011“\u2013", "'M'-“-"),
        ("می\u200cخواهم\u200b", "می\u200cخواهم"),  # A joiner of the training text.
        ("1² ½ ① ñ", "1² ½ ① ñ"),  # Another meaning, and no form in the training text.
    ],
)
def test_characters_become_those_of_the_training_text(western, written, meant):
    assert western.decode(western.encode(written)) == meant


def test_the_training_text_decides_which_form_is_meant(western):
    assert western.unknown_characters("ﬁ？ ñ²ñ\u00a0🙂") == "ñ²🙂"

    chinese = train_tokenizer(["你好？", "ｅ e\u0301"] * 9, 272)
    assert chinese.decode(chinese.encode("好\u3000？ ｅ é")) == "好 ？ ｅ e\u0301"


def test_special_ids_are_not_decoded(tokenizer):
    ids = tokenizer.encode("seven")
    assert tokenizer.decode([BOS, *ids, UNK, EOS, PAD]) == "seven"

    special = [tokenizer.piece(i) for i in (PAD, EOS, BOS, UNK)]
    assert special == ["<pad>", "</s>", "<s>", "<unk>"]
    assert "".join(tokenizer.piece(i) for i in ids) == "▁seven"


def test_save_and_load(tokenizer, tmp_path):
    path = tmp_path / "new" / "tokenizer.model"
    tokenizer.save(path)
    assert Tokenizer.load(path).sha256 == tokenizer.sha256

    path.write_bytes(b"junk")
    with pytest.raises(UserError, match=r"tokenizer.model: expected a SentencePiece model"):
        Tokenizer.load(path)
    with pytest.raises(UserError, match=r"got pad=-1, .* --pad_id=0 --eos_id=1 --bos_id=2"):
        Tokenizer.load(MARIAN / "source.spm")


def test_impossible_sizes_name_the_possible_one():
    with pytest.raises(UserError, match=r"too large .*: got 30000, at most (\d+)") as error:
        train_tokenizer(LINES, 30_000)

    largest = int(re.search(r"at most (\d+)", str(error.value))[1])
    assert train_tokenizer(LINES, largest).vocab_size == largest


def test_large_corpora_are_sampled():
    numbers = [str(i) for i in range(10_000)]
    sample = bpe._sample(iter(numbers), 1000)
    assert len(set(sample)) == 1000

    # A uniform sample has about 100 of 1000 lines from each tenth, standard deviation 9.5.
    tenths = Counter(int(line) // 1000 for line in sample)
    for tenth in range(10):
        assert 50 < tenths[tenth] < 150


class CountingCorpus(NumeralsCorpus):
    def __init__(self):
        super().__init__()
        self.reads = 0

    def pairs(self, split):
        self.reads += 1
        return super().pairs(split)

    def fingerprint(self, split):
        return f"fingerprint of {split}"


def test_cache_is_used_verified_and_repaired(tmp_path):
    corpus = CountingCorpus()

    def cached():
        return cached_tokenizer(corpus, "held_out", 320, cache_directory=tmp_path)

    first = cached()
    assert cached().sha256 == first.sha256
    assert corpus.reads == 1

    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:500] + b"\0" + whole[501:]):
        path.write_bytes(damaged)
        assert cached().sha256 == first.sha256
        assert path.read_bytes() == whole
    assert corpus.reads == 4


def test_tokenizers_of_other_options_are_other_files_of_the_cache(tmp_path):
    cached_tokenizer(CountingCorpus(), "held_out", 320, cache_directory=tmp_path)
    other = cached_tokenizer(
        CountingCorpus(),
        "held_out",
        320,
        cache_directory=tmp_path,
        user_defined_symbols=["<name>"],
    )
    pieces = [other.piece(i) for i in other.encode("<name>")]
    assert "<name>" in pieces


def damaged_model(seed, model):
    """Returns a model with one or five bits flipped."""
    generator = random.Random(seed)
    damaged = bytearray(model)
    for _ in range(generator.choice([1, 5])):
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
    return bytes(damaged)


def test_mutated_models_are_refused_or_work(tokenizer):
    """SentencePiece reports some damage only when a piece is asked for, as UnicodeDecodeError."""
    count = by_profile(60, nightly=200)
    refused = 0

    for seed in range(count):
        try:
            mutated = Tokenizer(damaged_model(seed, tokenizer.serialized))
        except UserError:
            refused += 1
            continue
        for token in range(0, mutated.vocab_size, 7):
            mutated.piece(token)
        mutated.decode(mutated.encode("two hundred \u00bd"))

    assert count / 4 < refused < count
