"""Variants of sentence pairs as people type them: capitals, typos, several sentences a line.

A model that is trained only on tidy text breaks on such lines. Most kinds, and their rates, are
from Mozilla's recipe for the translation models of Firefox.
"""

import collections
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from jaxformer.data.numerals import spell_english, spell_german
from jaxformer.errors import UserError

Pair: TypeAlias = tuple[str, str]

_WORD = re.compile(r"\b[^\W_]{2,}\b")
_NUMBER = re.compile(r"\d[\d.,\u202f]*\d|\d")
# Small numbers in words, and the thousands separator and decimal sign of numbers in digits.
_WORDS = {
    code: [spell(number) for number in range(2, 13)]
    for code, spell in {"en": spell_english, "de": spell_german}.items()
}
_SIGNS = {"en": ",.", "de": ".,", "es": ".,", "it": ".,", "nl": ".,", "pt": ".,", "fr": "\u202f,"}
_QUOTES = {"en": "“”", "de": "„“", "fr": "«»"}
# First and last letter of other scripts.
_SCRIPTS = ("ая", "αω", "את", "ءي", "अह", "ぁん", "一龥", "가힣", "àÿ")
_SYMBOLS = "😀😂🥰👍🎉🚀❤€£¥©®™°§¶•→←↑↓≤≥±÷½√∞♥★☆✓✗♪☕⚠"
# Addresses and placeholders.
_TEMPLATES = (
    *("https://www.{}.com/{}", "https://{}.{}/{}", "{}.org", "{}@{}.{}", "{}@{}.net", "#{}", "@{}"),
    *("{{{}}}", "%s", "%d", "%{}", "<{}>", "${}", "[{}]", "{}_1"),
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
        if name not in RATES or not re.fullmatch(r"0?\.\d+|[01](\.0*)?", rate):
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
    editor, stream = _Editor(seed, languages), iter(pairs)
    changed = collections.Counter() if changed is None else changed
    for pair in stream:
        if editor.chance(rates.get("join", 0)):
            rest = list(itertools.islice(stream, editor.draw.randint(1, 4)))
            source, target = (" ".join(side) for side in zip(pair, *rest, strict=True))
            pair = source, target
            changed["join"] += bool(rest)
        for kind in list(RATES)[1:]:
            if editor.chance(rates.get(kind, 0)):
                variant = getattr(editor, kind)(*pair)
                changed[kind] += variant != pair
                pair = variant
        yield pair


class _Editor:
    """Changes both sides of a pair in one way, by its own random numbers."""

    def __init__(self, seed: int, languages: tuple[str, str]) -> None:
        self.draw, self.languages = random.Random(seed), languages

    def chance(self, rate: float) -> bool:
        return self.draw.random() < rate

    def number(self, source: str, target: str) -> Pair:
        """Replaces a number that both sides have, in words or in digits."""
        others = {re.sub(r"\D", "", number): number for number in _NUMBER.findall(target)}
        for number in _NUMBER.findall(source):
            if other := others.get(re.sub(r"\D", "", number)):
                return _replace((source, target), (number, other), self.make_number())
        words = [_WORDS.get(language, []) for language in self.languages]
        for both in zip(*words, strict=False):
            if all(re.search(rf"\b{w}\b", t) for w, t in zip(both, (source, target), strict=True)):
                return _replace((source, target), both, self.make_number())
        return source, target

    def make_number(self) -> Pair:
        """Returns a number of one to nine digits, as each language writes it."""
        whole = self.draw.randrange(2, 10 ** self.draw.randint(1, 9))
        signs = [_SIGNS.get(language, ",.") for language in self.languages]
        if whole >= 1000 and self.chance(0.4):
            first, second = (f"{whole:,}".replace(",", thousands) for thousands, _ in signs)
        elif self.chance(0.15):
            fraction = self.draw.randrange(100)
            first, second = (f"{whole}{decimal}{fraction}" for _, decimal in signs)
        else:
            first = second = str(whole)
        minus = "-" if self.chance(0.05) else ""
        return minus + first, minus + second

    def copy(self, source: str, target: str) -> Pair:
        names = [word for word in _WORD.findall(source) if word != word.lower()]
        shared = [word for word in names if re.search(rf"\b{word}\b", target)]
        if not shared:
            return source, target
        name, other = self.draw.choice(shared), self.make_word(source)
        return _replace((source, target), (name, name), (other, other))

    def make_word(self, text: str) -> str:
        """Returns something that is copied, such as an address with words of the text."""
        draw = self.draw
        name = "".join(
            draw.choice("bdfghjklmnprstvwz") + draw.choice("aeiou") + draw.choice("  lnrst").strip()
            for _ in range(draw.randint(1, 4))
        )
        parts = [name, name[:3], *map(str.lower, _WORD.findall(text))]
        first, last = draw.choice(_SCRIPTS)
        letters = range(ord(first), ord(last) + 1)
        foreign = "".join(map(chr, draw.choices(letters, k=draw.randint(1, 6))))
        kinds = [
            (10, name.capitalize()),
            (3, foreign),
            (2, draw.choice(_SYMBOLS) * draw.choice([1, 1, 2, 3])),
            (1, chr(draw.choice([draw.randint(0x1F300, 0x1FAFF), draw.randint(0x2190, 0x2BFF)]))),
            (2, str(draw.randrange(10 ** draw.randint(1, 7)))),
            (4, draw.choice(_TEMPLATES).format(*draw.choices(parts, k=3))),
        ]
        weights, words = zip(*kinds, strict=True)
        return draw.choices(words, weights)[0]

    def quotes(self, source: str, target: str) -> Pair:
        marks = [_QUOTES.get(language, "“”") for language in self.languages]
        if self.chance(0.7):
            marks = [self.draw.choice(['""', '""', "''"])] * 2
        first, second = (f"{m[0]}{t}{m[1]}" for m, t in zip(marks, (source, target), strict=True))
        return first, second

    def no_mark(self, *pair: str) -> Pair:
        return _both(lambda text: re.sub(r"[.!?…。]+$", "", text), pair)

    def title(self, *pair: str) -> Pair:
        return _both(lambda text: re.sub(r"(?<![\w'\u2019])\w", lambda m: m[0].upper(), text), pair)

    def capitals(self, *pair: str) -> Pair:
        return _both(str.upper, pair)

    def typos(self, source: str, target: str) -> Pair:
        words = source.split(" ")
        for _ in range(self.draw.randint(1, 2)):
            place = self.draw.randrange(len(words))
            if len(words[place]) > 3:
                words[place] = self.misspell(words[place])
        return " ".join(words), target

    def misspell(self, word: str) -> str:
        """Returns the word with two letters exchanged, or one left out, doubled or replaced."""
        at, letter = self.draw.randrange(1, len(word) - 1), chr(self.draw.randint(97, 122))
        one, two = word[at : at + 2]
        middle = self.draw.choice([two + one, two, one + one + two, letter + two])
        return word[:at] + middle + word[at + 2 :]

    def symbol(self, source: str, target: str) -> Pair:
        # The start, the end, before the final mark, or after the first word.
        place = self.draw.choice(["^()", "()$", "([.!?]?)$", r"(?<=\w)() "])
        word = self.make_word(source)

        def add(text: str) -> str:
            return re.sub(place, lambda match: f" {word}{match[1]} ", text, count=1).strip()

        return _both(add, (source, target))

    def alone(self, source: str, target: str) -> Pair:
        marks = "".join(self.draw.choices(_MARKS, k=self.draw.randint(1, 3)))
        word = self.draw.choice([marks, self.make_word(source)])
        return self.draw.choice([(word, word), (word, word), self.make_number()])


def _both(change: Callable[[str], str], pair: Sequence[str]) -> Pair:
    return change(pair[0]), change(pair[1])


def _replace(pair: Pair, words: Pair, others: Pair) -> Pair:
    """Replaces a word of each side everywhere."""
    first, second = (
        re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", lambda _, other=other: other, text)
        for text, word, other in zip(pair, words, others, strict=True)
    )
    return first, second
