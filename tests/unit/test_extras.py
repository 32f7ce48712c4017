"""Advice to install packages names what pip can find: our clone, or packages on PyPI."""

import importlib.metadata
import pathlib
import tomllib

import pytest

from jaxformer import extras
from jaxformer.errors import UserError, needs_package
from jaxformer.extras import PURPOSES, install_command, is_in_all, packages_of

PROJECT = pathlib.Path(__file__).parents[2]
DEVELOPMENT = {"all", "dev", "docs", "test"}  # no feature needs them
REQUIRES = [
    "numpy",
    'matplotlib; extra == "plots"',
    "starlette>=0.40; python_version >= '3.11' and extra == 'serve'",
    'uvicorn [standard] ; extra == "serve"',
    'jaxformer[plots,serve]; extra == "all"',
]


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """Makes jaxformer look as if a wheel had installed it, with other requirements."""
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "jaxformer" / "extras.py"))
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIRES)
    return tmp_path


def test_in_a_clone(monkeypatch, tmp_path):
    monkeypatch.chdir(PROJECT)
    assert install_command("matplotlib", "plots") == "pip install '.[plots]'"
    assert install_command("pyarrow") == "pip install pyarrow"

    monkeypatch.chdir(tmp_path)
    assert install_command("matplotlib", "plots") == f"cd {PROJECT} && pip install '.[plots]'"


def test_elsewhere(wheel):
    assert install_command("matplotlib", "plots") == "pip install matplotlib"
    serve = "pip install 'starlette>=0.40' 'uvicorn [standard]'"
    assert install_command("starlette", "serve") == serve

    with pytest.raises(UserError) as found, needs_package("a", "which is missing", extra="serve"):
        import no_such_package  # noqa: F401  # pyright: ignore[reportMissingImports]
    message = f"expected the package a, which is missing; install it: {serve}"
    assert str(found.value) == message

    # A folder of another project is not a clone.
    (wheel / "pyproject.toml").write_text('name = "another"')
    assert install_command("matplotlib", "plots") == "pip install matplotlib"


def test_requirements_say_what_an_extra_has(wheel):
    assert packages_of("none") == []
    assert is_in_all("plots")
    assert is_in_all("serve")
    assert not is_in_all("wmt")
    assert not is_in_all("server")


def test_without_metadata(wheel, monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert install_command("matplotlib", "plots") == "pip install matplotlib"


def test_each_extra_for_users_has_a_purpose():
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    optional = settings["project"]["optional-dependencies"]
    assert PURPOSES.keys() == optional.keys() - DEVELOPMENT

    page = (PROJECT / "docs" / "install.md").read_text(encoding="utf-8")
    for extra in PURPOSES:
        assert f"`{extra}`" in page


def test_what_nobody_needs_to_install_is_no_fault(wheel, monkeypatch):
    from jaxformer.cli.commands import doctor

    monkeypatch.setattr(doctor, "_version", {"matplotlib": "3.1"}.get)
    assert doctor._extra_report("plots", "plots") == "matplotlib 3.1, for plots"

    monkeypatch.setattr(doctor, "_version", lambda name: None)
    report = "matplotlib not installed, needed only for x: pip install matplotlib"
    assert doctor._extra_report("plots", "x") == report
    assert doctor._extra_report("serve", "x") == (
        "starlette and uvicorn not installed, needed only for x: "
        "pip install 'starlette>=0.40' 'uvicorn [standard]'"
    )

    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ['tf; extra == "wmt"'])
    report = 'tf not installed, needed only for x; not in the extra "all": pip install tf'
    assert doctor._extra_report("wmt", "x") == report
