"""The wheel and the sdist work without a clone, from an empty folder."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest

PROJECT = pathlib.Path(__file__).parents[2]
SOURCES = ("LICENSE", "README.md", "configs", "jaxformer", "pyproject.toml", "setup.py")
BUILD = "import setuptools.build_meta as b; print(b.build_{}('dist'))"
# The modules of the extras that translation does not need.
WITHOUT = "import sys; sys.modules.update(dict.fromkeys(['matplotlib', 'tensorflow_datasets']))\n"

TFDS = "--config.data.corpus=tfds"

pytestmark = pytest.mark.ci


def run(folder, *command):
    """Runs a command that must succeed, without our environment; returns its output."""
    hidden = ("PYTHONPATH", "XLA_FLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def build(folder, kind):
    """Returns the wheel or the sdist of a source tree."""
    (folder / "dist").mkdir(exist_ok=True)
    name = run(folder, sys.executable, "-c", BUILD.format(kind)).splitlines()[-1]
    return folder / "dist" / name


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A wheel and an sdist, from a copy of the sources."""
    folder = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (PROJECT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(PROJECT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(PROJECT / name, folder)
    return build(folder, "wheel"), build(folder, "sdist")


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder of the commands of an environment that has the wheel, and our dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    run(folder, sys.executable, "-m", "venv", "--without-pip", ".")
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file adds our dependencies, but not our editable installation.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    pip = (sys.executable, "-m", "pip", "--python", "bin/python", "install")
    run(folder, *pip, "--quiet", "--no-deps", "--no-index", built[0])
    return folder / "bin"


def test_the_sdist_builds_the_same_wheel(built, tmp_path):
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(build(source, "wheel")) as again:
        assert sorted(ours.namelist()) == sorted(again.namelist())
        for name in ours.namelist():
            if not name.endswith("RECORD"):  # in the order of the file system
                assert ours.read(name) == again.read(name), name


def test_configs_and_code_are_those_of_the_wheel(installed, tmp_path):
    code = "import jaxformer, jaxformer.cli.configs as c; print(jaxformer.__file__);"
    code += "[print(path) for path in c.shipped_configs().values()]"
    files = [pathlib.Path(line) for line in run(tmp_path, installed / "python", "-c", code).split()]
    assert all(installed.parent in path.parents for path in files)
    ours = sorted(path.name for path in (PROJECT / "configs").glob("*.py"))
    assert [path.name for path in files[1:]] == ours


def test_the_model_that_comes_along_translates_in_an_empty_folder(installed, tmp_path):
    (tmp_path / "in.txt").write_text("Where is the station?\n")
    files = ("--input", "in.txt", "--output", "out.txt")
    run(tmp_path, installed / "jaxformer", "translate", *files)
    assert (tmp_path / "out.txt").read_text() == "Wo ist der Bahnhof?\n"


def test_a_model_trains_and_translates_in_an_empty_folder_without_extras(installed, tmp_path):
    code = "from jaxformer.cli import main\nsys.exit(main(sys.argv[1:]))"
    jaxformer = (installed / "python", "-c", WITHOUT + code)
    run(tmp_path, *jaxformer, "train", "numerals:smoke", "--workdir", "runs/x")
    (tmp_path / "in.txt").write_text("seven\n")
    translate = ("translate", "--workdir", "runs/x", "--input", "in.txt", "--output", "out.txt")
    run(tmp_path, installed / "jaxformer", *translate)
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 1
    for arguments, package in (
        (["plot", "--workdir", "runs/x"], "matplotlib"),
        (["train", "base", "--workdir", "runs/y", TFDS], "tensorflow-datasets"),
    ):
        result = subprocess.run(
            [*jaxformer, *arguments], cwd=tmp_path, capture_output=True, text=True
        )
        assert result.returncode == 2
        assert result.stderr.endswith(
            f"error: expected the package {package}; pip install {package}\n"
        )
