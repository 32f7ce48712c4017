"""Configs that come with jaxformer, by name."""

import pathlib
import re

import pytest

from jaxformer.cli.configs import find_config, list_configs
from jaxformer.errors import UserError

CONFIGS = pathlib.Path(__file__).parents[3] / "configs"


def test_a_name_is_a_file_of_configs_and_a_path_is_left_as_it_is():
    assert find_config("base") == str(CONFIGS / "base.py")
    assert find_config("base:tiny") == f"{CONFIGS / 'base.py'}:tiny"

    for path in ("configs/base.py", "mine.py:small", "./base", "a/b:c"):
        assert find_config(path) == path


def test_an_unknown_name_lists_the_configs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(UserError, match=r"no config 'numeral'; did you mean numerals\?"):
        find_config("numeral")

    listed = capsys.readouterr().err
    assert list_configs() in listed
    for path in CONFIGS.glob("*.py"):
        first_line = path.read_text(encoding="utf-8").partition("\n")[0]
        summary = first_line.removeprefix('"""')
        assert re.search(rf"^  {path.stem} +{re.escape(summary)}$", listed, flags=re.M)
