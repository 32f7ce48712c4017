"""Mistakes in a config file are reported in one line."""

import pytest

from jaxformer.cli.config_file import load_config
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
