"""All results of byte pair encoding on one word, for every way to break ties."""

import collections
import itertools
import pathlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim
from jaxformer.paper.table_commands import markdown_table

TEXT = "aaabdaaabac"
UNSEEN = "cabcab"  # shows that other merges are other tokenizers
_NAMES = "ZYXWVU"


class Result(NamedTuple):
    """The merges of a run, such as ("Z", "aa"), and the text after each of them."""

    merges: tuple[tuple[str, str], ...]
    texts: tuple[str, ...]


def measure() -> list[Result]:
    return list(results(TEXT, _NAMES))


def results(text: str, names: str) -> Iterator[Result]:
    """Yields a result for each sequence of choices among the most frequent pairs."""
    counts = pair_counts(text)
    most = max(counts.values(), default=0)
    if most < 2:
        yield Result((), ())
        return

    for pair, count in counts.items():
        if count == most:
            merged = text.replace(pair, names[0])
            for rest in results(merged, names[1:]):
                yield Result(((names[0], pair), *rest.merges), (merged, *rest.texts))


def pair_counts(text: str) -> dict[str, int]:
    """Counts the pairs of neighbors; ``aaa`` has two ``aa``."""
    return collections.Counter(left + right for left, right in itertools.pairwise(text))


def encode(text: str, merges: Iterable[tuple[str, str]]) -> str:
    """Applies merges to a text, in the order in which they were learned."""
    for name, pair in merges:
        text = text.replace(pair, name)
    return text


def report(figures: list[Result]) -> str:
    rows = []
    for result in figures:
        merges = ", ".join(f"{name} = {pair}" for name, pair in result.merges)
        unseen = encode(UNSEEN, result.merges)
        rows.append([merges, " → ".join(result.texts), str(len(result.texts[-1])), unseen])

    rounds = [_counts(text) for text in (TEXT, *figures[0].texts[:1])]
    table = markdown_table(["merges", "text", "symbols", UNSEEN], rows)
    return (
        f"{TEXT}, {len(TEXT)} symbols. Pairs of the first round: {rounds[0]}. Pairs of the second: "
        f"{rounds[1]}. The last column is an unseen text, encoded with the merges.\n\n{table}"
    )


def _counts(text: str) -> str:
    return ", ".join(f"{pair} {count}" for pair, count in pair_counts(text).items())


def draw(figures: list[Result], path: pathlib.Path) -> None:
    lines = {}
    for result in figures:
        label = ", ".join(pair for _, pair in result.merges)
        encoded = [encode(UNSEEN, result.merges[:count]) for count in range(len(result.merges) + 1)]
        lines[label] = {count: len(text) for count, text in enumerate(encoded)}
    draw_panels([Panel(f"Symbols of the unseen text {UNSEEN}", "merges", lines)], path)


CLAIM = Claim(
    name="bpe",
    place=110,
    says="Byte pair encoding of aaabdaaabac gives XdXac.",
    measure=measure,
    report=report,
    draw=draw,
)
