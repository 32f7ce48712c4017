"""Pages with measurements: their figures are in tables, and entries of the log are complete."""

import re
import runpy

import pytest

from ..printed import DOCS, PROJECT, name, prose, read

LOG = sorted(DOCS.glob("log/*.md"))
MEASURED = [DOCS / f"{page}.md" for page in ("measured", "distillation", "multi30k", "scaling")]
GENERATE = runpy.run_path(str(DOCS / "generate.py"))
MOST = 3  # numbers in a sentence

# A sentence may name as many of these as it needs: they say which, not how much.
DATE = r"\d{4}-\d\d-\d\d"
YEAR = r"(?:19\d\d|20[0-3]\d)(?!\w|[.,]\d)"
VERSION = r"\d+(?:\.\d+){2,}|(?:jax|jaxlib|libtpu|pip|PyTorch|Python|transformers) \d+(?:\.\d+)*"
LABEL = r"(?:beam(?: of)?|seed|section|equation|table|figure)"
LABELS = rf"(?i:{LABEL} \d+(?:\.\d+)*|{LABEL}s (?:\d+, )*\d+ (?:and|or) \d+)"
NAMES = re.compile(rf"(?<![\w.])(?:{DATE}|{YEAR}|{VERSION}|{LABELS})")
# "1,000", "0.5", "2e-5" and "2^23" are one number each, and so are sizes, "64 x 32", and layers,
# "6 + 6"; "int8", "H100" and "8c81d1e" are none.
ONE = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+|\^\d+(?:\.\d+)?)?(?![\w^]|[.,]\d)"
NUMBER = re.compile(rf"(?<![\w.,^]){ONE}(?: [x+] {ONE})*")


def sentences(text):
    """Returns the sentences of a page outside code, headings and tables; items of lists end one."""
    text = re.sub(r"``.*?``|`[^`]*`", "CODE", text)
    text = re.sub(r"\[([^\]]*)\]\([^)\s]*\)", r"\1", text)

    not_prose = re.compile(r"\||#|<!--")
    lines = [line for line in text.splitlines() if not not_prose.match(line)]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )", "\n".join(lines))

    ends = re.compile(r"""(?<=[.!?])["*)]*\s+(?=["*(\[]*[A-Z\d])""")
    found = []
    for paragraph in paragraphs:
        found += ends.split(paragraph.strip())
    return list(filter(None, found))


def numbers(sentence):
    """Returns the numbers of a sentence that are measurements, settings or sizes."""
    return NUMBER.findall(NAMES.sub("NAME", sentence))


@pytest.mark.parametrize("page", [*MEASURED, DOCS / "LOG.md", *LOG], ids=name)
def test_figures_are_in_tables(page):
    too_many = {}
    for sentence in sentences(prose(page)):
        figures = numbers(sentence)
        if len(figures) > MOST:
            too_many[sentence] = figures
    assert too_many == {}


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (
            "It takes 1,843 ms of 2.5 s, 30 % of 2e-5 or 2^23.",
            ["1,843", "2.5", "30", "2e-5", "2^23"],
        ),
        ("On 2026-11-28, jax 0.12.0.1 and PyTorch 2.13 took 5 s.", ["5"]),
        ("Kim and Rush 2016, section 5.4 and Table 3, with a beam of 4 on an H100, int8.", []),
        ("Seeds 1, 2 and 3 reached 42.69, 43.16 and 42.10.", ["42.69", "43.16", "42.10"]),
        (
            "With a beam of 4 and 12.5 s, 64 x 32 and 6 + 6 layers, at 8c81d1e.",
            ["12.5", "64 x 32", "6 + 6"],
        ),
    ],
)
def test_names_are_no_numbers(sentence, expected):
    assert numbers(sentence) == expected


def test_tables_code_and_lists_are_not_one_sentence():
    page = "# 1 2\n\nIt took `5 s` here.\nThen 2 s\nmore. Done:\n\n| 1 | 2 |\n\n- 3\n- [4](5.md)\n"
    assert sentences(page) == ["It took CODE here.", "Then 2 s\nmore.", "Done:", "- 3", "- 4"]


@pytest.mark.parametrize("page", LOG, ids=name)
def test_entries_of_the_log_are_complete(page):
    _, *entries = re.split(r"^### ", read(page), flags=re.M)
    for entry in entries:
        title, _, _ = entry.partition("\n")
        question = entry.find("**Question.**")
        answer = entry.find("**Answer.**")
        kept = entry.find("**Kept.**")
        assert 0 < question < answer < kept, title


def test_entries_of_the_log_are_about_packages():
    known = {path.stem for path in PROJECT.glob("jaxformer/[a-z]*")}
    known |= {path.name for path in PROJECT.iterdir()}
    for entry in GENERATE["log_entries"]():
        assert entry.packages
        assert set(entry.packages) <= known


def test_the_newest_entries_of_the_log_are_first():
    entries = list(GENERATE["log_entries"]())
    dates = [entry.date for entry in entries]
    assert dates == sorted(dates, reverse=True)
    for entry in entries:
        year = entry.date[:4]
        assert entry.page == f"log/{year}.md"
