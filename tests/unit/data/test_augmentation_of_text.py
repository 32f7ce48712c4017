"""Variants of sentence pairs: what each kind changes, and what it keeps."""

import pathlib
import re
from collections import Counter

import pytest

from jaxformer.cli.commands.augment import augment
from jaxformer.data.augmentation import RATES, parse_rates, variants
from jaxformer.errors import UserError

from ...runs import write_pairs

PAIRS = [
    ("Tom has three cats.", "Tom hat drei Katzen."),
    ("I met Mary in 1999!", "Ich traf Mary 1999!"),
    ("Is it far?", "Ist es weit?"),
] * 100


def of_first(pairs):
    """Returns the variants of the first sentence, which is every third."""
    return pairs[::3]


def pairs_of(rates, pairs=PAIRS, seed=0, **options):
    return list(variants(pairs, parse_rates(rates), seed, **options))


def test_rates():
    changed = pairs_of("capitals=0.3")
    capitals = [source.isupper() for source, _ in changed]
    assert capitals == [target.isupper() for _, target in changed]
    assert 65 < sum(capitals) < 115  # about 0.3 of the 300 pairs

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
    counts = set()
    for source, _ in changed[:-1]:
        marks = re.findall("[.!?]", source)
        counts.add(len(marks))
    assert counts == {2, 3, 4, 5}


def test_numbers_are_equal_on_both_sides_as_each_language_writes_them():
    german_marks = str.maketrans(",.", ".,")
    for source, target in of_first(pairs_of("number=1")):
        number = re.fullmatch(r"Tom has (\S+) cats\.", source)[1]
        other = re.fullmatch(r"Tom hat (\S+) Katzen\.", target)[1]
        assert number.translate(german_marks) == other

    _, _, question, *_ = PAIRS
    without_number = [question]
    assert pairs_of("number=1", without_number) == without_number

    french = pairs_of("number=1", [("7", "7")] * 99, languages=("en", "fr"))
    assert any("\u202f" in target and "," in source for source, target in french)


def test_copied_words_are_equal_on_both_sides():
    for source, target in of_first(pairs_of("copy=1")):
        word = source.removesuffix(" has three cats.")
        assert word == target.removesuffix(" hat drei Katzen.")
        assert not source.startswith("Tom ")


def test_symbols_are_added_to_both_sides():
    symbols = pairs_of("symbol=1")

    for pair, before in zip(symbols, PAIRS, strict=True):
        added = []
        for text, original in zip(pair, before, strict=True):
            assert Counter(original) <= Counter(text)
            more = Counter(text) - Counter(original)
            added.append(more - Counter(" "))
        to_source, to_target = added
        assert to_source == to_target
        assert to_source != Counter()

    # Some are at the beginning of a sentence, and others at its end.
    sources = [source for source, _ in of_first(symbols)]
    assert {source.startswith("Tom") for source in sources} == {True, False}
    assert {source.endswith("cats.") for source in sources} == {True, False}


def test_typing_errors_are_only_in_the_source():
    changed = pairs_of("typos=1")
    for pair, before in zip(changed, PAIRS, strict=True):
        source, target = pair
        source_before, target_before = before
        assert target == target_before
        assert abs(len(source) - len(source_before)) <= 2
        assert len(source.split()) == len(source_before.split())


def test_help_and_page_have_the_rates():
    docs = pathlib.Path(__file__).parents[3] / "docs"
    text = (docs / "data.md").read_text(encoding="utf-8")

    for kind, rate in RATES.items():
        assert f"{kind}={rate:g}" in (augment.__doc__ or "")
        assert f"| `{kind}` | {rate:g} |" in text
