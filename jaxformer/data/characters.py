"""Characters that are invisible or easily confused, and how a tokenizer replaces them.

A model knows nothing about characters outside its training text, and a single one can spoil a
translation. Unicode's NFKC would change too much: it turns "½" into "1/2", even in references.
"""

import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Iterator

# Kinds of characters, as parts of a regular expression. None is an error: most occur in WMT's text.
_KINDS = {
    # Other programs, such as Python's splitlines, end lines here, and then pair the wrong lines.
    "line separators": r"\n-\r\x1c-\x1e\x85\u2028\u2029",
    "tabs or foreign blanks": r"\t\x1f\xa0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000",
    # The default ignorable code points of Unicode, and marks of annotations.
    "invisible characters": r"\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d"
    r"\u2060-\u2065\u206a-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff",
    "directional marks": r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069",
    "control characters": r"\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f",
    "replacement characters": r"\ufffd",
}
_BLANKS = (
    "line separators",
    "tabs or foreign blanks",
)
_INVISIBLE = (
    "invisible characters",
    "directional marks",
    "control characters",
)
# Invisible characters that change how their neighbors look.
_SHAPING = (
    r"[\u180b-\u180f\u200c\u200d\ufe00-\ufe0f\U00013430-\U0001343f\U000e0020-\U000e007f"
    r"\U000e0100-\U000e01ef]"
)
# Compatibility forms that change the meaning: 10² is not 102.
_DISTINCT = ("<super>", "<sub>", "<fraction>", "<circle>")
# Apostrophes, quotation marks and dashes used for one another, the most common first.
_ALIKE = (
    "'\u2019\u2018\u201b\u02bc\u00b4`",
    '"”“„‟«»',
    "-\u2010\u2011\u2012\u2013—―\u2212",
)
# Tabs and line separators too, which would begin another column or line of an output.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PATTERNS = {kind: re.compile(f"[{characters}]") for kind, characters in _KINDS.items()}
_ALL_KINDS = "".join(_KINDS.values())
_UNUSUAL = re.compile(f"[{_ALL_KINDS}]")
_VISIBLE = re.compile(f"[^ {_ALL_KINDS}]")


def unusual_kinds(text: str) -> list[str]:
    r"""Returns the kinds of unusual characters in a text.

    >>> unusual_kinds("10\xa0000 \u200bkm"), unusual_kinds("ten km")
    (['tabs or foreign blanks', 'invisible characters'], [])
    """
    is_plain = text.isascii() and text.isprintable()
    if is_plain or not _UNUSUAL.search(text):
        return []
    return [kind for kind, pattern in _PATTERNS.items() if pattern.search(text)]


def is_blank(text: str) -> bool:
    r"""Returns whether a text has no visible character.

    >>> is_blank(" \u3000\u200b"), is_blank(""), is_blank(" .")
    (True, True, False)
    """
    return not _VISIBLE.search(text)


def replace_controls(text: str) -> str:
    r"""Returns a text with a space for each control character and line separator.

    >>> replace_controls("a\tb\n\x1b[0m\u2028c\xa0d")
    'a b  [0m c\xa0d'
    """
    return _CONTROLS.sub(" ", text)


def normalization_rules(alphabet: set[str]) -> dict[str, str]:
    r"""Returns the strings to replace, and their replacements.

    Whitespace becomes a space, and invisible characters are removed, except for joiners and
    variation selectors of the alphabet. Sequences become the character of the alphabet that they
    compose, as in NFC. Characters outside the alphabet become a compatible form, as in NFKC, or a
    similar quotation mark or dash, if the alphabet has it: the characters of the training text.

    >>> rules = normalization_rules(set("fié?"))
    >>> [rules[text] for text in ("\u00a0", "\u200b", "e\u0301", "ﬁ", "\uff1f")]
    [' ', '', 'é', 'fi', '?']
    """
    kept = {character for character in alphabet if re.fullmatch(_SHAPING, character)}
    rules = _blank_replacements().copy()
    for character in kept:
        rules.pop(character, None)
    known = alphabet - rules.keys() - {" "}

    for character in known:
        rules |= dict.fromkeys(_decompositions(character), character)

    for character, form in _similar_characters():
        if character not in known and known.issuperset(form):
            rules.setdefault(character, form)

    return rules


def visible_characters(text: str) -> str:
    """Returns the visible characters of a text, in the form NFKD, without whitespace."""
    unseen = _blank_replacements().keys() | {" "}
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(character for character in decomposed if character not in unseen)


@functools.cache
def _blank_replacements() -> dict[str, str]:
    """Maps each whitespace character to a space, and each invisible one except NUL to ""."""
    text = "".join(map(chr, range(1, sys.maxunicode + 1)))  # SentencePiece has no rules for NUL.

    replacements = {}
    for kind in (*_BLANKS, *_INVISIBLE):
        new = " " if kind in _BLANKS else ""
        characters = re.findall(f"[{_KINDS[kind]}]", text)
        replacements |= dict.fromkeys(characters, new)
    return replacements


def _decompositions(character: str) -> Iterator[str]:
    """Yields the canonically equivalent sequences, with combining marks in every valid order."""
    base, *marks = unicodedata.normalize("NFD", character)

    for order in itertools.permutations(marks):
        for count in range(len(order)):
            # The first marks are composed with the base, and the others follow.
            first = "".join(order[:count])
            others = "".join(order[count:])
            sequence = unicodedata.normalize("NFC", base + first) + others
            if unicodedata.normalize("NFC", sequence) == character:
                yield sequence


@functools.cache
def _similar_characters() -> list[tuple[str, str]]:
    """Returns pairs of a character and a possible replacement, the best replacement first."""
    found = []
    for group in _ALIKE:
        found += itertools.permutations(group, 2)

    for code in range(0x80, sys.maxunicode + 1):
        character = chr(code)
        kind = unicodedata.decomposition(character).partition(" ")[0]
        if not kind or kind in _DISTINCT:
            continue
        found.append((character, unicodedata.normalize("NFKC", character)))
        found.append((character, unicodedata.normalize("NFKD", character)))

    return found
