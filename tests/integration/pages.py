"""Python blocks of the pages of docs/, by the heading that they stand under."""

import pathlib
import re
from typing import Any

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def sections(page: str) -> dict[str, list[str]]:
    """Returns the blocks under each heading of a page, in order, of headings that have any."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^#+ (.*?)\n(.*?)(?=^#+ |\Z)", _hide_comments(text), flags=re.S | re.M)
    blocks = {
        heading: [
            block.replace("\0", "#")
            for block in re.findall(r"```python\n(.*?)```", body, flags=re.S)
        ]
        for heading, body in found
    }
    return {heading: code for heading, code in blocks.items() if code}


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


def _hide_comments(text: str) -> str:
    """Keeps comments that begin a line of code from looking like headings."""
    return re.sub(r"```.*?```", lambda block: block[0].replace("#", "\0"), text, flags=re.S)
