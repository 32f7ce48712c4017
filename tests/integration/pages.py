"""Python blocks of the pages of docs/, by the heading that they stand under."""

from typing import Any

from ..printed import DOCS as DOCS
from ..printed import blocks


def sections(page: str) -> dict[str, list[str]]:
    """Returns the blocks under each heading of a page, in order, of headings that have any."""
    found: dict[str, list[str]] = {}
    for block in blocks(DOCS / page):
        if block.language == "python":
            under_heading = found.setdefault(block.heading, [])
            under_heading.append(block.text)
    return found


def run(page: str, block: str, names: dict[str, Any]) -> None:
    """Runs a block as it is printed, within the names that earlier ones have defined."""
    exec(compile(block, f"docs/{page}", "exec"), names)


def execute(page: str, *headings: str, **names: Any) -> dict[str, Any]:
    """Runs the blocks under these headings, or all, and returns the names that they define."""
    found = sections(page)
    for heading in headings or found:
        for block in found[heading]:
            run(page, block, names)
    return names
