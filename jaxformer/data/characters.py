"""Characters that readers do not see, or take for others, in text to train on."""

import re

# Kind of characters, and the characters as a part of a regular expression. Most of them occur in
# the news text of WMT, so that no kind is an error.
KINDS = {
    # Other programs end lines here, and then pair the wrong lines. Python's splitlines does.
    "line separators": r"\n-\r\x1c-\x1e\x85\u2028\u2029",
    "tabs or foreign blanks": r"\t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000",
    "invisible characters": r"\xad\u034f\u180e\u200b-\u200d\u2060-\u2064\ufeff",
    "directional marks": r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069",
    "control characters": r"\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f",
    "replacement characters": r"\ufffd",
}
_PATTERNS = {kind: re.compile(f"[{characters}]") for kind, characters in KINDS.items()}
_UNUSUAL = re.compile(f"[{''.join(KINDS.values())}]")
_VISIBLE = re.compile(f"[^ {''.join(KINDS.values())}]")


def unusual_kinds(text: str) -> list[str]:
    r"""Returns the kinds of unusual characters in a text, of :data:`KINDS`.

    >>> unusual_kinds("10\xa0000 \u200bkm"), unusual_kinds("ten km")
    (['tabs or foreign blanks', 'invisible characters'], [])
    """
    if (text.isascii() and text.isprintable()) or not _UNUSUAL.search(text):
        return []
    return [kind for kind, pattern in _PATTERNS.items() if pattern.search(text)]


def is_blank(text: str) -> bool:
    r"""Returns whether a text has no visible character.

    >>> is_blank(" \u3000\u200b"), is_blank(""), is_blank(" .")
    (True, True, False)
    """
    return not _VISIBLE.search(text)
