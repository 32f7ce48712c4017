"""The public API of the package: its names, and a light import."""

import importlib.metadata
import importlib.resources
import inspect
import json
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

import jaxformer
from jaxformer.config import Config
from jaxformer.distillation import distill

HEAVY = [
    "sentencepiece",
    "orbax",
    "grain",
    "tensorflow_datasets",
    "matplotlib",
    "sacrebleu",
    "tqdm",
    "ml_collections",
]
PROGRAM = f"""
import sys
def loaded():
    return {{m for m in {HEAVY} if m in sys.modules}}
import jaxformer
print(loaded())
import flax.linen
flax_loads = loaded()  # Flax itself loads orbax.
from jaxformer import Transformer, ModelConfig, beam_search, cross_entropy
print(loaded() - flax_loads)
old, nn = {{*dir()}}, "mine"
from jaxformer import *
print(sorted({{*dir()}} - old), nn)
"""


@pytest.mark.smoke
def test_imports_load_no_heavy_library_and_star_imports_public_names():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    package, model, star = result.stdout.splitlines()
    assert package == "set()"
    assert model == "set()"

    names = {"nn", "old", *jaxformer.__all__}
    imported = {"jaxformer", "Transformer", "ModelConfig", "beam_search", "cross_entropy"}
    assert star == f"{sorted(names - imported)} mine"
    assert {"Transformer", "beam_search", "train"} < set(jaxformer.__all__)


def test_every_name_is_importable_and_documented():
    for name in {*dir(jaxformer)} - {"__version__"}:
        assert getattr(jaxformer, name).__doc__, name
        assert re.search(rf"\b{name}\b", jaxformer.__doc__), f"{name} is missing in the docstring"

    with pytest.raises(AttributeError, match="module 'jaxformer' has no attribute 'Transfomer'"):
        _ = jaxformer.Transfomer


def test_type_checkers_find_types():
    package = importlib.resources.files("jaxformer")
    assert (package / "py.typed").is_file()

    stub = (package / "__init__.pyi").read_text(encoding="utf-8")
    for name in jaxformer.__all__:
        assert f" import {name} as {name}\n" in stub  # Required for a stub to export it.


def test_package_data_is_packaged():
    package = pathlib.Path(jaxformer.__file__).parent
    root = package.parent

    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    packaged = set()
    for name, patterns in settings["tool"]["setuptools"]["package-data"].items():
        folder = root.joinpath(*name.split("."))
        for pattern in patterns:
            packaged |= {path for path in folder.glob(pattern) if path.is_file()}

    others = set()
    for path in package.rglob("*"):
        is_code = path.suffix in (".py", ".pyc")
        if path.is_file() and not is_code and path.name != ".gitattributes":
            others.add(path)
    assert packaged == others


def test_versions_agree():
    root = pathlib.Path(jaxformer.__file__).parents[1]
    version = jaxformer.__version__
    assert version == importlib.metadata.version("jaxformer")

    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation
    released = re.search(r"^date-released: (.*)$", citation, flags=re.M)
    assert released
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {version} - {released[1]}\n" in changelog


def test_all_versions_of_python_are_tested():
    root = pathlib.Path(jaxformer.__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classifiers = [line for line in project["classifiers"] if "Python :: 3." in line]
    pythons = [line.split(" :: ")[-1] for line in classifiers]

    workflow = (root / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert f"python: {json.dumps(pythons)}" in workflow


def test_arguments_of_training_students_and_of_parsers_have_names():
    """A misspelled one is refused at once, and not after all translations."""
    parser = inspect.signature(jaxformer.Parser.load).parameters
    translator = inspect.signature(jaxformer.Translator.load).parameters
    assert list(parser) == list(translator)
    for name, argument in translator.items():
        if name != "workdir":  # a parser has no default model
            assert parser[name] == argument

    with pytest.raises(TypeError, match="max_ration"):
        distill(Config(), object(), object(), None, max_ration=2.0, min_log_prob=-3.0)
