"""Mistakes in a config file are reported in one line."""

import pathlib
import re
import sys

import pytest

from jaxformer.cli.config_file import load_config
from jaxformer.config import Config
from jaxformer.errors import UserError

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
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    name = "sizes_of_a_documented_config"
    (tmp_path / f"{name}.py").write_text("WIDTH = 48")
    (tmp_path / "mine.py").write_text(code.replace("my_sizes", name))
    assert load_config(str(tmp_path / "mine.py")).model.d_model == 48
    del sys.modules[name]


def test_what_is_not_a_file(tmp_path):
    for path in (tmp_path, "/dev/null"):
        with pytest.raises(UserError, match="expected a Python file, found a folder, a pipe or a"):
            load_config(str(path))
