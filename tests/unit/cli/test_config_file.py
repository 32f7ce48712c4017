"""Mistakes in a config file are reported in one line."""

import pytest

from jaxformer.cli.config_file import load_config
from jaxformer.errors import UserError

# ml_collections 1.1 loads config files in a way that Python has deprecated (2026-11).
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

NO_CONFIG = ": expected a function get_config that returns a config; add it or its return"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def get_config():\n    x = {}\n    return x['width']", ":3: KeyError: 'width'"),
        ("import no_module", ":1: ModuleNotFoundError: No module named 'no_module'"),
        ("from re import no_name", ":1: ImportError: cannot import name 'no_name' from 're'"),
        ("def get_config():\n    return widht", ":2: NameError: name 'widht' is not defined"),
        ("x = 1\ny = int('x')", ":2: ValueError: invalid literal for int() with base 10: 'x'"),
        (
            "from jaxformer import ModelConfig\n\nMODEL = ModelConfig(dmodel=3)\n",
            ":3: TypeError: ModelConfig.__init__() got an unexpected keyword argument 'dmodel'",
        ),
        ("x = 1", NO_CONFIG),
        ("def get_config():\n    pass\n", NO_CONFIG),
        ("def get_config(:\n", ":1: "),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(code, words, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(code)
    for overrides in [[]] if "pass" in code else [[], ["--config.model.d_model=8"]]:
        with pytest.raises(UserError) as caught:
            load_config(str(path), overrides)
        assert str(caught.value).startswith(f"{path}{words}")
        assert "\n" not in str(caught.value)


def test_a_value_out_of_range_needs_no_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from jaxformer import ModelConfig\n\nMODEL = ModelConfig(d_model=0)\n")
    with pytest.raises(UserError, match=r"^model\.d_model must be"):
        load_config(str(path))
