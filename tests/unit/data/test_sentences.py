"""Sentences of paragraphs, whose boundaries a person has marked by bars."""

import pytest

from jaxformer.data.sentences import join_sentences, split_sentences
from jaxformer.errors import UserError

pytest.importorskip("sentencex", reason="sentencex is not installed")

MARKED = [
    ("en", 'Dr. Smith paid $3.50 for it.|He left at 5 p.m. on Monday!|"Why?" she asked.'),
    ("eng_Latn", "See e.g. the U.S. report.|It has 3.5 pages."),
    ("de", "Am 3. Mai kam z.B. Dr. Maier an.|Er ging um 5 Uhr."),
    ("fr", "Il est arrivé à 5 h.|Où\u00a0est-il\u00a0?|Ici."),
    ("ja", "今日は雨です。|傘を持って行きます。"),
    ("zho_Hans", "今天下雨。|我带伞。|你呢\uff1f"),
]


@pytest.mark.parametrize(("language", "marked"), MARKED)
def test_sentences_are_split_and_joined(language, marked):
    expected = marked.split("|")
    paragraph = join_sentences(expected, language)
    assert split_sentences(f"  {paragraph} ", language) == expected

    has_spaces = language not in ("ja", "zho_Hans")
    assert len(paragraph) == len(marked) - (0 if has_spaces else len(expected) - 1)


@pytest.mark.parametrize("language", ["bn", "en", "hi", "ru", "und", ""])
def test_spaces_of_several_bytes_are_no_obstacle(language):
    """sentencex 1.0.32 panics at some of them, as in the first text."""
    for text in ("A\x85.A", "A.\u3000B. C", "a\u2028b.\u00a0C", " \u00a0", ""):
        found = split_sentences(text, language)
        assert "".join("".join(found).split()) == "".join(text.split())
        assert all(found)


def test_not_unicode():
    with pytest.raises(UserError, match=r"in\.txt:3: not UTF-8"):
        split_sentences("\ud800", "en", "in.txt:3")
