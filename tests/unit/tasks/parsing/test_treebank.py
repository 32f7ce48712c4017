"""Treebanks as a corpus: pairs of words and trees, and tokens for brackets and tags."""

import itertools

import pytest

from jaxformer.data.bpe import cached_tokenizer
from jaxformer.data.corpus import Corpus
from jaxformer.errors import UserError
from jaxformer.tasks.parsing.treebank import TreesCorpus

FIRST = """( (S (NP-SBJ-1 (DT The) (NN gene))
  (VP (VBZ works) (NP (-NONE- *-1))) (. .)))
( (S (NP (-NONE- *)))) (FRAG (, ,) (-LRB- -LRB-))
"""
SECOND = "(NP (NN a\u200ab) (CD XX))"
PAIRS = [
    ("The gene works .", "(S (NP (DT) (NN) )NP (VP (VBZ) )VP (.) )S"),
    (", -LRB-", "(FRAG (,) (-LRB-) )FRAG"),
    ("a\u200ab XX", "(NP (NN) (CD) )NP"),
]


@pytest.fixture
def part(tmp_path):
    first = tmp_path / "first.trees"
    second = tmp_path / "second.trees"
    first.write_text(FIRST, encoding="utf-8")
    second.write_text(SECOND, encoding="utf-8")
    return f"{first},{second}"


def test_words_and_trees_of_several_files(part):
    corpus = TreesCorpus()
    _, second = part.split(",")

    assert isinstance(corpus, Corpus)
    assert list(corpus.pairs(part)) == PAIRS
    assert list(corpus.pairs(second)) == PAIRS[2:]
    assert list(corpus.pairs(f"{part},{second}")) == PAIRS + PAIRS[2:]


def test_mistakes_name_the_file(part, tmp_path):
    corpus = TreesCorpus()
    with pytest.raises(UserError, match=r"frist\.trees: no such file.*did you mean .*first\.trees"):
        corpus.fingerprint(part.replace("first", "frist"))

    (tmp_path / "second.trees").write_text("(S (NN a))\n(S", encoding="utf-8")
    with pytest.raises(UserError, match=r"second\.trees:2: the tree that begins here is never"):
        list(corpus.pairs(part))


def test_brackets_are_tokens_and_text_is_not(part, tmp_path):
    """Words such as XX, or that look like a bracket, are text, too."""
    tokenizer = cached_tokenizer(TreesCorpus(), part, 300, cache_directory=tmp_path)
    targets = [target for _, target in PAIRS]

    rows = tokenizer.encode_target_batch(targets)
    for row, target in zip(rows, targets, strict=True):
        assert len(row) == len(target.split(" "))
        assert tokenizer.decode(row) == target

    symbols = set(itertools.chain.from_iterable(rows))
    text = "The (NP (DT) XX )NP a(S)b <s> (S ▁(S"
    assert symbols.isdisjoint(tokenizer.encode(text))

    # Symbols that the treebank lacks are unknown, and text is not a symbol.
    opening = rows[0][0]
    closing = rows[0][-1]
    assert tokenizer.encode_target("(S (X The )S") == [opening, 3, 3, closing]
    word = tokenizer.encode("The")
    decoded = tokenizer.decode([2, opening, *word, 3, 1, 0])
    assert decoded.startswith("(S ▁")


def test_the_smallest_vocabulary_has_all_bytes_symbols_and_characters(part, tmp_path):
    symbols = set()
    characters = set()
    for source, target in PAIRS:
        symbols |= set(target.split(" "))
        characters |= set(source.replace("\u200a", " "))
    smallest = 4 + 256 + len(symbols) + len(characters)

    with pytest.raises(UserError, match=f"too small .*: got 270, at least {smallest} is needed"):
        cached_tokenizer(TreesCorpus(), part, 270, cache_directory=tmp_path)
