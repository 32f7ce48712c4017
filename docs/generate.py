"""Writes the generated sections of the pages in this folder: ``python docs/generate.py``.

They are between ``<!-- generated: NAME -->`` and ``<!-- end -->``. ``tests/unit/test_docs.py``
checks that they are up to date.
"""

import ast
import pathlib
import re
import runpy
from collections.abc import Callable, Iterator
from typing import NamedTuple

from jaxformer.config import Config
from jaxformer.data.catalog import CATALOG
from jaxformer.paper.table2 import GPUS, RUNS, SUSTAINED, estimate, report
from jaxformer.training.flops import peak_flops, training_flops

PROJECT = pathlib.Path(__file__).parents[1]
PAGES = ("LOG.md", "data.md", "paper.md", "paper_map.md", "reproduce.md")

# Peak of one chip for dense bfloat16 matmuls, in FLOP/s, from its maker's data sheet.
PEAKS = {
    "TPU v5e": peak_flops("TPU v5 lite"),
    "TPU v6e": peak_flops("TPU v6 lite"),
    "H100 SXM": peak_flops("NVIDIA H100"),
    "H200 SXM": peak_flops("NVIDIA H200"),
}
# Seconds per step of 24,576 tokens on either side, from benchmarks/train.py (docs/scaling.md).
MEASURED = {"H100 SXM": {"base": 0.0373, "big": 0.0850}}
# Assumptions of the estimates: rows of this length, full batches, and two fractions of the peak.
SENTENCE = 32
SHARES = (0.4, 0.1)
CONFIGS = ("base", "big", "base_fr", "big_fr")
PAPER_RUNS = {run.row: run for run in RUNS}

Departure = tuple[str, str]


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
    return step_flops(name) * load_config(name).training.steps / (peak * share) / 3600


def costs() -> str:
    """Returns a table of the operations of each run, beside the paper's own estimate."""
    rows = [
        "| config | steps | operations per step | total | the paper's estimate | ours / paper's |",
        "|---|---|---|---|---|---|",
    ]
    for name in CONFIGS:
        steps = load_config(name).training.steps
        total = step_flops(name) * steps
        paper = "- | -"
        if name in PAPER_RUNS:
            theirs = estimate(PAPER_RUNS[name].hours)
            how = f"{PAPER_RUNS[name].hours:g} h x {GPUS} x {SUSTAINED:.2g}"
            paper = f"{how.replace('e+', 'e')} = {theirs:.1e} | {total / theirs:.0%}"
        rows.append(f"| `{name}` | {steps:,} | {step_flops(name):.2e} | {total:.1e} | {paper} |")
    return "\n".join(rows)


def estimates() -> str:
    """Returns a table of the time of each run on each machine, as a range, and of measurements."""
    names = " | ".join(f"`{name}`" for name in CONFIGS)
    rows = [
        f"| machine | peak, TFLOP/s | {names} | measured |",
        "|---|---|" + "---|" * (len(CONFIGS) + 1),
    ]
    for chip, peak in PEAKS.items():
        for count in (1, 16 if "TPU" in chip else 8):
            machine = chip if count == 1 else f"{count} x {chip}"
            spans = (_span(*(hours(n, peak * count, s) for s in SHARES)) for n in CONFIGS)
            cells = (machine, f"{peak * count / 1e12:,.0f}", *spans, _measured(machine))
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _measured(machine: str) -> str:
    """Returns the time of all steps of the runs at the speed measured on the machine."""
    runs = [
        f"`{name}` {load_config(name).training.steps * seconds / 3600:.2g} h"
        for name, seconds in MEASURED.get(machine, {}).items()
    ]
    return ", ".join(runs) + ", by the speed of single steps" if runs else "not measured yet"


def _span(least: float, most: float) -> str:
    """Formats a range of hours with two digits; in minutes if it ends below an hour."""
    unit, scale = ("h", 1) if most >= 1 else ("min", 60)
    low, high = (f"{float(f'{time * scale:.2g}'):g}" for time in (least, most))
    return f"{low} to {high} {unit}"


def departures() -> str:
    """Returns a list of the departures from the paper that docstrings state."""
    return "\n".join(f"- `{place}`: {text}" for place, text in stated_departures())


def stated_departures() -> list[Departure]:
    """Returns places and texts of all paragraphs "Departs from the paper:" in docstrings."""
    files = [*sorted(PROJECT.glob("configs/*.py")), *sorted(PROJECT.glob("jaxformer/**/*.py"))]
    return [departure for path in files for departure in _departures_of(path)]


def _departures_of(path: pathlib.Path) -> Iterator[Departure]:
    relative = path.relative_to(PROJECT)
    if relative.parts[0] == "configs":
        place = relative.as_posix()
    else:
        place = ".".join(relative.with_suffix("").parts[1:]).removesuffix(".__init__")
    for name, node in _documented(ast.parse(path.read_text(encoding="utf-8"))):
        document = ast.get_docstring(node) or ""
        for text in re.findall(
            r"Departs from the paper: (.*?)(?=\n\n|\nMeasured:|\Z)", document, re.S
        ):
            yield ".".join([place, *name]), text.replace("\n", " ").replace("``", "`")


def _documented(
    node: ast.Module | ast.ClassDef | ast.FunctionDef, name: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], ast.Module | ast.ClassDef | ast.FunctionDef]]:
    yield name, node
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            yield from _documented(child, (*name, child.name))


def corpora() -> str:
    """Returns a table of the public corpora."""
    rows = [
        "| command | folder | size | license of the text |",
        "|---|---|---|---|",
    ]
    for name, corpus in CATALOG.items():
        cells = (f"`jaxformer data {name}`", f"`{corpus.folder}/`", corpus.size, corpus.license)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def origins() -> str:
    """Returns a table of the files to download, with ``*`` for the numbers of a series."""
    rows = ["| address | place below the data folder | hash that is checked |", "|---|---|---|"]
    for corpus in CATALOG.values():
        for name, url in corpus.urls.items():
            known = f"`{corpus.hashes[name]}`" if name in corpus.hashes else "none"
            row = f"| `{url}` | `{corpus.downloads}/{name}` | {known} |"
            rows.append(re.sub(r"train-\d{5}", "train-*", row))
    return "\n".join(dict.fromkeys(rows))


def prepared() -> str:
    """Returns a table of the prepared files of known hash."""
    rows = ["| file | SHA-256 |", "|---|---|"]
    for corpus in CATALOG.values():
        for name, digest in corpus.files.items():
            if digest:
                rows.append(f"| `{corpus.folder}/{name}` | `{digest}` |")
    return "\n".join(rows)


def table2() -> str:
    """Returns the output of ``python -m jaxformer.paper.table2`` without its title."""
    return report().partition("\n\n")[2].strip()


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
                line = body.partition("\n")[0]
                yield LogEntry(page, date.strip(), heading, packages=re.findall(r"`(.+?)`", line))


def log() -> str:
    """Returns a table of the log's entries for each package, in alphabetical order."""
    entries = [*log_entries()]
    packages = sorted({package for entry in entries for package in entry.packages})
    sections: list[str] = []
    for package in packages:
        rows = [f"| {each.date} | {each.link} |" for each in entries if package in each.packages]
        sections.append("\n".join([f"### `{package}`", "", "| date | entry |", "|---|---|", *rows]))
    return "\n\n".join(sections)


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


def generated(page: str) -> str:
    """Returns the text of a page with all generated sections up to date."""

    def section(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{SECTIONS[match[2]]()}\n\n<!-- end -->"

    return re.sub(r"(<!-- generated: (\w+) -->).*?<!-- end -->", section, page, flags=re.S)


def main() -> None:
    """Writes all pages."""
    for name in PAGES:
        path = pathlib.Path(__file__).with_name(name)
        path.write_text(generated(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
