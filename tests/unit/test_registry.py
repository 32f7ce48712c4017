"""New layouts, kinds and tasks are files of their own, in the folder where all others are."""

import re
import typing
from unittest import mock

import pytest

from jaxformer import data, kinds, tasks
from jaxformer.cli import commands, main
from jaxformer.config import Config, DataConfig
from jaxformer.data import corpora
from jaxformer.data.corpus import known_sources, open_corpus
from jaxformer.data.images import ImagesConfig, known_images
from jaxformer.data.tokenizer import open_tokenizer
from jaxformer.errors import UserError
from jaxformer.interop import exports, imports
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface import importer, layouts
from jaxformer.interop.systems import known_formats, known_systems
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
    before = importer.known_layouts()
    assert list(before) == sorted(before)
    assert {"bert", "gpt2", "llama", "m2m_100", "opt", "t5", "vit"} <= before.keys()

    add_file(layouts, "added_layout", NEW_LAYOUT)
    known = importer.known_layouts()
    assert known.keys() - before.keys() == {"olmo"}
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
    assert len(kinds_of_tasks) == len(known_kinds())
    assert {id(kind) for kind in kinds_of_tasks} == {id(kind) for kind in known_kinds()}


def test_corpora_select_one_kind_and_its_data_accepts_them():
    corpora = [corpus for kind in known_kinds() for corpus in kind.corpora]
    assert len(corpora) == len({*corpora})

    for section in {kind.data for kind in known_kinds()}:
        named = typing.get_args(typing.get_type_hints(section)["corpus"])
        accepted = named or (known_images() if section is ImagesConfig else known_sources())
        of_kinds = [kind.corpora for kind in known_kinds() if kind.data is section]
        assert sorted(accepted) == sorted(sum(of_kinds, ()))


def test_a_kind_and_its_task(add_file):
    add_file(kinds, "added_kind", NEW_KIND)
    add_file(tasks, "added_task", NEW_TASK)
    kind = kind_of("added")
    assert kind.description == "a model of summaries"
    config = mock.Mock(spec=Config, kind=kind)
    assert task_class(config).__name__ == "Summaries"
    assert task_class(Config()).__name__ == "Translation"
    assert kind_of("text").description == "a model of sentence pairs"


NEW_COMMAND = '''
from jaxformer.cli.command import Command
def greet(name: str) -> None:
    """Print a greeting.

    Example:
      jaxformer greet Ada
    """
    print(f"Hello, {name}!")
COMMAND = Command("greet", greet, place=35)
'''


def test_a_command(add_file, capsys):
    add_file(commands, "added_command", NEW_COMMAND)
    assert main(["greet", "Ada"]) == 0
    assert capsys.readouterr().out == "Hello, Ada!\n"

    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    listed = re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)
    place = listed.index("greet")
    assert listed[place - 1 : place + 2] == ["translate", "greet", "serve"]

    assert main(["gret"]) == 2
    assert capsys.readouterr().err == "error: unknown command gret; did you mean greet?\n"


NEW_FORMAT = """
from jaxformer.interop.systems import ExportFormat, Importer, ImportSystem
FORMAT = ExportFormat("onnx", "a graph", place=26, stores="float32", write=print)
SYSTEM = ImportSystem("onnx", "a graph", 25, False, importer=lambda: Importer(print, files=None))
"""


def test_a_format_and_a_system(add_file, capsys):
    formats = ["stablehlo", "ctranslate2", "argos", "marian", "bergamot", "safetensors"]
    assert [*known_formats()] == formats
    assert [*known_systems()] == ["hf", "marian", "bergamot"]

    add_file(exports, "added_format", NEW_FORMAT)
    add_file(imports, "added_format", NEW_FORMAT)
    assert [*known_formats()][1:5] == ["ctranslate2", "argos", "onnx", "marian"]
    assert [*known_systems()] == ["hf", "marian", "onnx", "bergamot"]

    for command in ("export", "import"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert "; onnx: a graph; " in text


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"^unknown format 'marain'; did you mean marian\?$"):
        export_model("marain", tmp_path, tmp_path / "out")


NEW_TOKENIZER = """
from jaxformer.data.character_tokenizer import CharacterTokenizer
class Upper(CharacterTokenizer):
    form = "upper"
    def decode(self, ids):
        return super().decode(ids).upper()
TOKENIZER = Upper
"""


def test_a_tokenizer(add_file):
    add_file(data, "upper_tokenizer", NEW_TOKENIZER)
    tokenizer = open_tokenizer(b'{"tokenizer": "upper", "characters": "ab"}', "stream")
    assert tokenizer.decode(tokenizer.encode("abba")) == "ABBA"


NEW_CORPUS = """
from jaxformer.data.corpus import PairSource
class Memory:
    target_symbols = False
    def pairs(self, split):
        yield "one", "eins"
    def fingerprint(self, split):
        return split
MEMORY = PairSource("memory", 25, open=lambda data: Memory())
"""


def test_a_corpus(add_file):
    names = "text tfds numerals trees parquet jsonl tsv csv tmx xliff"
    assert " ".join(known_sources()) == names

    add_file(corpora, "added_corpus", NEW_CORPUS)
    config = Config(data=DataConfig(corpus="memory"))
    assert config.kind.description == "a model of sentence pairs"
    assert Config.from_dict(config.to_dict()) == config
    assert [*open_corpus(DataConfig(corpus="memory")).pairs("train")] == [("one", "eins")]

    message = "data.corpus must be one of 'text', 'tfds', 'memory', 'numerals', "
    with pytest.raises(UserError, match=message):
        DataConfig(corpus="memoir")
