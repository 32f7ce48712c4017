"""Variants of sentence pairs: what each kind changes, and what it keeps."""

import pathlib
import re
from collections import Counter

import pytest

from jaxformer.cli.commands.augment import augment
from jaxformer.data.augmentation import RATES, parse_rates, variants
from jaxformer.errors import UserError

from ...runs import write_pairs

SENTENCES = [
    ("Tom has three cats.", "Tom hat drei Katzen."),
    ("I met Mary in 1999!", "Ich traf Mary 1999!"),
    ("Is it far?", "Ist es weit?"),
]
PAIRS = SENTENCES * 100
# Every third pair is the first sentence.
FIRST_SENTENCE = slice(None, None, len(SENTENCES))


def pairs_of(rates, pairs=PAIRS, seed=0, **options):
    return list(variants(pairs, parse_rates(rates), seed, **options))


def test_rates():
    changed = pairs_of("capitals=0.3")
    capitals = [source.isupper() for source, _ in changed]
    assert capitals == [target.isupper() for _, target in changed]
    assert 65 < sum(capitals) < 115  # 90 of 300 are expected, with a deviation of 8

    assert pairs_of("capitals=0.3") == changed
    assert pairs_of("capitals=0.3", seed=1) != changed


@pytest.mark.parametrize(
    "mistake",
    ["capital=0.1", "capitals", "capitals=2", "capitals=0.5.1", "", "typos=-1"],
)
def test_mistakes_in_rates_are_refused(mistake):
    with pytest.raises(UserError, match="expected kinds with their rates"):
        parse_rates(mistake)


def test_command_counts_the_lines_that_each_kind_has_changed(tmp_path, capsys):
    source = tmp_path / "train.en"
    target = tmp_path / "train.de"
    output = tmp_path / "new"
    write_pairs(tmp_path / "train", PAIRS)

    augment(
        source=source,
        target=target,
        output=output,
        copies=2,
        rates="number=1,no_mark=1,typos=0,capitals=0",
    )

    # Two copies of 300 pairs; one sentence of three has no number.
    counts = "600 lines; changed by number 400, no_mark 600, typos 0, capitals 0\n"
    assert capsys.readouterr().out == f"{output}.en, {output}.de: {counts}"
    assert len((tmp_path / "new.de").read_text().splitlines()) == 600


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("no_mark", [("Tom has three cats", "Tom hat drei Katzen")]),
        ("title", [("Tom Has Three Cats.", "Tom Hat Drei Katzen.")]),
        ("capitals", [("TOM HAS THREE CATS.", "TOM HAT DREI KATZEN.")]),
    ],
)
def test_forms(kind, expected):
    assert pairs_of(f"{kind}=1", PAIRS[:1]) == expected


def test_joined_lines_have_all_pairs_in_their_order():
    changed = pairs_of("join=1")

    for side in (0, 1):
        joined = " ".join(pair[side] for pair in changed)
        assert joined == " ".join(pair[side] for pair in PAIRS)

    # The last line has what is left.
    sentence_counts = set()
    for source, _ in changed[:-1]:
        marks = re.findall("[.!?]", source)
        sentence_counts.add(len(marks))
    assert sentence_counts == {2, 3, 4, 5}


def test_numbers_are_equal_on_both_sides_as_each_language_writes_them():
    german_marks = str.maketrans(",.", ".,")
    for source, target in pairs_of("number=1")[FIRST_SENTENCE]:
        [english_number] = re.fullmatch(r"Tom has (\S+) cats\.", source).groups()
        [german_number] = re.fullmatch(r"Tom hat (\S+) Katzen\.", target).groups()
        assert english_number.translate(german_marks) == german_number

    without_number = SENTENCES[2:]
    assert pairs_of("number=1", without_number) == without_number

    french = pairs_of("number=1", [("7", "7")] * 99, languages=("en", "fr"))
    # French separates thousands by a narrow no-break space.
    assert any("\u202f" in target and "," in source for source, target in french)


def test_copied_words_are_equal_on_both_sides():
    for source, target in pairs_of("copy=1")[FIRST_SENTENCE]:
        word = source.removesuffix(" has three cats.")
        assert word == target.removesuffix(" hat drei Katzen.")
        assert not source.startswith("Tom ")


def test_symbols_are_added_to_both_sides():
    symbols = pairs_of("symbol=1")

    def added_characters(text, original):
        before = Counter(original)
        after = Counter(text)
        assert before <= after
        return after - before - Counter(" ")

    for pair, original_pair in zip(symbols, PAIRS, strict=True):
        in_source = added_characters(pair[0], original_pair[0])
        in_target = added_characters(pair[1], original_pair[1])
        assert in_source == in_target
        assert in_source != Counter()

    # At either end of a sentence.
    first = [source for source, _ in symbols[FIRST_SENTENCE]]
    assert {source.index("Tom") > 0 for source in first} == {True, False}
    assert {source.endswith("cats.") for source in first} == {True, False}


def test_typing_errors_are_only_in_the_source():
    changed = pairs_of("typos=1")
    for (source, target), original in zip(changed, PAIRS, strict=True):
        original_source, original_target = original
        assert target == original_target
        assert abs(len(source) - len(original_source)) <= 2
        assert len(source.split()) == len(original_source.split())


def test_help_and_page_have_the_rates():
    docs = pathlib.Path(__file__).parents[3] / "docs"
    text = (docs / "data.md").read_text(encoding="utf-8")

    for kind, rate in RATES.items():
        assert f"{kind}={rate:g}" in (augment.__doc__ or "")
        assert f"| `{kind}` | {rate:g} |" in text
