"""Labeled lines: the separator of a file, and a message for every other form."""

import numpy as np
import pytest

from jaxformer.data.labeled import FIRST_LABEL, LabeledCorpus, make_labeled_batch
from jaxformer.data.tokenizer import EOS
from jaxformer.errors import UserError

ROWS = [("a warm room", "good"), ("a cold, cold film", "bad"), ("", "good")]


def corpus_of(folder, text):
    path = folder / "lines"
    path.write_text(text, encoding="utf-8")
    return LabeledCorpus(), str(path)


def test_a_tab_or_a_space_separates_label_and_text(tmp_path):
    prints = set()
    for separator in ("\t", " "):
        lines = [f"{label}{separator}{text}\n" for text, label in ROWS]
        corpus, path = corpus_of(tmp_path, "".join(lines))
        assert list(corpus.pairs(path)) == ROWS
        prints.add(corpus.fingerprint(path))

    assert len(prints) == 2


def test_files_of_one_split_may_differ_in_their_separator(tmp_path):
    other = tmp_path / "other"
    other.write_text("good\tx\n")
    corpus, path = corpus_of(tmp_path, "bad y\n")

    assert list(corpus.pairs(f"{path},{other}")) == [("y", "bad"), ("x", "good")]


def test_texts_without_labels_have_any_form(tmp_path):
    corpus, path = corpus_of(tmp_path, "one\ttwo, three\nfour\n")
    corpus.has_labels = False

    texts = [text for text, _ in corpus.pairs(path)]
    assert texts == ["one\ttwo, three", "four"]


FIRST = "a label, one tab and a text"
BLANK = "expected a label without blanks before the tab, got"
REFUSED = {
    "good\ta\nbad b\n": f"lines:2: expected {FIRST}, .*, got 0 tabs",
    "good a\nbad\tb\n": r"lines:2: expected a label, a space and a text, got 'bad\\tb'",
    "good a\nbad b\tc\n": r"lines:2: expected .* a text without tabs, .*, got 'bad b\\tc'",
    "good\ta\tb\n": f"lines:1: expected {FIRST}, .*, got 2 tabs; .* cut -f 1,2",
    "a warm room\tgood\n": f"lines:1: {BLANK} 'a warm room'; write the label first",
    "\ttext\n": f"lines:1: {BLANK} ''",
    "very\u00a0good\ttext\n": f"lines:1: {BLANK} 'very",
    "good,a warm room\n": "lines:1: expected .* got ',' in the label 'good,a'; put a tab",
    "good;a warm room\n": "lines:1: expected .* got ';' in the label 'good;a'",
    "good|a warm room\n": r"lines:1: expected .* got '\|' in the label 'good\|a'",
    '"good" "a room"\n': "lines:1: expected .* got '\"' in the label",
    "good\u3000a room\n": "lines:1: expected a label, a space and a text, got",
    "good a\n\n": "lines:2: expected a label, a space and a text, got ''",
    "good a\n b\n": "lines:2: expected a label, a space and a text, got ' b'",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items())
def test_other_forms_are_refused_with_file_and_line(text, message, tmp_path):
    corpus, path = corpus_of(tmp_path, text)
    with pytest.raises(UserError, match=message):
        list(corpus.pairs(path))


def test_a_batch_has_a_class_for_each_text_and_none_for_an_empty_row():
    rows = [
        [(np.array([9, 8], np.uint16), np.array([FIRST_LABEL + 2], np.uint16))],
        [(np.array([], np.uint16), np.array([FIRST_LABEL], np.uint16))],
    ]
    batch = make_labeled_batch(rows, (3, 4, 4))
    assert batch.tokens.tolist() == [[9, 8, EOS, 0], [EOS, 0, 0, 0], [0, 0, 0, 0]]
    assert batch.classes.tolist() == [2, 0, -1]
    assert {each.dtype for each in batch} == {np.dtype(np.int32)}
