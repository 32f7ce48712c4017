"""Blocks of the pages that users read, and the shell commands in them."""

import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

PROJECT = pathlib.Path(__file__).parents[1]
DOCS = PROJECT / "docs"
CARD = PROJECT / "jaxformer" / "pretrained" / "README.md"
PAGES = sorted([*PROJECT.glob("*.md"), *DOCS.rglob("*.md"), CARD])
# Languages of blocks with commands.
SHELL = ("console", "sh")


class Block(NamedTuple):
    """A fenced block, and the heading that it stands under."""

    heading: str
    language: str
    text: str


def name(page: pathlib.Path) -> str:
    return page.relative_to(PROJECT).as_posix()


def read(page: pathlib.Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: pathlib.Path) -> list[Block]:
    """Returns the fenced blocks of a page, in order."""
    found: list[Block] = []
    heading = ""
    language = None
    content = []
    for line in read(page).splitlines(keepends=True):
        fence = re.fullmatch(r"```(.*)\n?", line)
        title = re.fullmatch(r"#+ (.*)\n?", line)

        if fence and language is None:
            language = fence[1]
            content = []
        elif fence:
            found.append(Block(heading, language or "", "".join(content)))
            language = None
        elif language is not None:
            content.append(line)
        elif title:
            heading = title[1]
    return found


def prose(page: pathlib.Path) -> str:
    """Returns a page without its blocks."""
    return re.sub(r"^```.*?^```$", "", read(page), flags=re.DOTALL | re.MULTILINE)


def commands(block: Block) -> list[str]:
    """Returns the commands of a shell block; one that continues on the next line is one."""
    joined = block.text.replace("\\\n", "\0")
    lines = [line for line in joined.splitlines() if line.strip()]
    return [line.replace("\0", "\\\n") for line in lines]


def shell_commands(page: pathlib.Path) -> Iterator[str]:
    """Yields all commands of the shell blocks of a page, in order."""
    for block in blocks(page):
        if block.language in SHELL:
            yield from commands(block)


def comment(command: str) -> str:
    """Returns the comment after a command, or "" if there is none."""
    found = re.search(r"\s# +(.*)$", command)
    return found[1] if found else ""
