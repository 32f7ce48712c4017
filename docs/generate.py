"""Writes the generated sections of the pages in this folder: ``python docs/generate.py``.

They are between ``<!-- generated: NAME -->`` and ``<!-- end -->``. ``tests/unit/test_docs.py``
checks that they are up to date.
"""

import ast
import collections
import functools
import pathlib
import re
import runpy
from collections.abc import Callable, Iterator
from typing import NamedTuple

from jaxformer.config import Config
from jaxformer.data.catalog import CATALOG
from jaxformer.paper.table2 import GPUS, RUNS, SUSTAINED, estimate, report
from jaxformer.paper.table_commands import markdown_table
from jaxformer.training.flops import peak_flops, training_flops

PROJECT = pathlib.Path(__file__).parents[1]
CLAIMS = sorted(path.name for path in PROJECT.glob("docs/claims_*.md"))
PAGES = (
    "LOG.md",
    *CLAIMS,
    "corpora.md",
    "data.md",
    "paper.md",
    "paper_map.md",
    "reproduce.md",
)

# Peak of one chip for dense bfloat16 matmuls, in FLOP/s, from its maker's data sheet.
PEAKS = {
    "TPU v5e": peak_flops("TPU v5 lite"),
    "TPU v6e": peak_flops("TPU v6 lite"),
    "H100 SXM": peak_flops("NVIDIA H100"),
    "H200 SXM": peak_flops("NVIDIA H200"),
}
# Seconds per step of 24,576 tokens on either side: docs/training_speed.md, benchmarks/train.py.
MEASURED = {"H100 SXM": {"base": 0.0373, "big": 0.0850}}
# Assumptions of the estimates: rows of this length, full batches, and two fractions of the peak.
SENTENCE = 32
SHARES = (0.4, 0.1)
CONFIGS = ("base", "big", "base_fr", "big_fr")
PAPER_RUNS = {run.row: run for run in RUNS}

Departure = tuple[str, str]
Documented = ast.Module | ast.ClassDef | ast.FunctionDef
_DEPARTURE = re.compile(r"Departs from the paper: (.*?)(?=\n\n|\nMeasured:|\Z)", re.DOTALL)


def load_config(name: str) -> Config:
    """Returns an experiment of ``configs/``."""
    module = runpy.run_path(str(PROJECT / "configs" / f"{name}.py"))
    return Config.from_dict(module["get_config"]().to_dict())


def step_flops(name: str) -> int:
    """Returns the FLOPs of one training step on a full batch."""
    config = load_config(name)
    rows = config.data.tokens_per_batch // SENTENCE
    return training_flops(config.model, rows, SENTENCE, SENTENCE)


def hours(name: str, peak: float, share: float) -> float:
    """Returns the estimated hours of a whole run at this fraction of this peak."""
    steps = load_config(name).training.steps
    seconds = step_flops(name) * steps / (peak * share)
    return seconds / 3600


def costs() -> str:
    """Returns a table of the operations of each run, beside the paper's own estimate."""
    header = (
        "config",
        "steps",
        "operations per step",
        "total",
        "the paper's estimate",
        "ours / paper's",
    )
    rows = []
    for name in CONFIGS:
        steps = load_config(name).training.steps
        flops = step_flops(name)
        total = flops * steps

        formula = "-"
        ratio = "-"
        if name in PAPER_RUNS:
            hours_of_paper = PAPER_RUNS[name].hours
            theirs = estimate(hours_of_paper)
            product = f"{hours_of_paper:g} h x {GPUS} x {SUSTAINED:.2g}".replace("e+", "e")
            formula = f"{product} = {theirs:.1e}"
            ratio = f"{total / theirs:.0%}"

        rows.append((f"`{name}`", f"{steps:,}", f"{flops:.2e}", f"{total:.1e}", formula, ratio))
    return markdown_table(header, rows)


def estimates() -> str:
    """Returns a table of the time of each run on each machine, as a range, and of measurements."""
    names = [f"`{name}`" for name in CONFIGS]
    header = ("machine", "peak, TFLOP/s", *names, "measured")

    rows = []
    for chip, chip_peak in PEAKS.items():
        most = 16 if "TPU" in chip else 8
        for count in (1, most):
            machine = chip if count == 1 else f"{count} x {chip}"
            peak = chip_peak * count
            spans = [_span(name, peak) for name in CONFIGS]
            rows.append((machine, f"{peak / 1e12:,.0f}", *spans, _measured(machine)))
    return markdown_table(header, rows)


def _measured(machine: str) -> str:
    """Returns the time of all steps of the runs at the speed measured on the machine."""
    runs = []
    for name, seconds in MEASURED.get(machine, {}).items():
        total = load_config(name).training.steps * seconds
        runs.append(f"`{name}` {total / 3600:.2g} h")

    if not runs:
        return "not measured yet"
    return ", ".join(runs) + ", by the speed of single steps"


def _span(name: str, peak: float) -> str:
    """Returns the range of hours of a run with two digits; in minutes if it ends below an hour."""
    least, most = (hours(name, peak, share) for share in SHARES)
    if most >= 1:
        return f"{_two_digits(least)} to {_two_digits(most)} h"
    return f"{_two_digits(60 * least)} to {_two_digits(60 * most)} min"


def _two_digits(number: float) -> str:
    rounded = float(f"{number:.2g}")
    return f"{rounded:g}"


def departures() -> str:
    """Returns a list of the departures from the paper that docstrings state."""
    return "\n".join(f"- `{place}`: {text}" for place, text in stated_departures())


def stated_departures() -> list[Departure]:
    """Returns places and texts of all paragraphs "Departs from the paper:" in docstrings."""
    configs = sorted(PROJECT.glob("configs/*.py"))
    modules = sorted(PROJECT.glob("jaxformer/**/*.py"))

    found: list[Departure] = []
    for path in [*configs, *modules]:
        found += _departures_of(path)
    return found


def _departures_of(path: pathlib.Path) -> Iterator[Departure]:
    relative = path.relative_to(PROJECT)
    if relative.parts[0] == "configs":
        place = relative.as_posix()
    else:
        in_package = relative.with_suffix("").parts[1:]
        place = ".".join(in_package).removesuffix(".__init__")

    tree = ast.parse(path.read_text(encoding="utf-8"))
    for name, node in _documented(tree):
        document = ast.get_docstring(node) or ""
        for text in _DEPARTURE.findall(document):
            on_a_line = text.replace("\n", " ").replace("``", "`")
            yield ".".join([place, *name]), on_a_line


def _documented(
    node: Documented,
    name: tuple[str, ...] = (),
) -> Iterator[tuple[tuple[str, ...], Documented]]:
    yield name, node
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            yield from _documented(child, (*name, child.name))


def corpora() -> str:
    """Returns a table of the public corpora."""
    rows = []
    for name, corpus in CATALOG.items():
        command = f"`jaxformer data {name}`"
        rows.append((command, f"`{corpus.folder}/`", corpus.size, corpus.license))
    return markdown_table(("command", "folder", "size", "license of the text"), rows)


def origins() -> str:
    """Returns a table of the files to download, with ``*`` for the numbers of a series."""
    rows = []
    for corpus in CATALOG.values():
        for name, url in corpus.urls.items():
            known = f"`{corpus.hashes[name]}`" if name in corpus.hashes else "none"
            address = _name_series(f"`{url}`")
            place = _name_series(f"`{corpus.downloads}/{name}`")
            rows.append((address, place, known))

    header = ("address", "place below the data folder", "hash that is checked")
    different = dict.fromkeys(rows)
    return markdown_table(header, different)


def _name_series(path: str) -> str:
    return re.sub(r"train-\d{5}", "train-*", path)


def prepared() -> str:
    """Returns a table of the prepared files of known hash."""
    rows = []
    for corpus in CATALOG.values():
        for name, digest in corpus.files.items():
            if digest:
                rows.append((f"`{corpus.folder}/{name}`", f"`{digest}`"))
    return markdown_table(("file", "SHA-256"), rows)


def table2() -> str:
    """Returns the output of ``python -m jaxformer.paper.table2`` without its title."""
    _, _, table = report().partition("\n\n")
    return table


def claim(name: str) -> str:
    """Returns the output of ``python -m jaxformer.paper.claims NAME``, as it was written."""
    return (PROJECT / "docs" / "claims" / f"{name}.md").read_text(encoding="utf-8")


class LogEntry(NamedTuple):
    """An entry of the log, and the packages that it is about."""

    page: str  # relative to this folder
    date: str
    heading: str
    packages: list[str]

    @property
    def link(self) -> str:
        """The heading as a link to the entry."""
        anchor = re.sub(r"[^\w\- ]", "", self.heading.lower()).replace(" ", "-")
        return f"[{self.heading}]({self.page}#{anchor})"


def log_entries() -> Iterator[LogEntry]:
    """Yields the entries of all years, the newest first."""
    for path in sorted(PROJECT.glob("docs/log/*.md"), reverse=True):
        page = f"log/{path.name}"
        _, *dates = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.M)
        for day in dates:
            date, *texts = re.split(r"^### ", day, flags=re.M)
            for text in texts:
                heading, _, body = text.partition("\n\n")
                first_line, _, _ = body.partition("\n")
                packages = re.findall(r"`(.+?)`", first_line)
                yield LogEntry(page, date.strip(), heading, packages=packages)


def log() -> str:
    """Returns a table of the log's entries for each package, in alphabetical order."""
    rows_of = collections.defaultdict[str, list[tuple[str, str]]](list)
    for entry in log_entries():
        for package in dict.fromkeys(entry.packages):
            rows_of[package].append((entry.date, entry.link))

    sections = []
    for package, rows in sorted(rows_of.items()):
        table = markdown_table(("date", "entry"), rows)
        sections.append(f"### `{package}`\n\n{table}")
    return "\n".join(sections)


SECTIONS: dict[str, Callable[[], str]] = {
    "log": log,
    "corpora": corpora,
    "origins": origins,
    "prepared": prepared,
    "costs": costs,
    "estimates": estimates,
    "departures": departures,
    "table2": table2,
}
for path in PROJECT.glob("docs/claims/*.md"):
    SECTIONS[f"claim_{path.stem}"] = functools.partial(claim, path.stem)


def generated(page: str) -> str:
    """Returns the text of a page with all generated sections up to date."""

    def section(match: re.Match[str]) -> str:
        make = SECTIONS[match[2]]
        text = make().strip()
        return f"{match[1]}\n\n{text}\n\n<!-- end -->"

    return re.sub(r"(<!-- generated: (\w+) -->).*?<!-- end -->", section, page, flags=re.S)


def main() -> None:
    """Writes all pages."""
    for name in PAGES:
        path = pathlib.Path(__file__).with_name(name)
        page = path.read_text(encoding="utf-8")
        path.write_text(generated(page), encoding="utf-8")


if __name__ == "__main__":
    main()
