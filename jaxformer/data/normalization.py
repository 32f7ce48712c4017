"""Normalization of text to the characters of a training text, for SentencePiece.

A model knows nothing about other characters, and a single one can spoil a translation. Unicode's
NFKC would change too much: it turns "½" into "1/2", also in references.
"""

import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Iterator

from jaxformer.data.characters import BLANKS, INVISIBLE, KINDS, SHAPING

# Compatibility forms that change the meaning: 10² is not 102.
_DISTINCT = ("<super>", "<sub>", "<fraction>", "<circle>")
# Apostrophes, quotation marks and dashes used for one another, the most common first.
_ALIKE = ("'\u2019\u2018\u201b\u02bc\u00b4`", '"”“„‟«»', "-\u2010\u2011\u2012\u2013—―\u2212")


def normalization_rules(alphabet: set[str]) -> dict[str, str]:
    r"""Returns the strings to replace, and their replacements.

    Whitespace becomes a space, and invisible characters are removed, except for joiners and
    variation selectors of the alphabet. Sequences become the character of the alphabet that they
    compose, as in NFC. Characters outside the alphabet become a compatible form, as in NFKC, or a
    similar quotation mark or dash, if the alphabet has it.

    >>> rules = normalization_rules(set("fié?"))
    >>> [rules[text] for text in ("\u00a0", "\u200b", "e\u0301", "ﬁ", "\uff1f")]
    [' ', '', 'é', 'fi', '?']

    Args:
      alphabet: The characters of the training text.
    """
    kept = {c for c in alphabet if re.fullmatch(SHAPING, c)}
    rules = {text: new for text, new in _unseen().items() if text not in kept}
    known = alphabet - rules.keys() - {" "}
    for character in known:
        rules |= dict.fromkeys(_decompositions(character), character)
    for character, form in _similar():
        if character not in known and known.issuperset(form):
            rules.setdefault(character, form)
    return rules


def visible(text: str) -> str:
    """Returns the visible characters of a text, in the form NFKD, without whitespace."""
    unseen = _unseen()
    return "".join(c for c in unicodedata.normalize("NFKD", text) if c != " " and c not in unseen)


@functools.cache
def _unseen() -> dict[str, str]:
    """Returns a space for each whitespace character, and "" for each invisible one but NUL."""
    text = "".join(map(chr, range(1, sys.maxunicode + 1)))  # SentencePiece has no rules for NUL.
    return {
        character: " " if kind in BLANKS else ""
        for kind in (*BLANKS, *INVISIBLE)
        for character in re.findall(f"[{KINDS[kind]}]", text)
    }


def _decompositions(character: str) -> Iterator[str]:
    """Yields the canonically equivalent sequences, with combining marks in every valid order."""
    base, *marks = unicodedata.normalize("NFD", character)
    for order in itertools.permutations(marks):
        for count in range(len(order)):
            start = unicodedata.normalize("NFC", base + "".join(order[:count]))
            sequence = start + "".join(order[count:])
            if unicodedata.normalize("NFC", sequence) == character:
                yield sequence


@functools.cache
def _similar() -> list[tuple[str, str]]:
    """Returns pairs of a character and a form that may replace it, the best form first."""
    found = [pair for group in _ALIKE for pair in itertools.permutations(group, 2)]
    for character in map(chr, range(0x80, sys.maxunicode + 1)):
        kind = unicodedata.decomposition(character).partition(" ")[0]
        if kind and kind not in _DISTINCT:
            found += [(character, unicodedata.normalize(f, character)) for f in ("NFKC", "NFKD")]
    return found
