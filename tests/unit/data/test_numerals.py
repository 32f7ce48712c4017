"""Numerals against parsers of both languages, and the splits of the corpus."""

import random
import re

import pytest

from jaxformer.data.numerals import NumeralsCorpus, main, numbers_in, spell_english, spell_german
from jaxformer.errors import UserError

KNOWN = [
    (0, "zero", "null"),
    (17, "seventeen", "siebzehn"),
    (30, "thirty", "dreißig"),
    (66, "sixty-six", "sechsundsechzig"),
    (101, "one hundred and one", "einhunderteins"),
    (247, "two hundred and forty-seven", "zweihundertsiebenundvierzig"),
    (1_001, "one thousand and one", "eintausendeins"),
    (21_000, "twenty-one thousand", "einundzwanzigtausend"),
]

SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
TIES = "twenty thirty forty fifty sixty seventy eighty ninety"
ENGLISH = {word: number for number, word in enumerate(SMALL.split())}
ENGLISH |= {word: 10 * number for number, word in enumerate(TIES.split(), start=2)}

GERMAN_DIGITS = "ein zwei drei vier fünf sechs sieben acht neun"
GERMAN_TEENS = "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"
GERMAN_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
DIGITS = GERMAN_DIGITS.split()
UNITS = {"eins": 1}
UNITS |= {word: number for number, word in enumerate(DIGITS, start=1)}
TEENS = {word: number for number, word in enumerate(GERMAN_TEENS.split(), start=10)}
TENS = {word: 10 * number for number, word in enumerate(GERMAN_TENS.split(), start=2)}


def read_english(words):
    """Evaluates the words from left to right."""
    total = 0
    group = 0
    for word in re.split(r"[ -]", words):
        if word == "thousand":
            total = group * 1000
            group = 0
        elif word == "hundred":
            group *= 100
        elif word != "and":
            group += ENGLISH[word]
    return total + group


def read_german(word):
    """Parses the word by regular expressions, from the largest magnitude down."""
    if word == "null":
        return 0

    thousands, _, rest = word.rpartition("tausend")
    hundreds, _, below = rest.rpartition("hundert")
    value = 0
    if thousands:
        value += read_german(thousands) * 1000
    if hundreds:
        value += UNITS[hundreds] * 100

    units = "|".join(UNITS)
    tens = "|".join(TENS)
    match = re.fullmatch(f"(?:({units})und)?({tens})", below)
    if not below:
        return value
    if not match:
        small = UNITS | TEENS
        return value + small[below]
    if match[1]:
        value += UNITS[match[1]]
    return value + TENS[match[2]]


def test_known_numbers():
    for number, english, german in KNOWN:
        assert spell_english(number) == english
        assert spell_german(number) == german


def test_spelled_numbers_follow_the_rules_and_read_back():
    large = random.Random(0).sample(range(1_000_000), 5000)
    for number in [*range(2000), *large]:
        words = spell_english(number)
        word = spell_german(number)
        assert read_english(words) == number
        assert read_german(word) == number

        # "Eins" is only at the end of a word.
        assert re.fullmatch(r"[a-zäöüß]+", word)
        assert "eins" not in word[:-4]
        assert word.endswith("eins") == (number % 100 == 1)

        # "And" precedes tens and units of larger numbers.
        thousands = number // 1000
        rest = number % 1000
        expected = 0
        for group in (thousands, rest):
            if group > 100 and group % 100 > 0:  # one hundred and one
                expected += 1
        if thousands > 0 and 0 < rest < 100:  # one thousand and one
            expected += 1
        assert words.split().count("and") == expected


def test_splits_share_no_number_and_span_all_magnitudes():
    train = numbers_in("train")
    held_out = numbers_in("held_out")

    assert len(set(train)) == 20_000
    assert len(set(held_out)) == 500
    assert not set(train) & set(held_out)
    assert set(range(100)) <= set(train)

    # So do the first hundred, which validation translates.
    for some in (held_out, held_out[:100]):
        assert {len(str(n)) for n in some} == {3, 4, 5, 6}


def test_corpus_is_deterministic_and_symmetric():
    pairs = list(NumeralsCorpus().pairs("held_out"))
    assert pairs == list(NumeralsCorpus().pairs("held_out"))

    swapped = [(german, english) for english, german in pairs]
    assert swapped == list(NumeralsCorpus("de", "en").pairs("held_out"))


def test_unknown_splits_and_languages():
    with pytest.raises(UserError, match="has the splits train and held_out: got 'validation'"):
        NumeralsCorpus().pairs("validation")
    with pytest.raises(UserError, match="is in en and de: got 'fr'"):
        NumeralsCorpus("en", "fr")


def test_written_to_files(tmp_path, monkeypatch):
    folder = tmp_path / "new"
    monkeypatch.setattr("sys.argv", ["numerals", "held_out", f"--directory={folder}"])
    main()

    german, english = sorted(folder.iterdir())
    assert german.name == "held_out.de"
    assert english.name == "held_out.en"

    german_lines = german.read_text("utf-8").splitlines()
    english_lines = english.read_text("utf-8").splitlines()
    pairs = list(zip(german_lines, english_lines, strict=True))
    assert pairs == list(NumeralsCorpus("de", "en").pairs("held_out"))
