"""Glossaries, with a translator that copies words, in order, after a forced prefix."""

import re

import pytest

from jaxformer.errors import UserError
from jaxformer.inference import glossary
from jaxformer.inference.glossary import Glossary
from jaxformer.inference.hypotheses import Decoded, Hypothesis


class Copier:
    """Translates to the source in capitals; what follows a prefix are the source's next words."""

    def prefix_ids(self, text):
        return text.split()

    def translate_ids(self, sources, prefixes, n_best):
        assert n_best == 1
        pairs = zip(sources, prefixes, strict=True)
        texts = [[*prefix, *source[len(prefix) :]] for source, prefix in pairs]
        return [Decoded([text], [0.0], [0.0]) for text in texts]

    def hypotheses_of(self, decoded):
        return [Hypothesis(" ".join(tokens), tokens, 0.0, 0.0) for tokens in decoded.tokens]


@pytest.fixture
def translated(monkeypatch):
    def align(translator, sentences, targets, source_ids):
        lengths = [len(sentence.split()) for sentence in sentences]
        return [[(n, n) for n in range(length)] for length in lengths]

    monkeypatch.setattr(glossary, "align", align)

    def translate(terms, *sentences):
        sources = [sentence.upper().split() for sentence in sentences]
        translator = Copier()
        found = [translator.hypotheses_of(Decoded([ids], [0.0], [0.0])) for ids in sources]
        best = Glossary(terms).apply(translator, sentences, sources, found)
        return [hypotheses[0].text for hypotheses in best]

    return translate


def test_terms_replace_what_they_are_aligned_to(translated):
    terms = {"station": "Halt", "big line": "Grosslinie", "line": "Linie", "a": "A", "ö": "Ü"}
    assert translated(terms, "the station is big", "where is it") == [
        "THE Halt IS BIG",
        "WHERE IS IT",
    ]

    # Two terms, from left to right; whole words; a capital at the beginning.
    assert translated(terms, "the line of stations, line station") == [
        "THE Linie OF STATIONS, LINE Halt"
    ]
    assert translated({"line": "linie"}, "line two") == ["Linie TWO"]

    # A term that the translation has is kept, and of terms that overlap, the longest counts.
    assert translated(terms, "a b") == ["A B"]
    assert translated({"the end": "Ende x", "end": "y"}, "it is the end of it") == [
        "IT IS Ende x OF IT"
    ]


def test_a_file_of_terms(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("Station\tHaltestelle\n\nbig line \t Grosslinie\n", encoding="utf-8")
    assert Glossary.load(path).terms == {"station": "Haltestelle", "big line": "Grosslinie"}

    for content, message in (
        ("a b\n", "terms.tsv:1: expected a term, a tab and its translation, got 'a b'"),
        ("a\tb\n\t\nc\t\n", "terms.tsv:3: expected a term, a tab"),
        ("a\tb\nA\tc\n", "terms.tsv:2: 'a' has another translation above; leave one out"),
        ("\n", "terms.tsv: expected a term, a tab and its translation in a line, got none"),
    ):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=re.escape(message)):
            Glossary.load(path)

    with pytest.raises(UserError, match="expected a term and its translation, got '' and 'a'"):
        Glossary({"": "a"})
