"""Inputs that text tools often get wrong, and what becomes of each of their lines."""

from typing import NamedTuple

GOOD, BLANK, NOT_UTF8, TOO_LONG = "good", "blank", "not UTF-8", "expected "


class Nasty(NamedTuple):
    """Bytes of some lines without the last line break, and the kind of each line."""

    content: bytes
    kinds: tuple[str, ...] = (GOOD,)


def _text(text: str) -> Nasty:
    return Nasty(text.encode())


NASTY = {
    "empty": Nasty(b"", (BLANK,)),
    "blanks": Nasty(b"   ", (BLANK,)),
    "200,000 blanks": Nasty(b" " * 200_000, (BLANK,)),
    "empty with CRLF": Nasty(b"\r", (BLANK,)),
    "only line breaks": Nasty(b"\n\n", (BLANK,) * 3),
    "tab": Nasty(b"\t"),
    "tabs between words": Nasty(b"two\thundred\t\tand one"),
    "leading and trailing blanks": Nasty(b"   two hundred  "),
    "CRLF": Nasty(b"two hundred\r"),
    "CR CR": Nasty(b"two hundred\r\r"),
    "lone CR": Nasty(b"two\rhundred"),
    "vertical tab and form feed": Nasty(b"two\x0bhundred\x0cand one"),
    "NUL": Nasty(b"\x00"),
    "NUL within": Nasty(b"two\x00hundred"),
    "control characters": Nasty(bytes(n for n in range(1, 32) if n != 10)),
    "separators of files and records": Nasty(b"two\x1c\x1d\x1e\x1fhundred"),
    "escape sequence": Nasty(b"\x1b[31mtwo\x1b[0m"),
    "delete": Nasty(b"two\x7f"),
    "next line": _text("two\u0085hundred"),
    "line separator": _text("two\u2028hundred"),
    "paragraph separator": _text("two\u2029hundred"),
    "no-break space": _text("two\u00a0hundred"),
    "ideographic space": _text("\u3000"),
    "hair space": _text("two\u200ahundred"),
    "zero-width space": _text("\u200b"),
    "soft hyphen": _text("hun\u00addred"),
    "BOM": _text("\ufefftwo hundred"),
    "BOM within": _text("two\ufeffhundred"),
    "only BOM": _text("\ufeff"),
    "emoji": _text("\U0001f600\U0001f680"),
    "ZWJ sequence": _text("\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"),
    "flag": _text("\U0001f1e9\U0001f1ea"),
    "skin tone": _text("\U0001f44d\U0001f3fd"),
    "combining marks": _text("Z\u0351\u036b\u0343a\u0300\u0301\u0302l\u0334\u0335g\u0336o"),
    "decomposed": _text("zwo\u0308lf"),
    "right to left": _text("\u200f\u05e9\u05dc\u05d5\u05e9 \u05de\u05d0\u05d5\u05ea"),
    "override": _text("\u202etwo hundred\u202c"),
    "Arabic": _text("مئتان وواحد"),
    "Chinese": _text("二百零一"),
    "Thai without spaces": _text("สองร้อยหนึ่ง"),
    "fullwidth": _text("\uff54\uff57\uff4f"),
    "mathematical letters": _text("\U0001d4c9\U0001d4cc\U0001d4c4"),
    "private use": _text("\ue000\U0010fffd"),
    "noncharacters": _text("\ufdd0\uffff\U0010ffff"),
    "replacement character": _text("\ufffd"),
    "space symbol": _text("two▁hundred"),
    "only space symbols": _text("▁ ▁▁"),
    "special tokens": Nasty(b"<s> two </s> <pad> <unk>"),
    "byte pieces": Nasty(b"<0x41> <0x0A> two"),
    "language code": Nasty(b">>fra<< two"),
    "separators of n-best lists": Nasty(b"0 ||| two ||| -1.0"),
    "HTML": Nasty(b"<script>alert('2')</script> &amp; \""),
    "JSON": Nasty(b'{"two": "\\"\\u0041\\n"}'),
    "shell and format": Nasty(b"$(two) `two` %s %n {0} {two}"),
    "path": Nasty(b"../../etc/passwd"),
    "brackets": Nasty(b"(S (NP two) )NP ) XX ("),
    "number": Nasty(b"-1e999 nan inf 0x41"),
    "10,000 tokens": Nasty(b"two " * 10_000, (TOO_LONG,)),
    "long word": Nasty(b"q" * 5_000, (TOO_LONG,)),
    "300 kB without a break": Nasty(b"two " * 75_000, (TOO_LONG,)),
    "1 MB of blanks": Nasty(b" " * 1_000_000, (TOO_LONG,)),
    "Latin-1": Nasty(b"zw\xf6lf", (NOT_UTF8,)),
    "UTF-16": Nasty("two".encode("utf-16"), (NOT_UTF8,)),
    "unpaired surrogate": Nasty(b"two\xed\xa0\x80", (NOT_UTF8,)),
    "surrogate pair": Nasty(b"\xed\xa0\xbd\xed\xb8\x80", (NOT_UTF8,)),
    "overlong slash": Nasty(b"two\xc0\xaf", (NOT_UTF8,)),
    "overlong NUL": Nasty(b"\xc0\x80", (NOT_UTF8,)),
    "beyond Unicode": Nasty(b"\xf4\x90\x80\x80", (NOT_UTF8,)),
    "truncated character": Nasty(b"two\xe2\x82", (NOT_UTF8,)),
    "lone continuation": Nasty(b"\x80two", (NOT_UTF8,)),
    "gzip": Nasty(b"\x1f\x8b\x08\x00", (NOT_UTF8,)),
    "all bytes": Nasty(bytes(range(256)), (GOOD, NOT_UTF8)),
    "CRLF between": Nasty(b"two\r\nhundred", (GOOD, GOOD)),
}

# Every input is followed by a line that a model translates well, and the last has no line break.
ORDINARY = "two hundred and one"
CONTENT = b"".join(nasty.content + f"\n{ORDINARY}\n".encode() for nasty in NASTY.values())[:-1]
KINDS = [kind for nasty in NASTY.values() for kind in (*nasty.kinds, GOOD)]
BAD = [number for number, kind in enumerate(KINDS, start=1) if kind in (NOT_UTF8, TOO_LONG)]
