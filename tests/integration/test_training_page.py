"""The blocks of docs/training.md run, in order; loggers of others are stand-ins."""

import itertools
import json
import re
import sys
import types

import pytest

import jaxformer
from jaxformer import Checkpoints
from jaxformer.training import writers

from . import pages

pytestmark = pytest.mark.ci

PAGE = (pages.DOCS / "training.md").read_text(encoding="utf-8")
BLOCKS = list(itertools.chain(*pages.sections("training.md").values()))


class StandIn(types.ModuleType):
    """The functions of wandb and trackio that the page calls."""

    def __init__(self, name):
        super().__init__(name)
        self.calls = []

    def init(self, *, project):
        self.calls.append(("init", project))

    def log(self, values, *, step):
        self.calls.append(("log", step, values))

    def finish(self):
        self.calls.append(("finish",))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names that the blocks have defined, the stand-ins, and the folder of the runs."""
    modules = {name: StandIn(name) for name in ("wandb", "trackio")}
    folder, names = tmp_path_factory.mktemp("page"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        for block in BLOCKS:
            pages.run("training.md", block, names)
    return names, modules, folder / "runs" / "bigrams"


def test_the_task_learns(page):
    _, _, folder = page
    reports = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in reports if r["kind"] == "train"] == [20, 40, 60, 80, 100]
    valid = [r for r in reports if r["kind"] == "valid"]
    assert valid[-1]["perplexity"] < valid[0]["perplexity"] < 128
    assert valid[-1]["accuracy"] > 0.4
    assert Checkpoints(folder / "checkpoints").best_step() == 100


def test_loggers_get_each_report_once(page):
    _, modules, folder = page
    reports = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for logger, step in (("wandb", 60), ("trackio", 80)):
        first, *calls, last = modules[logger].calls
        assert (first, last) == (("init", "bigrams"), ("finish",))
        logged = [(call[1], key, call[2][key]) for call in calls for key in call[2]]
        assert logged == [
            (step, f"{report['kind']}/{name}", value)
            for report in reports
            if report["step"] == step
            for name, value in report.items()
            if name not in ("kind", "step")
        ]


def test_the_tables_name_what_there_is():
    methods = set(re.findall(r"^\| `(\w+)\(", PAGE, flags=re.M)) | {"describe_batch"}
    attributes = {name for name in ("best", "log_formats") if f"`{name} = " in PAGE}
    assert methods | attributes == {name for name in vars(jaxformer.Task) if name[0] != "_"}
    page_of_writers = {name for name in vars(writers.Writer) if name[0] != "_"}
    assert page_of_writers == {"write", "close"}
