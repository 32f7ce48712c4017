"""Variants of sentence pairs as people type them: capitals, typos, several sentences a line.

A model that is trained only on tidy text breaks on such lines. Most kinds, and their rates, are
from Mozilla's recipe for the translation models of Firefox.
"""

import collections
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

from jaxformer.data.numerals import spell_english, spell_german
from jaxformer.errors import UserError

T = TypeVar("T")
Pair: TypeAlias = tuple[str, str]

_WORD = re.compile(r"\b[^\W_]{2,}\b")
_NUMBER = re.compile(r"\d[\d.,\u202f]*\d|\d")
# Small numbers in words, and the thousands separator and decimal sign of numbers in digits.
_WORDS = {
    "en": [spell_english(number) for number in range(2, 13)],
    "de": [spell_german(number) for number in range(2, 13)],
}
_SIGNS = {
    "en": ",.",
    "de": ".,",
    "es": ".,",
    "it": ".,",
    "nl": ".,",
    "pt": ".,",
    "fr": "\u202f,",
}
_QUOTES = {"en": "“”", "de": "„“", "fr": "«»"}
# First and last letter of other scripts.
_SCRIPTS = ("ая", "αω", "את", "ءي", "अह", "ぁん", "一龥", "가힣", "àÿ")
_SYMBOLS = "😀😂🥰👍🎉🚀❤€£¥©®™°§¶•→←↑↓≤≥±÷½√∞♥★☆✓✗♪☕⚠"
_ADDRESSES = (
    "https://www.{}.com/{}",
    "https://{}.{}/{}",
    "{}.org",
    "{}@{}.{}",
    "{}@{}.net",
    "#{}",
    "@{}",
)
_PLACEHOLDERS = (
    "{{{}}}",
    "%s",
    "%d",
    "%{}",
    "<{}>",
    "${}",
    "[{}]",
    "{}_1",
)
_MARKS = ".!?,;:-()[]{}/*+=&%$#@~^_|<>…—"


# Kinds in their order, with the fraction of lines that get each; a line may get several.
RATES = {
    "join": 0.15,
    "number": 0.3,
    "copy": 0.15,
    "quotes": 0.03,
    "no_mark": 0.2,
    "typos": 0.05,
    "title": 0.05,
    "capitals": 0.07,
    "symbol": 0.04,
    "alone": 0.01,
}


def parse_rates(text: str) -> dict[str, float]:
    """Parses kinds with their rates, such as "capitals=0.07,no_mark=0.2"; refuses others."""
    rates = {}
    for word in text.split(","):
        name, _, rate = word.partition("=")
        is_rate = re.fullmatch(r"0?\.\d+|[01](\.0*)?", rate)
        if name not in RATES or not is_rate:
            raise UserError(
                "expected kinds with their rates, such as capitals=0.07,no_mark=0.2: got "
                f"{word}; the kinds are {', '.join(RATES)}"
            )
        rates[name] = float(rate)
    return rates


def variants(
    pairs: Iterable[Pair],
    rates: Mapping[str, float] = RATES,
    seed: int = 0,
    languages: tuple[str, str] = ("en", "de"),
    changed: collections.Counter[str] | None = None,
) -> Iterator[Pair]:
    """Yields variants of sentence pairs; the same seed gives the same ones.

    Pairs in one line are used up, so there may be fewer lines than pairs; see ``docs/data.md``.
    ``changed`` counts the lines that each kind has changed.

    >>> list(variants([("Hi, Tom.", "Hallo, Tom.")], {"no_mark": 1, "capitals": 1}))
    [('HI, TOM', 'HALLO, TOM')]
    """
    if changed is None:
        changed = collections.Counter()
    editor = _Editor(seed, languages)
    stream = iter(pairs)

    kinds_of_one_pair = [kind for kind in RATES if kind != "join"]

    for pair in stream:
        is_joined = editor.chance(rates.get("join", 0))
        if is_joined:
            count = editor.draw.randint(1, 4)
            rest = list(itertools.islice(stream, count))
            sources, targets = zip(pair, *rest, strict=True)
            pair = " ".join(sources), " ".join(targets)
            changed["join"] += bool(rest)

        for kind in kinds_of_one_pair:
            rate = rates.get(kind, 0)
            if not editor.chance(rate):
                continue

            change = getattr(editor, kind)
            variant = change(*pair)
            changed[kind] += variant != pair
            pair = variant

        yield pair


class _Editor:
    """Changes both sides of a pair in one way, by its own random numbers."""

    def __init__(self, seed: int, languages: tuple[str, str]) -> None:
        self.draw = random.Random(seed)
        self.languages = languages

    def chance(self, rate: float) -> bool:
        return self.draw.random() < rate

    def of_languages(self, table: Mapping[str, T], default: T) -> tuple[T, T]:
        """Returns the entries of a table for the languages of source and target."""
        source, target = self.languages
        source_entry = table.get(source, default)
        target_entry = table.get(target, default)
        return source_entry, target_entry

    def number(self, source: str, target: str) -> Pair:
        """Replaces a number that both sides have, in words or in digits."""
        pair = source, target

        numbers_of_target = _NUMBER.findall(target)
        others = {_digits(number): number for number in numbers_of_target}
        for number in _NUMBER.findall(source):
            other = others.get(_digits(number))
            if other:
                new = self.make_number()
                return _replace(pair, (number, other), new)

        source_words, target_words = self.of_languages(_WORDS, [])
        for word, other in zip(source_words, target_words, strict=False):
            if _has_word(source, word) and _has_word(target, other):
                new = self.make_number()
                return _replace(pair, (word, other), new)

        return pair

    def make_number(self) -> Pair:
        """Returns a number of one to nine digits, as each language writes it."""
        digits = self.draw.randint(1, 9)
        whole = self.draw.randrange(2, 10**digits)
        first = str(whole)
        second = str(whole)

        # The separator of thousands, and the decimal sign.
        source_signs, target_signs = self.of_languages(_SIGNS, ",.")
        source_separator, source_point = source_signs
        target_separator, target_point = target_signs
        if whole >= 1000 and self.chance(0.4):
            grouped = f"{whole:,}"
            first = grouped.replace(",", source_separator)
            second = grouped.replace(",", target_separator)
        elif self.chance(0.15):
            fraction = self.draw.randrange(100)
            first = f"{whole}{source_point}{fraction}"
            second = f"{whole}{target_point}{fraction}"

        minus = "-" if self.chance(0.05) else ""
        return minus + first, minus + second

    def copy(self, source: str, target: str) -> Pair:
        words = _WORD.findall(source)
        names = [word for word in words if word != word.lower()]
        shared = [word for word in names if _has_word(target, word)]
        if not shared:
            return source, target

        name = self.draw.choice(shared)
        other = self.make_word(source)
        return _replace((source, target), (name, name), (other, other))

    def make_word(self, text: str) -> str:
        """Returns something that is copied, such as an address with words of the text."""
        draw = self.draw

        num_syllables = draw.randint(1, 4)
        syllables = [self.make_syllable() for _ in range(num_syllables)]
        name = "".join(syllables)
        words_of_text = [word.lower() for word in _WORD.findall(text)]
        parts = [name, name[:3], *words_of_text]

        # All are drawn, whichever is chosen, in this order: the same seed gives the same variants.
        first, last = draw.choice(_SCRIPTS)
        letters = range(ord(first), ord(last) + 1)
        foreign = draw.choices(letters, k=draw.randint(1, 6))
        symbol = draw.choice(_SYMBOLS)
        times = draw.choice([1, 1, 2, 3])
        emoji = draw.randint(0x1F300, 0x1FAFF)
        arrow = draw.randint(0x2190, 0x2BFF)
        picture = draw.choice([emoji, arrow])
        digits = draw.randint(1, 7)
        number = draw.randrange(10**digits)
        template = draw.choice(_ADDRESSES + _PLACEHOLDERS)
        fillers = draw.choices(parts, k=3)

        weighted = [
            (10, name.capitalize()),
            (3, "".join(map(chr, foreign))),
            (2, symbol * times),
            (1, chr(picture)),
            (2, str(number)),
            (4, template.format(*fillers)),
        ]
        weights, words = zip(*weighted, strict=True)
        [word] = draw.choices(words, weights)
        return word

    def make_syllable(self) -> str:
        consonant = self.draw.choice("bdfghjklmnprstvwz")
        vowel = self.draw.choice("aeiou")
        final = self.draw.choice("  lnrst")  # often none
        return consonant + vowel + final.strip()

    def quotes(self, source: str, target: str) -> Pair:
        source_marks, target_marks = self.of_languages(_QUOTES, "“”")
        if self.chance(0.7):
            marks = self.draw.choice(['""', '""', "''"])
            source_marks = marks
            target_marks = marks

        quoted_source = _enclose(source, source_marks)
        quoted_target = _enclose(target, target_marks)
        return quoted_source, quoted_target

    def no_mark(self, *pair: str) -> Pair:
        def remove_marks(text: str) -> str:
            return re.sub(r"[.!?…。]+$", "", text)

        return _both(remove_marks, pair)

    def title(self, *pair: str) -> Pair:
        def capitalize_words(text: str) -> str:
            return re.sub(r"(?<![\w'\u2019])\w", lambda letter: letter[0].upper(), text)

        return _both(capitalize_words, pair)

    def capitals(self, *pair: str) -> Pair:
        return _both(str.upper, pair)

    def typos(self, source: str, target: str) -> Pair:
        words = source.split(" ")
        count = self.draw.randint(1, 2)
        for _ in range(count):
            place = self.draw.randrange(len(words))
            word = words[place]
            if len(word) > 3:
                words[place] = self.misspell(word)

        return " ".join(words), target

    def misspell(self, word: str) -> str:
        """Returns the word with two letters exchanged, or one left out, doubled or replaced."""
        at = self.draw.randrange(1, len(word) - 1)
        code = self.draw.randint(ord("a"), ord("z"))
        letter = chr(code)
        before = word[:at]
        first, second = word[at : at + 2]
        after = word[at + 2 :]

        exchanged = second + first
        left_out = second
        doubled = first + first + second
        replaced = letter + second
        middle = self.draw.choice([exchanged, left_out, doubled, replaced])
        return before + middle + after

    def symbol(self, source: str, target: str) -> Pair:
        # The start, the end, before the final mark, or after the first word.
        place = self.draw.choice(["^()", "()$", "([.!?]?)$", r"(?<=\w)() "])
        word = self.make_word(source)

        def add(text: str) -> str:
            added = re.sub(place, lambda match: f" {word}{match[1]} ", text, count=1)
            return added.strip()

        return _both(add, (source, target))

    def alone(self, source: str, target: str) -> Pair:
        length = self.draw.randint(1, 3)
        marks = "".join(self.draw.choices(_MARKS, k=length))
        word = self.draw.choice([marks, self.make_word(source)])
        number = self.make_number()

        pair = (word, word)
        return self.draw.choice([pair, pair, number])


def _both(change: Callable[[str], str], pair: Sequence[str]) -> Pair:
    source, target = pair
    return change(source), change(target)


def _replace(pair: Pair, words: Pair, others: Pair) -> Pair:
    """Replaces a word of each side everywhere."""
    sides = []
    for text, word, other in zip(pair, words, others, strict=True):
        escaped = re.escape(word)
        parts = re.split(rf"(?<!\w){escaped}(?!\w)", text)
        sides.append(other.join(parts))
    source, target = sides
    return source, target


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"\b{word}\b", text) is not None


def _digits(number: str) -> str:
    return re.sub(r"\D", "", number)


def _enclose(text: str, marks: str) -> str:
    """Returns a text between an opening and a closing mark."""
    opening, closing = marks
    return f"{opening}{text}{closing}"
