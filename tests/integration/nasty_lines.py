"""Inputs that text tools often get wrong, and what becomes of each of their lines."""

from typing import NamedTuple

GOOD, BLANK, NOT_UTF8, TOO_LONG = "good", "blank", "not UTF-8", "expected "


class Nasty(NamedTuple):
    """Bytes of some lines without the last line break, and the kind of each line."""

    content: bytes
    kinds: tuple[str, ...] = (GOOD,)


NASTY = {
    "empty": Nasty(b"", (BLANK,)),
    "empty with CRLF": Nasty(b"\r", (BLANK,)),
    "only line breaks": Nasty(b"\n\n", (BLANK,) * 3),
    "tab": Nasty(b"\t"),
    "CRLF": Nasty(b"two hundred\r"),
    "lone CR": Nasty(b"two\rhundred"),
    "NUL within": Nasty(b"two\x00hundred"),
    "control characters": Nasty(bytes(n for n in range(1, 32) if n != 10)),
    "next line": Nasty("two\u0085hundred".encode()),
    "line separator": Nasty("two\u2028hundred".encode()),
    "ideographic space": Nasty("\u3000".encode()),
    "zero-width space": Nasty("\u200b".encode()),
    "BOM": Nasty("\ufefftwo hundred".encode()),
    "only BOM": Nasty("\ufeff".encode()),
    "combining marks": Nasty(
        "Z\u0351\u036b\u0343a\u0300\u0301\u0302l\u0334\u0335g\u0336o".encode()
    ),
    "right to left": Nasty("\u200f\u05e9\u05dc\u05d5\u05e9 \u05de\u05d0\u05d5\u05ea".encode()),
    "noncharacters": Nasty("\ufdd0\uffff\U0010ffff".encode()),
    "only space symbols": Nasty("▁ ▁▁".encode()),
    "special tokens": Nasty(b"<s> two </s> <pad> <unk>"),
    "separators of n-best lists": Nasty(b"0 ||| two ||| -1.0"),
    "10,000 tokens": Nasty(b"two " * 10_000, (TOO_LONG,)),
    "1 MB of blanks": Nasty(b" " * 1_000_000, (TOO_LONG,)),
    "Latin-1": Nasty(b"zw\xf6lf", (NOT_UTF8,)),
    "unpaired surrogate": Nasty(b"two\xed\xa0\x80", (NOT_UTF8,)),
    "overlong slash": Nasty(b"two\xc0\xaf", (NOT_UTF8,)),
    "truncated character": Nasty(b"two\xe2\x82", (NOT_UTF8,)),
    "all bytes": Nasty(bytes(range(256)), (GOOD, NOT_UTF8)),
    "CRLF between": Nasty(b"two\r\nhundred", (GOOD, GOOD)),
}

# Every input is followed by a line that a model translates well, and the last has no line break.
ORDINARY = "two hundred and one"
CONTENT = b"".join(nasty.content + f"\n{ORDINARY}\n".encode() for nasty in NASTY.values())[:-1]
KINDS = [kind for nasty in NASTY.values() for kind in (*nasty.kinds, GOOD)]
BAD = [number for number, kind in enumerate(KINDS, start=1) if kind in (NOT_UTF8, TOO_LONG)]
