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

SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
SMALL += " fifteen sixteen seventeen eighteen nineteen"
TIES = "twenty thirty forty fifty sixty seventy eighty ninety"
ENGLISH = {word: number for number, word in enumerate(SMALL.split())}
ENGLISH |= {word: 10 * number for number, word in enumerate(TIES.split(), 2)}
DIGITS = "ein zwei drei vier fünf sechs sieben acht neun"
UNITS = {"eins": 1} | {word: number for number, word in enumerate(DIGITS.split(), 1)}
GERMAN_TEENS = "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"
TEENS = {word: number for number, word in enumerate(GERMAN_TEENS.split(), 10)}
GERMAN_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
TENS = {word: 10 * number for number, word in enumerate(GERMAN_TENS.split(), 2)}


def read_english(words):
    """Evaluates the words from left to right."""
    total = group = 0
    for word in re.split(r"[ -]", words):
        if word == "thousand":
            total, group = group * 1000, 0
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
    value = read_german(thousands) * 1000 if thousands else 0
    value += UNITS[hundreds] * 100 if hundreds else 0
    units, tens = "|".join(UNITS), "|".join(TENS)
    if match := re.fullmatch(f"(?:({units})und)?({tens})", below):
        return value + (UNITS[match[1]] if match[1] else 0) + TENS[match[2]]
    return value + {"": 0, **UNITS, **TEENS}[below]


def test_known_numbers():
    assert [(number, spell_english(number), spell_german(number)) for number, *_ in KNOWN] == KNOWN


def test_spelled_numbers_follow_the_rules_and_read_back():
    for number in [*range(2000), *random.Random(0).sample(range(1_000_000), 5000)]:
        words, word = spell_english(number), spell_german(number)
        assert (read_english(words), read_german(word)) == (number, number)
        # "Eins" is only at the end of a word.
        assert re.fullmatch(r"[a-zäöüß]+", word)
        assert "eins" not in word[:-4]
        assert word.endswith("eins") == (number % 100 == 1)
        # "And" precedes tens and units of larger numbers.
        groups = (number // 1000, number % 1000)
        expected = sum(group > 100 and group % 100 > 0 for group in groups)
        expected += groups[0] > 0 and 0 < groups[1] < 100
        assert words.split().count("and") == expected


def test_splits_share_no_number_and_span_all_magnitudes():
    train, held_out = numbers_in("train"), numbers_in("held_out")
    assert (len(set(train)), len(set(held_out))) == (20_000, 500)
    assert not set(train) & set(held_out)
    assert set(range(100)) <= set(train)
    # So do the first hundred, which validation translates.
    for some in (held_out, held_out[:100]):
        assert {len(str(n)) for n in some} == {3, 4, 5, 6}


def test_corpus_is_deterministic_and_symmetric():
    pairs = list(NumeralsCorpus().pairs("held_out"))
    assert pairs == list(NumeralsCorpus().pairs("held_out"))
    assert [(de, en) for en, de in pairs] == list(NumeralsCorpus("de", "en").pairs("held_out"))


def test_unknown_splits_and_languages():
    with pytest.raises(UserError, match="has the splits train and held_out: got 'validation'"):
        NumeralsCorpus().pairs("validation")
    with pytest.raises(UserError, match="is in en and de: got 'fr'"):
        NumeralsCorpus("en", "fr")


def test_written_to_files(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["numerals", "held_out", f"--directory={tmp_path / 'new'}"])
    main()
    files = sorted((tmp_path / "new").iterdir())
    assert [path.name for path in files] == ["held_out.de", "held_out.en"]
    lines = (path.read_text("utf-8").splitlines() for path in files)
    assert list(zip(*lines, strict=True)) == list(NumeralsCorpus("de", "en").pairs("held_out"))
