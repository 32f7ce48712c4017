"""A generated corpus of English, German and Chinese number words, "seven" -> "sieben".

It needs no download, and is large enough to test generalization: the held-out numbers are not in
the training split. Write a split to files, for ``jaxformer evaluate``:

    python -m jaxformer.data.numerals held_out --directory=DIR
"""

import argparse
import hashlib
import pathlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxformer.errors import UserError, exit_code
from jaxformer.files import local_path, write_file

SPLITS = ("train", "held_out")


class _Magnitude(NamedTuple):
    """The numbers from ``start`` to ``stop - 1``, and how many of them each split has."""

    start: int
    stop: int
    held_out: int
    train: int


# All numbers below 100 are for training, since they teach the words themselves.
_MAGNITUDES = (
    _Magnitude(0, 100, held_out=0, train=100),
    _Magnitude(100, 1_000, held_out=40, train=860),
    _Magnitude(1_000, 10_000, held_out=110, train=3_000),
    _Magnitude(10_000, 100_000, held_out=150, train=6_000),
    _Magnitude(100_000, 1_000_000, held_out=200, train=10_040),
)

_NUMBERS = (*range(21), *range(30, 100, 10))
_ENGLISH = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
_GERMAN = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn "
    "sechzehn siebzehn achtzehn neunzehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig "
    "neunzig"
)
_CHINESE_DIGITS = "零一二三四五六七八九"
_ENGLISH_WORDS = dict(zip(_NUMBERS, _ENGLISH.split(), strict=True))
_GERMAN_WORDS = dict(zip(_NUMBERS, _GERMAN.split(), strict=True))


def spell_english(number: int) -> str:
    """Spells a number from 0 to 999,999 in English, with the British "and".

    >>> spell_english(247), spell_english(1005)
    ('two hundred and forty-seven', 'one thousand and five')
    """
    if number in _ENGLISH_WORDS:
        return _ENGLISH_WORDS[number]

    if number < 100:
        ones = number % 10
        tens = number - ones
        return f"{spell_english(tens)}-{spell_english(ones)}"

    if number >= 1000:
        count, rest = divmod(number, 1000)
        spelled = f"{spell_english(count)} thousand"
    else:
        count, rest = divmod(number, 100)
        spelled = f"{spell_english(count)} hundred"

    if rest == 0:
        return spelled
    if rest < 100:
        return f"{spelled} and {spell_english(rest)}"
    return f"{spelled} {spell_english(rest)}"


def spell_german(number: int) -> str:
    """Spells a number from 0 to 999,999 in German, as one word, with "ein" ("einhundert").

    >>> spell_german(247), spell_german(1001)
    ('zweihundertsiebenundvierzig', 'eintausendeins')
    """
    stem = _german_stem(number)
    # "ein" inside the word, "eins" at its end.
    if number % 100 == 1:
        return f"{stem}s"
    return stem


def _german_stem(number: int) -> str:
    if number in _GERMAN_WORDS:
        return _GERMAN_WORDS[number]

    if number < 100:
        ones = number % 10
        tens = number - ones
        return f"{_german_stem(ones)}und{_german_stem(tens)}"

    if number >= 1000:
        count, rest = divmod(number, 1000)
        spelled = f"{_german_stem(count)}tausend"
    else:
        count, rest = divmod(number, 100)
        spelled = f"{_german_stem(count)}hundert"

    if rest == 0:
        return spelled
    return spelled + _german_stem(rest)


def spell_chinese(number: int) -> str:
    """Spells a number from 0 to 999,999 in Chinese, with 二 for every two.

    A zero, 零, stands for any number of zeros between other digits, also of 万, 10,000.

    >>> spell_chinese(247), spell_chinese(1005), spell_chinese(120_300)
    ('二百四十七', '一千零五', '十二万零三百')
    """
    if number == 0:
        return _CHINESE_DIGITS[0]

    myriads, rest = divmod(number, 10_000)
    spelled = _chinese_digits(rest)
    if myriads:
        has_gap = 0 < rest < 1000
        gap = _CHINESE_DIGITS[0] if has_gap else ""
        spelled = f"{_chinese_digits(myriads)}万{gap}{spelled}"

    # Ten at the beginning is 十, and within a number 一十.
    return spelled[1:] if spelled.startswith("一十") else spelled


def _chinese_digits(number: int) -> str:
    """Spells a number below 10,000; nothing for 0."""
    spelled = ""
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit, rest = divmod(number, unit)
        if digit:
            spelled += f"{_CHINESE_DIGITS[digit]}{name}"
        has_gap = digit and 0 < rest < unit // 10
        if has_gap:
            spelled += _CHINESE_DIGITS[0]
        number = rest
    return spelled


_SPELLERS = {"en": spell_english, "de": spell_german, "zh": spell_chinese}


class NumeralsCorpus:
    """Number words below one million; the splits "train" and "held_out" share no number."""

    target_symbols = False

    def __init__(self, source_language: str = "en", target_language: str = "de") -> None:
        for language in (source_language, target_language):
            if language not in _SPELLERS:
                raise UserError(
                    f"the numerals corpus is in en, de and zh: got {language!r} as "
                    "data.source_language or data.target_language"
                )
        self._spellers = (_SPELLERS[source_language], _SPELLERS[target_language])

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields the numbers of a split in both languages, with all magnitudes mixed."""
        spell_source, spell_target = self._spellers
        numbers = numbers_in(split)  # refuses other splits now, and not when the first pair is read
        return ((spell_source(number), spell_target(number)) for number in numbers)

    def fingerprint(self, split: str) -> str:
        digest = hashlib.sha256()
        for source, target in self.pairs(split):
            digest.update(f"{source}\t{target}\n".encode())
        return digest.hexdigest()


def numbers_in(split: str) -> list[int]:
    """Returns the numbers of a split, the same every time."""
    if split not in SPLITS:
        raise UserError(f"the numerals corpus has the splits {' and '.join(SPLITS)}: got {split!r}")

    chosen = []
    for each in _MAGNITUDES:
        size = each.stop - each.start
        mixed = each.start + _permutation(size)
        held_out = mixed[: each.held_out]
        others = mixed[each.held_out :]
        if split == "held_out":
            chosen.append(held_out)
        else:
            chosen.append(others[: each.train])

    numbers = np.concatenate(chosen)
    order = _permutation(len(numbers))
    return numbers[order].tolist()


def _permutation(count: int) -> np.ndarray:
    """Returns the numbers below ``count`` in a random order, the same every time."""
    seed = count
    # NumPy guarantees the stream of raw bits across versions, but not shuffle's.
    keys = np.random.PCG64(seed).random_raw(count)
    return np.argsort(keys, kind="stable")


def main() -> None:
    """Writes one split to a file for each language, SPLIT.en and SPLIT.de by default."""
    parser = argparse.ArgumentParser(description="Write number words to text files.")
    parser.add_argument("split", choices=SPLITS)
    parser.add_argument("--directory", type=local_path, default=pathlib.Path())
    parser.add_argument("--languages", nargs="+", choices=_SPELLERS, default=["en", "de"])
    options = parser.parse_args()

    for language in options.languages:
        spell = _SPELLERS[language]
        path = options.directory / f"{options.split}.{language}"
        lines = [f"{spell(number)}\n" for number in numbers_in(options.split)]
        content = "".join(lines)
        write_file(path, content.encode())
        print(path)


if __name__ == "__main__":
    if code := exit_code(main):
        sys.exit(code)
