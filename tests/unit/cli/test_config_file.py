"""Config files: mistakes in them, and fields that they choose."""

import pathlib
import re
import sys

import pytest

from jaxformer.cli.config_file import load_config
from jaxformer.config import Config, save_config
from jaxformer.errors import UserError
from jaxformer.runs.run_directory import check_workdir
from jaxformer.runs.workdir import Workdir

NO_CONFIG = ": expected a function get_config that returns a config; add it or its return"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def get_config():\n    x = {}\n    return x['width']", ":3: KeyError: 'width'"),
        ("import no_module", ":1: ModuleNotFoundError: No module named 'no_module'"),
        (
            "from jaxformer import ModelConfig\n\nMODEL = ModelConfig(dmodel=3)\n",
            ":3: TypeError: ModelConfig.__init__() got an unexpected keyword argument 'dmodel'",
        ),
        ("x = 1", NO_CONFIG),
        ("def get_config():\n    pass\n", NO_CONFIG),
        ("def get_config(:\n", ":1: "),
        ("def get_config(variant): ...", ": TypeError: get_config() missing 1 required positional"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(code, words, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(code)

    for overrides in [], ["--config.model.d_model=8"]:
        with pytest.raises(UserError) as caught:
            load_config(str(path), overrides)
        assert str(caught.value).startswith(f"{path}{words}")
        assert "\n" not in str(caught.value)


GOOD = """from jaxformer.config import Config, to_config_dict

NAME = "ü"


def get_config():
    return to_config_dict(Config())
"""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GOOD.encode("utf-16"), ":1: expected UTF-8 text, got UTF-16; convert it with iconv"),
        (GOOD.encode("utf-16-le"), ":1: expected UTF-8 text, got UTF-16LE; convert it with"),
        (GOOD.encode("utf-32"), ":1: expected UTF-8 text, got UTF-32; convert it with iconv"),
        (GOOD.encode("latin-1"), ":3: not UTF-8: byte 0xfc at position 9 of the line; convert"),
        (b"# \xfc\n", ":1: not UTF-8: byte 0xfc at position 3 of the line; convert the file"),
        (b"x = 1\ny = '\0'\n", ":2: expected text, got a NUL byte at position 6 of the line"),
        (b"\x1f\x8b\x08\0", ":1: expected UTF-8 text, got gzip; convert it with gunzip"),
        (b"# coding: no-such\n", ":1: unknown encoding: no-such"),
        (b"", NO_CONFIG),
    ],
)
def test_a_file_that_is_not_utf8_is_explained(content, words, tmp_path):
    path = tmp_path / "mine.py"
    path.write_bytes(content)

    with pytest.raises(UserError) as caught:
        load_config(str(path))
    assert str(caught.value).startswith(f"{path}{words}")


@pytest.mark.parametrize(
    "content", [GOOD.encode("utf-8-sig"), f"# coding: latin-1\n{GOOD}".encode("latin-1")]
)
def test_encodings_that_python_reads(content, tmp_path):
    path = tmp_path / "mine.py"
    path.write_bytes(content)
    assert load_config(str(path)) == Config()


def test_a_module_beside_the_config(tmp_path):
    """It is not found, since only the file is executed, unless the file names its folder."""
    path = tmp_path / "mine.py"
    (tmp_path / "helper_of_mine.py").write_text("WIDTH = 48")
    path.write_text("import helper_of_mine\n")

    with pytest.raises(UserError) as caught:
        load_config(str(path))
    assert str(caught.value) == (
        f"{path}:1: ModuleNotFoundError: No module named 'helper_of_mine'; helper_of_mine is "
        "beside the config: add its folder first, sys.path.append(os.path.dirname(__file__))"
    )


def test_a_module_in_a_folder_that_the_config_names(tmp_path, monkeypatch):
    """As docs/configs.md has it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    page = pathlib.Path(__file__).parents[3] / "docs" / "configs.md"
    text = page.read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)

    name = "sizes_of_a_documented_config"
    (tmp_path / f"{name}.py").write_text("WIDTH = 48")
    (tmp_path / "mine.py").write_text(code.replace("my_sizes", name))
    assert load_config(str(tmp_path / "mine.py")).model.d_model == 48
    del sys.modules[name]


def test_what_is_not_a_file(tmp_path):
    for path in (tmp_path, "/dev/null"):
        with pytest.raises(UserError, match="expected a Python file, found a folder, a pipe or a"):
            load_config(str(path))


# Chooses three sizes from a file; two of the choices can equal the values of get_config.
ADAPTED = """
import dataclasses, pathlib
from jaxformer.config import Config, TrainingConfig, to_config_dict

def get_config(variant=""):
    training = TrainingConfig(steps=100, warmup_steps=10, learning_rate=RATE)
    return to_config_dict(Config(training=training))

def adapt_config(config, variant, given):
    size = int(pathlib.Path("size").read_text())
    training, model = config.training, config.model
    if "training.steps" not in given:
        training = dataclasses.replace(training, steps=size)
    if "training.warmup_steps" not in given:
        training = dataclasses.replace(training, warmup_steps=training.steps // 10)
    if "model.vocab_size" not in given:
        model = dataclasses.replace(model, vocab_size=size)
    return dataclasses.replace(config, training=training, model=model)
"""


@pytest.fixture
def resume(tmp_path, monkeypatch):
    """Begins a run with a size and overrides; returns its config with other ones."""
    monkeypatch.chdir(tmp_path)

    def load(size, *words, rate="1e-3", workdir: str | None = "run"):
        (tmp_path / "size").write_text(str(size))
        (tmp_path / "mine.py").write_text(ADAPTED.replace("RATE", rate))
        overrides = [f"--config.{word}" for word in words]
        return load_config("mine.py", overrides, workdir)

    def resume(first, *words, began=(), size=None, place="run", rate="1e-3"):
        begun = load(first, *began, workdir=None)
        save_config(begun, tmp_path / place / "config.json")
        return load(first if size is None else size, *words, rate=rate)

    return resume


@pytest.mark.parametrize(
    ("began", "words", "size", "steps", "warmup", "vocab"),
    [
        ((), (), 300, 300, 30, 300),
        ((), (), 700, 300, 30, 300),  # The data has grown.
        ((), ("training.steps=900",), 300, 900, 30, 300),
        ((), ("training.steps=900", "training.warmup_steps=90"), 300, 900, 90, 300),
        ((), ("training.warmup_steps=7",), 300, 300, 7, 300),
        ((), ("model.vocab_size=44",), 300, 300, 30, 44),
        (("training.steps=50",), (), 300, 50, 5, 300),
        (("training.steps=50",), ("training.steps=60",), 300, 60, 5, 300),
        # The file's own values are what it now chooses.
        ((), (), 100, 300, 30, 300),
        ((), ("training.steps=40000",), 300, 40_000, 30, 300),
    ],
)
def test_a_resumed_run_keeps_what_the_file_chose(began, words, size, steps, warmup, vocab, resume):
    found = resume(300, *words, began=began, size=size)

    assert found.training.steps == steps
    assert found.training.warmup_steps == warmup
    assert found.model.vocab_size == vocab


def test_choices_that_equal_the_values_of_the_file_are_kept(resume):
    found = resume(100, size=300)
    assert found.training.steps == 100

    default = Config().model.vocab_size
    found = resume(300, size=default)
    assert found.model.vocab_size == 300
    assert found.training.steps == 300

    found = resume(default, size=300)
    assert found.model.vocab_size == default
    assert found.training.steps == default


def test_the_mirror_has_the_choices_of_a_run_on_a_new_machine(resume):
    found = resume(300, "training.mirror=copy", size=700, place="copy")
    assert found.model.vocab_size == 300
    assert found.training.steps == 300


def test_choices_are_logged_and_an_edit_of_the_file_is_still_refused(resume, capsys, tmp_path):
    resumed = resume(300, "training.steps=900")
    assert capsys.readouterr().err == "run: keeps training.warmup_steps=30, as the run began\n"

    (tmp_path / "run" / "checkpoints").mkdir()
    check_workdir(Workdir(tmp_path / "run"), resumed, resumed.facts())

    edited = resume(300, "training.steps=900", rate="2e-3")
    assert edited.training.warmup_steps == 30
    with pytest.raises(UserError, match=r"training\.learning_rate=0\.001, but 0.002 was given"):
        check_workdir(Workdir(tmp_path / "run"), edited, edited.facts())


def test_choices_that_contradict_an_override_name_the_run(resume):
    linear = "training.schedule=linear"
    with pytest.raises(UserError, match=r"^run: keeps what the run began with: .*got 30 and 20$"):
        resume(300, linear, "training.steps=20", began=(linear,))
