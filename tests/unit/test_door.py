"""The package's door: its names, and that opening it costs nothing."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

import jaxformer

HEAVY = [
    "sentencepiece",
    "orbax",
    "grain",
    "tensorflow_datasets",
    "matplotlib",
    "sacrebleu",
    "tqdm",
]


def loaded_by(statement):
    """Which of the heavy libraries a fresh interpreter has loaded after a statement."""
    code = f"{statement}; import sys; print([m for m in {HEAVY} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return ast.literal_eval(result.stdout)


@pytest.mark.smoke
def test_import_is_light():
    assert loaded_by("import jaxformer") == []


def test_model_and_search_need_no_text_file_or_picture_library():
    statement = "from jaxformer import Transformer, ModelConfig, beam_search, cross_entropy"
    loaded = loaded_by(statement)
    # Flax itself loads orbax; what is ours must not add to it.
    assert set(loaded) <= set(loaded_by("import flax.linen"))


@pytest.mark.parametrize("name", dir(jaxformer))
def test_every_name_can_be_imported_and_is_documented(name):
    value = getattr(jaxformer, name)
    if name != "__version__":
        assert value.__doc__
        assert re.search(rf"\b{name}\b", jaxformer.__doc__), f"{name} is missing in the docstring"


def test_type_checkers_see_the_same_names():
    source = pathlib.Path(jaxformer.__file__).read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    typed = {
        alias.name: node.module
        for node in imports
        for alias in node.names
        if (node.module or "").startswith("jaxformer.")
    }
    assert {f"jaxformer.{room}": None for room in jaxformer._ROOM_OF.values()}.keys() == set(
        typed.values()
    )
    assert typed == {name: f"jaxformer.{room}" for name, room in jaxformer._ROOM_OF.items()}


def test_unknown_name():
    with pytest.raises(AttributeError, match="module 'jaxformer' has no attribute 'Transfomer'"):
        _ = jaxformer.Transfomer
