"""Numerals against parsers of both languages, and the splits of the corpus."""

import random
import re

import pytest

from jaxformer.data.numerals import (
    NumeralsCorpus,
    main,
    numbers_in,
    spell_chinese,
    spell_english,
    spell_german,
)
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


def read_chinese(words):
    """Adds up the digits, each times the unit after it."""
    myriads, _, rest = words.rpartition("万")
    value = 10_000 * read_chinese(myriads) if myriads else 0
    digit = 1 if rest.startswith("十") else 0
    for character in rest:
        if character in "零一二三四五六七八九":
            digit = "零一二三四五六七八九".index(character)
        else:
            value += digit * {"十": 10, "百": 100, "千": 1000}[character]
            digit = 0
    return value + digit


def test_chinese_numbers_read_back_and_have_zeros_only_in_gaps():
    known = {0: "零", 10: "十", 12: "十二", 20: "二十", 110: "一百一十", 205: "二百零五"}
    known |= {1010: "一千零一十", 7001: "七千零一", 10_500: "一万零五百", 100_000: "十万"}
    known |= {120_305: "十二万零三百零五", 305_210: "三十万五千二百一十", 910_010: "九十一万零一十"}
    for number, words in known.items():
        assert spell_chinese(number) == words

    large = random.Random(0).sample(range(1_000_000), 5000)
    for number in [*range(1, 2000), *large]:
        words = spell_chinese(number)
        assert read_chinese(words) == number
        # A zero for each gap of zeros between two other digits of the lower or the upper four.
        lower = str(number % 10_000)
        gaps = re.findall("0+(?=[1-9])", lower.zfill(4) if number >= 10_000 else lower)
        gaps += re.findall("0+(?=[1-9])", str(number // 10_000)) if number >= 10_000 else []
        assert words.count("零") == len(gaps)


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


def test_files_of_other_languages(tmp_path, monkeypatch):
    arguments = ["held_out", f"--directory={tmp_path}", "--languages", "zh"]
    monkeypatch.setattr("sys.argv", ["numerals", *arguments])
    main()
    [path] = tmp_path.iterdir()
    assert path.name == "held_out.zh"
    first, *_ = path.read_text("utf-8").splitlines()
    assert read_chinese(first) == numbers_in("held_out")[0]


def test_unknown_splits_and_languages():
    with pytest.raises(UserError, match="has the splits train and held_out: got 'validation'"):
        NumeralsCorpus().pairs("validation")
    with pytest.raises(UserError, match="is in en, de and zh: got 'fr'"):
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
