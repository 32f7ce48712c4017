"""Tokenizers for preprocessed text, with the words that Moses' Perl scripts make."""

import json

import pytest

from jaxformer.data.bpe import cached_tokenizer
from jaxformer.data.moses_tokenizer import MosesTokenizer, PreprocessedCorpus, Preprocessing
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import UserError

PAIRS = [("A man's dog isn't here.", "Der „Hund“ ist nicht hier."), ("Look!", "Schau!")]
WORDS = [
    ("a man &apos;s dog isn &apos;t here .", "der &quot; hund &quot; ist nicht hier ."),
    ("look !", "schau !"),
]
LANGUAGES = {"source_language": "en", "target_language": "de"}
LOWERCASE = Preprocessing(**LANGUAGES, lowercase=True)


class Corpus:
    target_symbols = False

    def pairs(self, split):
        return iter(PAIRS)

    def fingerprint(self, split):
        return split


def test_text_is_preprocessed_and_words_are_joined(tmp_path):
    corpus = PreprocessedCorpus(Corpus(), LOWERCASE)
    assert list(corpus.pairs("train")) == WORDS
    cased = PreprocessedCorpus(Corpus(), Preprocessing(**LANGUAGES))
    assert corpus.fingerprint("train") != cased.fingerprint("train")
    learned = cached_tokenizer(corpus, "train", 300, tmp_path, split_by_unicode_script=False)
    words = Preprocessing(**LANGUAGES, lowercase=True, detokenize=False)
    for options, output in ((LOWERCASE, 'der "hund" ist nicht hier.'), (words, WORDS[0][1])):
        MosesTokenizer.assemble(options, learned.serialized).save(tmp_path / "tokenizer.model")
        tokenizer = Tokenizer.load(tmp_path / "tokenizer.model")
        sources, targets = ([pair[side] for pair in PAIRS] for side in (0, 1))
        ids = [learned.encode(source) for source, _ in WORDS]
        assert [tokenizer.encode(text) for text in sources] == ids
        assert tokenizer.encode_batch(sources) == ids
        ids = [learned.encode(target) for _, target in WORDS]
        assert [tokenizer.encode_target(text) for text in targets] == ids
        assert tokenizer.encode_target_batch(targets) == ids
        assert tokenizer.decode(ids[0]) == output
        assert tokenizer.encode(" \xa0") == []
        assert tokenizer.unknown_characters("Look, 火!") == ",火"


def test_malformed_files_are_refused():
    good = {"moses": LANGUAGES, "sentencepiece": ""}
    for bad in (
        b'{"moses"',
        json.dumps(good | {"moses": {"source_language": "en"}}).encode(),
        json.dumps(good | {"moses": LANGUAGES | {"lowercase": 1}}).encode(),
        json.dumps(good | {"moses": LANGUAGES | {"source_language": "../en"}}).encode(),
        json.dumps(good).encode(),
    ):
        with pytest.raises(UserError, match=r"expected"):
            MosesTokenizer(bad)
