"""A generated corpus of English and German number words, "seven" -> "sieben".

It needs no download, and is large enough to test generalization: the held-out numbers are not in
the training split. Write a split to files, for ``jaxformer evaluate``:

    python -m jaxformer.data.numerals held_out --directory=DIR
"""

import argparse
import hashlib
import pathlib
import sys
from collections.abc import Iterator

import numpy as np

from jaxformer.errors import UserError, exit_code
from jaxformer.files import local_path, write_file

SPLITS = ("train", "held_out")

# For each magnitude: first number, end of the range, numbers held out, numbers in training. All
# numbers below 100 are for training, since they teach the words themselves.
_MAGNITUDES = (
    (0, 100, 0, 100),
    (100, 1_000, 40, 860),
    (1_000, 10_000, 110, 3_000),
    (10_000, 100_000, 150, 6_000),
    (100_000, 1_000_000, 200, 10_040),
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
# Number: English word, German word.
_WORDS = dict(zip(_NUMBERS, zip(_ENGLISH.split(), _GERMAN.split(), strict=True), strict=True))


def spell_english(number: int) -> str:
    """Spells a number from 0 to 999,999 in English, with the British "and".

    >>> spell_english(247), spell_english(1005)
    ('two hundred and forty-seven', 'one thousand and five')
    """
    if number in _WORDS:
        return _WORDS[number][0]
    if number < 100:
        return f"{spell_english(number - number % 10)}-{spell_english(number % 10)}"
    size, word = (1000, "thousand") if number >= 1000 else (100, "hundred")
    count, rest = divmod(number, size)
    spelled = f"{spell_english(count)} {word}"
    if not rest:
        return spelled
    return f"{spelled}{' and' if rest < 100 else ''} {spell_english(rest)}"


def spell_german(number: int) -> str:
    """Spells a number from 0 to 999,999 in German, as one word, with "ein" ("einhundert").

    >>> spell_german(247), spell_german(1001)
    ('zweihundertsiebenundvierzig', 'eintausendeins')
    """
    # "ein" inside the word, "eins" at its end.
    return _german_stem(number) + ("s" if number % 100 == 1 else "")


def _german_stem(number: int) -> str:
    if number in _WORDS:
        return _WORDS[number][1]
    if number < 100:
        return f"{_german_stem(number % 10)}und{_german_stem(number - number % 10)}"
    size, word = (1000, "tausend") if number >= 1000 else (100, "hundert")
    count, rest = divmod(number, size)
    return _german_stem(count) + word + (_german_stem(rest) if rest else "")


_SPELLERS = {"en": spell_english, "de": spell_german}


class NumeralsCorpus:
    """Number words below one million; the splits "train" and "held_out" share no number."""

    target_symbols = False

    def __init__(self, source_language: str = "en", target_language: str = "de") -> None:
        for language in (source_language, target_language):
            if language not in _SPELLERS:
                raise UserError(
                    f"the numerals corpus is in en and de: got {language!r} as data.source_language"
                    " or data.target_language"
                )
        self._spellers = (_SPELLERS[source_language], _SPELLERS[target_language])

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields the numbers of a split in both languages, with all magnitudes mixed."""
        source, target = self._spellers
        return ((source(number), target(number)) for number in numbers_in(split))

    def fingerprint(self, split: str) -> str:
        text = "".join(f"{source}\t{target}\n" for source, target in self.pairs(split))
        return hashlib.sha256(text.encode()).hexdigest()


def numbers_in(split: str) -> list[int]:
    """Returns the numbers of a split, the same every time."""
    if split not in SPLITS:
        raise UserError(f"the numerals corpus has the splits {' and '.join(SPLITS)}: got {split!r}")
    chosen = []
    for low, end, held_out, training in _MAGNITUDES:
        of_split = slice(held_out) if split == "held_out" else slice(held_out, held_out + training)
        chosen.append(low + _permutation(end - low)[of_split])
    every = np.concatenate(chosen)
    return every[_permutation(len(every))].tolist()


def _permutation(count: int) -> np.ndarray:
    # NumPy guarantees the stream of raw bits across versions, but not shuffle's.
    return np.argsort(np.random.PCG64(count).random_raw(count), kind="stable")


def main() -> None:
    """Writes one split to SPLIT.en and SPLIT.de."""
    parser = argparse.ArgumentParser(description="Write number words to text files.")
    parser.add_argument("split", choices=SPLITS)
    parser.add_argument("--directory", type=local_path, default=pathlib.Path())
    options = parser.parse_args()
    for language, spell in _SPELLERS.items():
        path = options.directory / f"{options.split}.{language}"
        write_file(path, "".join(f"{spell(n)}\n" for n in numbers_in(options.split)).encode())
        print(path)


if __name__ == "__main__":
    if code := exit_code(main):
        sys.exit(code)
