"""The pages of docs/ agree with the code, tests, commands and figures that they name."""

import importlib.util
import pathlib
import pkgutil
import re
import runpy

import pytest

from jaxformer.cli.arguments import parse_arguments
from jaxformer.paper.table3_report import load_results, report

PROJECT = pathlib.Path(__file__).parents[2]
GENERATE = runpy.run_path(str(PROJECT / "docs" / "generate.py"))
MAP = (PROJECT / "docs" / "paper_map.md").read_text(encoding="utf-8")
REPRODUCE = (PROJECT / "docs" / "reproduce.md").read_text(encoding="utf-8")

SECTIONS = """
1 2 3 3.1 3.2 3.2.1 3.2.2 3.2.3 3.3 3.4 3.5 4
5 5.1 5.2 5.3 5.4 6 6.1 6.2 6.3 7
"""
PAPER = {
    *(f"section {number}" for number in SECTIONS.split()),
    *(f"equation {number}" for number in range(1, 4)),
    *(f"table {number}" for number in range(1, 5)),
    *(f"figure {number}" for number in range(1, 6)),
}


def map_rows():
    """Returns the cells of the map: paper, content, code, config, command, test."""
    table = MAP.split("\n| paper |")[1].split("\n\n")[0]
    rows = []
    for line in table.split("\n")[2:]:
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert len(cells) == 6
        rows.append(cells)
    return rows


def names(column):
    """Returns the names in backticks in a column of the map."""
    found = set()
    for row in map_rows():
        found |= set(re.findall(r"`(.+?)`", row[column]))
    return sorted(found)


def test_map_covers_the_whole_paper():
    found = set()
    for row in map_rows():
        found |= set(row[0].lower().split("; "))

    assert found == PAPER


def test_code_and_configs_of_the_map_exist():
    for name in names(2):
        pkgutil.resolve_name(f"jaxformer.{name}")

    for name in names(3):  # ``base.py``, or a variant such as ``base.py:tiny``
        file, _, variant = name.partition(":")
        runpy.run_path(str(PROJECT / "configs" / file))["get_config"](variant)


def test_commands_of_the_map_exist():
    for command in names(4):
        match command.split():
            case ["jaxformer", name]:
                with pytest.raises(SystemExit, match="0"):
                    parse_arguments([name, "--help"])
            case ["python", "-m", module]:
                assert importlib.util.find_spec(module) is not None
            case [script]:
                assert (PROJECT / script).is_file()
            case _:
                pytest.fail(f"no command of any known kind: {command}")


def test_tests_of_the_map_exist():
    for name in names(5):
        path, _, function = name.partition("::")
        text = (PROJECT / "tests" / path).read_text(encoding="utf-8")
        assert not function or f"\ndef {function}(" in text, name


@pytest.mark.parametrize("page", GENERATE["PAGES"])
def test_generated_parts_are_up_to_date(page):
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
    assert text == GENERATE["generated"](text), "run: python docs/generate.py"


def test_table3_matches_its_rows():
    folder = PROJECT / "docs" / "table3"
    written = (folder / "table3.md").read_text(encoding="utf-8")

    expected = report(load_results(folder / "rows"))
    advice = "run: python -m jaxformer.paper.table3 --report --workdir docs/table3"
    assert written == expected, advice


def test_every_departure_is_listed():
    phrase = "Departs from the paper:"
    stated = 0
    for path in [*PROJECT.glob("configs/*.py"), *PROJECT.glob("jaxformer/**/*.py")]:
        stated += path.read_text(encoding="utf-8").count(phrase)

    assert len(GENERATE["stated_departures"]()) == stated
    _, _, departures = MAP.partition("## Departures")
    assert departures.count("\n- `") == stated


def commands():
    """Returns every line of the page's command blocks."""
    lines = []
    for block in re.findall(r"```(?:console)?\n(.*?)```", REPRODUCE, flags=re.S):
        lines += [line for line in block.strip().split("\n") if line]
    return lines


@pytest.mark.parametrize("name", GENERATE["CONFIGS"])
def test_page_and_configs_have_the_same_commands(name):
    document = runpy.run_path(str(PROJECT / "configs" / f"{name}.py"))["__doc__"]
    assert "docs/reproduce.md" in document

    document = re.sub(r"(?<=\S) +", " ", document)  # Python has joined the continued lines.
    own = re.findall(r"^    ((?:jaxformer|python train.py) .*)$", document, flags=re.M)
    own = [line for line in own if "runs/mine" not in line]
    # The page is for the installed package, and a config is for a clone.
    clone = r"python train\.py --config=configs/(\w+)\.py --workdir="
    installed = [re.sub(clone, r"jaxformer train \1 --workdir ", line) for line in own]

    of_page = [line for line in commands() if f"runs/{name}" in line.split() + line.split("=")]
    assert installed == of_page
    keep = GENERATE["load_config"](name).training.keep_checkpoints
    assert of_page[1].endswith(f"--last {keep}")

    (bleu,) = re.findall(r"(\d\d\.\d) BLEU", document)
    assert re.search(rf"\| `configs/{name}.py` \| newstest2014 \| {bleu} \|", REPRODUCE)
