"""Characters that readers do not see, or take for others, in text to train on."""

import re

# Kind of characters, and the characters as a part of a regular expression. Most of them occur in
# the news text of WMT, so that no kind is an error.
KINDS = {
    # Other programs end lines here, and then pair the wrong lines. Python's splitlines does.
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
BLANKS = ("line separators", "tabs or foreign blanks")
INVISIBLE = ("invisible characters", "directional marks", "control characters")
# Invisible characters that change how their neighbors look.
SHAPING = (
    r"[\u180b-\u180f\u200c\u200d\ufe00-\ufe0f\U00013430-\U0001343f\U000e0020-\U000e007f"
    r"\U000e0100-\U000e01ef]"
)
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
