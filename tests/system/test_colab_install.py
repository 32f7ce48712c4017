"""Installing jaxformer changes no package that Colab's machines have."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import venv

import pytest

from ..profiles import by_profile

PROJECT = pathlib.Path(__file__).parents[2]


def pins(path):
    """Returns the versions in a freeze list, by normalized name."""
    versions = {}
    for line in path.read_text(encoding="utf-8").split():
        if "==" in line:
            name, version = line.split("==")
            versions[normalized(name)] = version
    return versions


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pretend_to_install(versions, site):
    """Writes what pip knows of an installed package: its name and version."""
    for name, version in versions.items():
        folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)

        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (folder / "METADATA").write_text(metadata, encoding="utf-8")


@pytest.mark.ci
@pytest.mark.parametrize("kind", by_profile(["tpu"], nightly=["tpu", "gpu", "cpu"]))
def test_pip_changes_nothing_that_colab_has(kind, real_data, tmp_path):
    if sys.version_info[:2] != (3, 13):
        pytest.skip("needs Python 3.13, which Colab has")

    path = real_data("colab") / f"pip-freeze.{kind}.txt".replace(".cpu", "")
    if not path.exists():
        pytest.skip(f"no list of Colab's packages: {path}")

    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    present = pins(path)
    assert len(present) > 300
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["plots"], *extras["vision"]]
    pretend_to_install(present, tmp_path / "site")
    venv.create(tmp_path / "venv", with_pip=True)

    command = ["venv/bin/python", "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-"]
    result = subprocess.run(
        [*command, *needed],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr

    report = json.loads(result.stdout)
    installed = {normalized(entry["metadata"]["name"]) for entry in report["install"]}
    print(f"{kind}: pip would add", *sorted(installed))
    assert installed
    assert not installed & present.keys()
