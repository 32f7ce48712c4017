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

SECTIONS = [
    *("1", "2", "3", "3.1", "3.2", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5", "4"),
    *("5", "5.1", "5.2", "5.3", "5.4", "6", "6.1", "6.2", "6.3", "7"),
]
PAPER = {
    *(f"section {number}" for number in SECTIONS),
    *(f"equation {number}" for number in range(1, 4)),
    *(f"table {number}" for number in range(1, 5)),
    *(f"figure {number}" for number in range(1, 6)),
}


def map_rows():
    """Returns the cells of the map: paper, content, code, config, command, test."""
    table = MAP.split("\n| paper |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.split("\n")]
    assert all(len(row) == 6 for row in rows[2:])
    return rows[2:]


def names(column):
    """Returns the names in backticks in a column of the map."""
    return sorted({name for row in map_rows() for name in re.findall(r"`(.+?)`", row[column])})


def test_map_covers_the_whole_paper():
    found = {item.lower() for row in map_rows() for item in row[0].split("; ")}
    assert found == PAPER


def test_everything_in_the_map_exists():
    for name in names(2):
        pkgutil.resolve_name(f"jaxformer.{name}")
    for name in names(3):  # ``base.py``, or a variant such as ``base.py:tiny``
        file, _, variant = name.partition(":")
        runpy.run_path(str(PROJECT / "configs" / file))["get_config"](variant)
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
    assert written == report(load_results(folder / "rows")), (
        "run: python -m jaxformer.paper.table3 --report --workdir docs/table3"
    )


def test_every_departure_is_listed():
    sources = [*PROJECT.glob("configs/*.py"), *PROJECT.glob("jaxformer/**/*.py")]
    phrase = "Departs from the paper:"
    stated = sum(path.read_text(encoding="utf-8").count(phrase) for path in sources)
    assert (
        stated
        == len(GENERATE["stated_departures"]())
        == MAP.partition("## Departures")[2].count("\n- `")
    )


def commands():
    """Returns every line of the page's command blocks."""
    blocks = re.findall(r"```(?:console)?\n(.*?)```", REPRODUCE, flags=re.S)
    return [line for block in blocks for line in block.strip().split("\n") if line]


@pytest.mark.parametrize("name", GENERATE["CONFIGS"])
def test_page_and_configs_have_the_same_commands(name):
    document = runpy.run_path(str(PROJECT / "configs" / f"{name}.py"))["__doc__"]
    document = re.sub(r"(?<=\S) +", " ", document)  # Python has joined the continued lines.
    own = re.findall(r"^    ((?:jaxformer|python train.py) .*)$", document, flags=re.M)
    # The page is for the installed package, and a config is for a clone.
    clone = r"python train\.py --config=configs/(\w+)\.py --workdir="
    own = [re.sub(clone, r"jaxformer train \1 --workdir ", line) for line in own]
    of_page = [line for line in commands() if f"runs/{name}" in line.split() + line.split("=")]
    assert [line for line in own if "runs/mine" not in line] == of_page
    keep = GENERATE["load_config"](name).training.keep_checkpoints
    assert of_page[1].endswith(f"--last {keep}")
    assert "docs/reproduce.md" in document
    bleu = re.findall(r"(\d\d\.\d) BLEU", document)
    assert len(bleu) == 1
    assert re.search(rf"\| `configs/{name}.py` \| newstest2014 \| {bleu[0]} \|", REPRODUCE)
