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
    source_ids = [learned.encode(source) for source, _ in WORDS]
    target_ids = [learned.encode(target) for _, target in WORDS]
    sources = [source for source, _ in PAIRS]
    targets = [target for _, target in PAIRS]

    words = Preprocessing(**LANGUAGES, lowercase=True, detokenize=False)
    outputs = (
        (LOWERCASE, 'der "hund" ist nicht hier.'),
        (words, "der &quot; hund &quot; ist nicht hier ."),
    )
    for options, output in outputs:
        MosesTokenizer.assemble(options, learned.serialized).save(tmp_path / "tokenizer.model")
        tokenizer = Tokenizer.load(tmp_path / "tokenizer.model")

        assert [tokenizer.encode(text) for text in sources] == source_ids
        assert tokenizer.encode_batch(sources) == source_ids
        assert [tokenizer.encode_target(text) for text in targets] == target_ids
        assert tokenizer.encode_target_batch(targets) == target_ids

        assert tokenizer.decode(target_ids[0]) == output
        assert tokenizer.encode(" \xa0") == []
        assert tokenizer.unknown_characters("Look, 火!") == ",火"


GOOD = {"moses": LANGUAGES, "sentencepiece": ""}


MALFORMED = [
    b'{"moses"',
    json.dumps(GOOD | {"moses": {"source_language": "en"}}).encode(),
    json.dumps(GOOD | {"moses": LANGUAGES | {"lowercase": 1}}).encode(),
    json.dumps(GOOD | {"moses": LANGUAGES | {"source_language": "../en"}}).encode(),
    json.dumps(GOOD).encode(),
]


@pytest.mark.parametrize("content", MALFORMED)
def test_malformed_files_are_refused(content):
    with pytest.raises(UserError, match=r"expected"):
        MosesTokenizer(content)
