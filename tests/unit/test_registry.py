"""New layouts, kinds and tasks are files of their own, in the folder where all others are."""

import types
import typing

import pytest

from jaxformer import kinds, tasks
from jaxformer.interop.huggingface import importer, layouts
from jaxformer.kinds.selection import kind_of, known_kinds
from jaxformer.registry import find_classes
from jaxformer.tasks.token_task import NetworkTask, task_class

NEW_LAYOUT = """
import dataclasses
from jaxformer.interop.huggingface.layouts.llama import LLAMA
OLMO = dataclasses.replace(LLAMA, model_type="olmo")
"""


@pytest.fixture
def add_file(tmp_path, monkeypatch):
    """Returns a function that adds a file to a package, until the test ends."""

    def add(package, name, text):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])

    return add


def test_layouts(add_file):
    all_types = "bert gpt2 llama m2m_100 mistral mt5 qwen2 t5 umt5 vit"
    assert " ".join(importer.known_layouts()) == all_types

    add_file(layouts, "added_layout", NEW_LAYOUT)
    known = importer.known_layouts()
    assert known.keys() - all_types.split() == {"olmo"}
    assert known["olmo"].section is known["llama"].section


NEW_KIND = """
import dataclasses
from jaxformer.kinds.translation import TRANSLATION
SUMMARIES = dataclasses.replace(
    TRANSLATION, description="a model of summaries", corpora=("added",)
)
"""
NEW_TASK = """
from jaxformer.kinds.added_kind import SUMMARIES
from jaxformer.tasks.translation import Translation
class Summaries(Translation):
    kind = SUMMARIES
"""


def test_every_kind_has_one_task():
    kinds_of_tasks = [task.kind for task in find_classes(tasks, NetworkTask)]
    assert len(kinds_of_tasks) == 6
    assert {id(kind) for kind in kinds_of_tasks} == {id(kind) for kind in known_kinds()}


def test_corpora_select_one_kind_and_its_data_accepts_them():
    corpora = [corpus for kind in known_kinds() for corpus in kind.corpora]
    assert len(corpora) == len({*corpora})

    for data in {kind.data for kind in known_kinds()}:
        accepted = typing.get_args(typing.get_type_hints(data)["corpus"])
        of_kinds = [kind.corpora for kind in known_kinds() if kind.data is data]
        assert sorted(accepted) == sorted(sum(of_kinds, ()))


def test_a_kind_and_its_task(add_file):
    add_file(kinds, "added_kind", NEW_KIND)
    add_file(tasks, "added_task", NEW_TASK)
    kind = kind_of("added")
    assert kind.description == "a model of summaries"
    data = types.SimpleNamespace(corpus="added")
    assert task_class(types.SimpleNamespace(kind=kind, data=data)).__name__ == "Summaries"
    assert kind_of("text").description == "a model of sentence pairs"
