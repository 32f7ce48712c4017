"""The pages of docs/ agree with the code, tests, commands and figures that they name."""

import ast
import importlib.util
import itertools
import pathlib
import pkgutil
import re
import runpy

import pytest

from jaxformer.cli.arguments import parse
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


def defined(*packages):
    """Returns names of classes, functions, attributes and arguments in the source of packages."""
    kinds = {ast.ClassDef: "name", ast.FunctionDef: "name", ast.Attribute: "attr", ast.arg: "arg"}
    return {
        getattr(node, kinds[type(node)])
        for package in packages
        for path in (PROJECT / "jaxformer" / package).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if type(node) in kinds
    }


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
                    parse([name, "--help"])
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


def test_names_in_the_figures_exist():
    figures = "".join(re.findall(r"```text\n(.*?)```", MAP, flags=re.S))
    camel = re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", figures)
    snake = re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", figures)
    papers = {"SoftMax", "MatMul", "d_model"}
    assert len(set(snake)) > 12
    assert {*camel, *snake} - papers <= defined("models", "nn", "training", "search")


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


def test_estimates_by_hand():
    """Two operations per parameter and token, times three, plus attention scores."""
    d, n, length, batch = 512, 6, 32, 25_000 // 32 * 32
    encoder = n * (4 * d * d + 2 * d * 2048)
    decoder = n * (8 * d * d + 2 * d * 2048) + 37_000 * d
    scores = 3 * n * 2 * length * d
    step = 6 * batch * (encoder + decoder + scores)
    assert GENERATE["step_flops"]("base") == step
    assert (
        f"| `base` | 100,000 | {step:.2e} | {step * 1e5:.1e} | 12 h x 8 x 9.5e12 = 3.3e+18 |"
        in REPRODUCE
    )
    least, most = (step * 1e5 / (989e12 * share) / 3600 for share in (0.4, 0.1))
    assert f"| H100 SXM | 989 | {least:.2f} to {most:.1f} h |" in REPRODUCE


def commands():
    """Returns every line of the page's command blocks."""
    blocks = re.findall(r"```\n(.*?)```", REPRODUCE, flags=re.S)
    return [line for block in blocks for line in block.strip().split("\n") if line]


def multi30k_commands(path):
    """Returns the commands that lead to the score on Multi30k, without comments."""
    text = re.sub(r" *\\\n *", " ", (PROJECT / path).read_text(encoding="utf-8"))
    lines = [line.partition("  #")[0].strip() for line in text.split("\n")]
    start = lines.index("export JAXFORMER_DATA=$PWD/data")
    return list(itertools.takewhile(lambda line: line not in ("", "```"), lines[start:]))


def test_readme_and_config_have_the_same_commands_for_multi30k():
    commands = multi30k_commands("README.md")
    assert commands == multi30k_commands("configs/multi30k.py")
    assert len(commands) == 5


@pytest.mark.parametrize("name", GENERATE["CONFIGS"])
def test_page_and_configs_have_the_same_commands(name):
    document = runpy.run_path(str(PROJECT / "configs" / f"{name}.py"))["__doc__"]
    document = re.sub(r"(?<=\S) +", " ", document)  # Python has joined the continued lines.
    own = re.findall(r"^    ((?:python train.py|jaxformer) .*)$", document, flags=re.M)
    of_page = [line for line in commands() if f"runs/{name}" in line.split() + line.split("=")]
    assert [line for line in own if "runs/mine" not in line] == of_page
    keep = GENERATE["load_config"](name).training.keep_checkpoints
    assert of_page[1].endswith(f"--last {keep}")
    assert "docs/reproduce.md" in document
    bleu = re.findall(r"(\d\d\.\d) BLEU", document)
    assert len(bleu) == 1
    assert re.search(rf"\| `configs/{name}.py` \| newstest2014 \| {bleu[0]} \|", REPRODUCE)


def test_archive_hashes_match_tfds():
    from tensorflow_datasets.core.download import checksums

    known = {
        (url.rpartition("/")[2], str(int(info.size)), info.checksum)
        for url, info in checksums.get_all_url_infos().items()
    }
    archives = re.findall(r"\| `([\w.-]+)` \| (\w+) \| (\d+) \| `(\w{64})` \|", REPRODUCE)
    assert len(archives) == 6
    assert {(name, size, digest) for name, _, size, digest in archives} <= known
    german = sum(int(size) for _, pairs, size, _ in archives if pairs == "both")
    both = sum(int(size) for _, _, size, _ in archives)
    assert f"{german / 1e9:.1f} GB are downloaded for German, {both / 1e9:.1f} GB" in REPRODUCE


def test_identity_hashes_follow_from_the_sizes(monkeypatch):
    from jaxformer.data.tfds import TfdsCorpus

    for entry, split, sizes in (
        ("train", "train", {"de": 4_508_785, "fr": 40_836_715}),
        ("valid", "validation", {"de": 3000, "fr": 3000}),
    ):
        digests = []
        for language, size in sizes.items():
            # The builder is real; only the pairs are fake.
            monkeypatch.setattr(TfdsCorpus, "_open", lambda corpus, split, size=size: range(size))
            corpus = TfdsCorpus(f"wmt14_translate/{language}-en", "", "en", language)
            digests.append(corpus.fingerprint(split))
        assert f"| `{entry}` | `{digests[0]}` | `{digests[1]}` |" in REPRODUCE


def test_hash_of_the_test_set_matches_sacrebleu():
    from sacrebleu.dataset import DATASETS

    assert f"MD5 `{DATASETS['wmt14/full'].md5[0]}`" in REPRODUCE


def test_no_page_says_to_install_an_unpublished_package():
    pages = [PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")]
    for path in [*pages, *(PROJECT / "jaxformer").rglob("*.py")]:
        found = re.search(r"pip install ['\"]?jaxformer", path.read_text(encoding="utf-8"))
        assert not found, f"{path}: {found}"
