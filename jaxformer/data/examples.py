"""The first example of a split in one line, which shows how its files were read."""

from collections.abc import Sequence

_WIDTH = 40  # characters of a text
_NAME_WIDTH = 60  # characters of the name of a split


def quote(text: str, width: int = _WIDTH) -> str:
    r"""Returns the beginning of a text in quotation marks, with unprintable characters escaped.

    >>> print(quote("A\tdog\u202e runs."), quote("A dog runs.", 5))
    "A\tdog\u202e runs." "A dog..."
    """
    shown = ""
    for character in text:
        if len(shown) >= width:
            return f'"{shown}..."'

        if character.isprintable():
            shown += character
        else:
            shown += repr(character)[1:-1]

    return f'"{shown}"'


def describe_example(split: str, sides: Sequence[tuple[str, str]]) -> str:
    """Returns a line for the log, given the name and the text of each side of an example.

    >>> describe_example("my/train", [("en", "A dog runs."), ("de", "Ein Hund läuft.")])
    'data: my/train: en "A dog runs." -> de "Ein Hund läuft."'
    """
    named = [f"{name} {quote(text)}".lstrip() for name, text in sides]
    texts = " -> ".join(named)
    return f"data: {_shorten(split)}: {texts}"


def _shorten(split: str) -> str:
    """Returns the end of a long name, which distinguishes it best."""
    if len(split) <= _NAME_WIDTH:
        return split
    return f"...{split[-_NAME_WIDTH:]}"
