"""Windows of long texts, compared with the tokenizers library, and files of questions."""

import json
import pathlib
import re

import pytest

from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.questions import Question, Span, make_windows, read_questions
from jaxformer.errors import UserError

tokenizers = pytest.importorskip("tokenizers")

FOLDER = pathlib.Path(__file__).parents[2] / "fixtures" / "bert" / "plain"
SPECIAL = {"pad": 0, "unk": 2, "bos": 3, "eos": 4}
TEXT = "the old house is red. a dog runs! he has it, two books; the man sees a cat\n" * 2


@pytest.fixture(scope="module")
def tokenizer():
    text = (FOLDER / "tokenizer.json").read_text()
    return HuggingFaceTokenizer.assemble(text, SPECIAL, vocab_size=64, labels=[])


@pytest.mark.parametrize("stride", [0, 3, 6])
@pytest.mark.parametrize("text", ["", "a dog", TEXT], ids=["empty", "short", "long"])
def test_windows_are_the_truncation_of_the_library(tokenizer, text, stride):
    library = tokenizers.Tokenizer.from_str(tokenizer.json)
    library.enable_truncation(24, stride=stride, strategy="only_second")
    first = library.encode("who runs?", text)
    expected = [first, *first.overflowing]

    windows = make_windows(tokenizer, "who runs?", text, max_length=24, stride=stride)
    assert len(windows) == len(expected)
    for window, encoding in zip(windows, expected, strict=True):
        assert tokenizer.their_ids[window.tokens].tolist() == encoding.ids
        assert window.types == encoding.type_ids

        of_text = [number for number, side in enumerate(encoding.sequence_ids) if side == 1]
        assert window.spans == [encoding.offsets[number] for number in of_text]
        if of_text:
            assert window.first == of_text[0]


def test_a_question_that_is_too_long_is_refused(tokenizer):
    with pytest.raises(UserError, match="leaves space for a text within 5 tokens, got one of 1"):
        make_windows(tokenizer, "who runs?", "a dog", max_length=5, stride=0)

    # With little space, windows share half of their part.
    windows = make_windows(tokenizer, "", TEXT, max_length=7, stride=128)
    starts = [window.spans[0] for window in windows]
    assert windows[0].spans[2:] == windows[1].spans[:2]
    assert len(starts) == len(set(starts))


def test_every_answer_is_in_a_window(tokenizer):
    """Its tokens are the shortest that cover it."""
    for match in re.finditer(r"\w+ \w+", TEXT):
        span = Span(*match.span())
        windows = make_windows(tokenizer, "who?", TEXT, max_length=24, stride=8)
        places = [window.places(span) for window in windows]
        assert any(place != (0, 0) for place in places)

        for window, (first, last) in zip(windows, places, strict=True):
            if first:
                start, _ = window.spans[first - window.first]
                _, end = window.spans[last - window.first]
                assert TEXT[start:end] == match[0]


SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "House",
            "paragraphs": [
                {
                    "context": "the old house",
                    "qas": [
                        {
                            "id": "1a",
                            "question": "what?",
                            "is_impossible": False,
                            "answers": [
                                {"text": "house", "answer_start": 8},
                                {"text": "old house", "answer_start": 4},
                            ],
                        },
                        {"id": "1b", "question": "why?", "is_impossible": True, "answers": []},
                    ],
                }
            ],
        }
    ],
}


def test_files_of_questions(tmp_path):
    squad = tmp_path / "dev.json"
    squad.write_text(json.dumps(SQUAD))
    text = "the old house"
    expected = [
        Question("1a", "what?", text, (Span(8, 13), Span(4, 13))),
        Question("1b", "why?", text, ()),
    ]
    assert read_questions(squad) == expected
    assert expected[0].answer_texts() == ["house", "old house"]

    rows = [
        {
            "id": "1a",
            "question": "what?",
            "context": text,
            "answers": {"text": ["house", "old house"], "answer_start": [8, 4]},
        },
        {"question": "why?", "context": text},
    ]
    lines = tmp_path / "dev.jsonl"
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert read_questions(lines) == [expected[0], Question("2", "why?", text)]


def answered(**changes):
    """Returns a line with other fields."""
    answers = [{"text": "dog", "answer_start": 2}]
    return json.dumps({"question": "who?", "context": "a dog", "answers": answers} | changes)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "[]", "expected data to be a list, as in SQuAD's JSON, got None; a file of JSO"),
        ("a.json", answered(), "expected data to be a list, .* a name that ends with .jsonl"),
        ("a.json", '{"data": []}', "a.json: expected questions, got none"),
        ("a.json", '{"data": [{}]}', "a.json: an article: expected paragraphs to be a list"),
        ("a.json", "{", r"a.json: expected SQuAD's JSON, or JSON Lines in a file .* \.jsonl: "),
        ("a.jsonl", "{", "a.jsonl:1: expected a JSON object"),
        ("a.jsonl", answered(context=1), "a.jsonl:1: expected context to be a text, got 1"),
        ("a.jsonl", answered(question=None), "a.jsonl:1: expected question to be a text, got None"),
        ("a.jsonl", answered(answers=1), "a.jsonl:1: question 1: expected a list of answers, got"),
        ("a.jsonl", answered(answers=["dog"]), "expected each answer to be an object .* got 'dog'"),
        (
            "a.jsonl",
            answered(answers=[{"text": "dog", "answer_start": 1}]),
            "question 1: expected answer_start to be the index in context .* of 'dog', got 1",
        ),
        (
            "a.jsonl",
            answered(answers=[{"text": "dog", "answer_start": "2"}]),
            "expected answer_start to be the index .*, got '2'",
        ),
    ],
)
def test_other_files_are_refused(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        read_questions(path)
