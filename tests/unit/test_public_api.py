"""The public API of the package: its names, and a light import."""

import ast
import importlib.metadata
import importlib.resources
import pathlib
import re
import subprocess
import sys
import tomllib

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
    """Returns the heavy libraries that a fresh interpreter has loaded after a statement."""
    code = f"{statement}; import sys; print([m for m in {HEAVY} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return ast.literal_eval(result.stdout)


@pytest.mark.smoke
def test_import_loads_no_heavy_library():
    assert loaded_by("import jaxformer") == []


def test_model_and_search_load_no_heavy_library():
    statement = "from jaxformer import Transformer, ModelConfig, beam_search, cross_entropy"
    loaded = loaded_by(statement)
    # Flax itself loads orbax; jaxformer must not load more.
    assert set(loaded) <= set(loaded_by("import flax.linen"))


@pytest.mark.parametrize("name", dir(jaxformer))
def test_every_name_is_importable_and_documented(name):
    value = getattr(jaxformer, name)
    if name != "__version__":
        assert value.__doc__
        assert re.search(rf"\b{name}\b", jaxformer.__doc__), f"{name} is missing in the docstring"


def test_star_import_imports_only_public_names():
    code = "nn = 'mine'; from jaxformer import *; print(sorted(n for n in dir() if n[0] != '_'))"
    finished = subprocess.run(
        [sys.executable, "-c", f"{code}; print(nn)"], capture_output=True, text=True, check=True
    )
    names, nn = finished.stdout.splitlines()
    assert ast.literal_eval(names) == sorted(["nn", *jaxformer.__all__])
    assert nn == "mine"
    assert {"Transformer", "beam_search", "train"} < set(jaxformer.__all__)


def test_type_checkers_find_types():
    package = importlib.resources.files("jaxformer")
    assert (package / "py.typed").is_file()
    stub = (package / "__init__.pyi").read_text(encoding="utf-8")
    for name in jaxformer.__all__:
        assert f" import {name} as {name}\n" in stub  # Required for a stub to export it.


def test_package_data_is_packaged():
    root = pathlib.Path(jaxformer.__file__).parent
    settings = tomllib.loads((root.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]
    packaged = {
        path
        for package, globs in patterns.items()
        for pattern in globs
        for path in root.parent.joinpath(*package.split(".")).glob(pattern)
        if path.is_file()
    }
    others = {
        path
        for path in root.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and path.name != ".gitattributes"
    }
    assert packaged == others


def test_version_matches_the_distribution():
    assert jaxformer.__version__ == importlib.metadata.version("jaxformer")


def test_citation_and_workflow_agree_with_the_package():
    root = pathlib.Path(jaxformer.__file__).parents[1]
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {jaxformer.__version__}\n" in citation
    released = re.search(r"^date-released: (.*)$", citation, flags=re.M)
    assert released
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {jaxformer.__version__} - {released[1]}\n" in changelog
    workflow = (root / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = [line.split(" :: ")[-1] for line in project["classifiers"] if "Python :: 3." in line]
    assert f"python: {pythons}".replace("'", '"') in workflow


def test_unknown_name():
    with pytest.raises(AttributeError, match="module 'jaxformer' has no attribute 'Transfomer'"):
        _ = jaxformer.Transfomer
