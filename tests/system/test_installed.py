"""The wheel and the sdist work without a clone, from an empty folder."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions

import pytest

PROJECT = pathlib.Path(__file__).parents[2]
SOURCES = ("LICENSE", "README.md", "configs", "jaxformer", "pyproject.toml", "setup.py")
BUILD = "import setuptools.build_meta as b; print(b.build_{}('dist'))"
# Prints where code and configs are, then trains and translates: a compressed file of pairs with
# placeholders.
USE = """
import gzip, sys
import jaxformer
from jaxformer.cli import main
from jaxformer.cli.configs import shipped_configs
from jaxformer.data.numerals import NumeralsCorpus

print(jaxformer.__file__, *shipped_configs().values())
files = ["--input", "in.txt", "--output", "out.txt"]
with gzip.open("my.tsv.gz", "wt") as file:
    file.writelines(f"<n>: {en}\\t<n>: {de}\\n" for en, de in NumeralsCorpus().pairs("held_out"))
data = ["corpus=tsv", "train=my.tsv.gz", "valid=my.tsv.gz", "user_defined_symbols=<n>,<url>"]
fields = [f"--config.data.{field}" for field in data]
assert main(["train", "numerals:smoke", "--workdir", "runs/x", *fields]) == 0
assert main(["translate", "--workdir", "runs/x", *files]) == 0
tfds = "--config.data.corpus=tfds"
assert main(["train", "base", "--workdir", "runs/y", tfds]) == 2
sys.exit(main(["plot", "--workdir", "runs/x"]))
"""
# Colab's package, whose upload saves a file in the working folder, and returns its contents.
COLAB = {
    "__init__.py": "",
    "files.py": """
import os, shutil

def upload():
    name = os.environ.get("UPLOADED")
    if not name:
        return {}
    shutil.copy(name, ".")
    return {os.path.basename(name): b"its contents"}
""",
    "drive.py": """
import pathlib

def mount(folder):
    pathlib.Path("empty").rename(folder)
""",
}
# As in Colab's kernels, the package is imported before the first cell.
COLAB_CELL = "import google.colab\n{}\nimport jaxformer; print(jaxformer.__file__)\n"
MISSING = "error: expected the package {}; install it: pip install {}\n"

pytestmark = pytest.mark.ci


def run(folder, *command, code=0):
    """Runs a command without our environment; returns its output and errors."""
    hidden = ("PYTHONPATH", "XLA_FLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    result = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == code, result.stderr
    return result.stdout, result.stderr


def build(folder, kind):
    """Returns the wheel or the sdist of a source tree."""
    (folder / "dist").mkdir(exist_ok=True)
    output, _ = run(folder, sys.executable, "-c", BUILD.format(kind))
    return folder / "dist" / output.splitlines()[-1]


def copy_sources(folder):
    for name in SOURCES:
        if (PROJECT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(PROJECT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(PROJECT / name, folder)


def modules_of_extras():
    """Returns the names of the modules that only the extras for users install."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    packages = set()
    for name in extras.keys() - {"all", "dev", "docs", "test", "wmt"}:
        packages.update(each.lower() for each in extras[name])

    modules = []
    for module, distributions in packages_distributions().items():
        if packages & set(map(str.lower, distributions)):
            modules.append(module)
    assert {"matplotlib", "starlette", "tensorflow_datasets"} <= {*modules}
    return modules


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A wheel and an sdist, from a copy of the sources."""
    folder = tmp_path_factory.mktemp("sources")
    copy_sources(folder)
    return build(folder, "wheel"), build(folder, "sdist")


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder of the commands of an environment that has the wheel, as without extras."""
    folder = tmp_path_factory.mktemp("environment")
    run(folder, sys.executable, "-m", "venv", "--without-pip", ".")
    [packages] = folder.glob("lib/python*/site-packages")

    # A path in a .pth file adds our dependencies, but not our editable installation.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    hidden = f"import sys\nsys.modules.update(dict.fromkeys({modules_of_extras()}))\n"
    (packages / "sitecustomize.py").write_text(hidden)

    pip = (sys.executable, "-m", "pip", "--python", "bin/python", "install")
    run(folder, *pip, "--quiet", "--no-deps", "--no-index", built[0])
    return folder / "bin"


def test_the_sdist_builds_the_same_wheel(built, tmp_path):
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    rebuilt = build(source, "wheel")

    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(rebuilt) as again:
        assert sorted(ours.namelist()) == sorted(again.namelist())
        for name in ours.namelist():
            if not name.endswith("RECORD"):  # in the order of the file system
                assert ours.read(name) == again.read(name), name


def test_everything_works_in_an_empty_folder(installed, tmp_path):
    """The code and the configs of the wheel, the model that comes along, and a new model."""
    (tmp_path / "in.txt").write_text("Where is the station?\n")
    files = ("--input", "in.txt", "--output", "out.txt")
    run(tmp_path, installed / "jaxformer", "translate", *files)
    assert (tmp_path / "out.txt").read_text() == "Wo ist der Bahnhof?\n"
    (tmp_path / "out.txt").unlink()

    output, errors = run(tmp_path, installed / "python", "-c", USE, code=2)
    package, *configs = map(pathlib.Path, output.splitlines()[0].split())
    for path in (package, *configs):
        assert installed.parent in path.parents
    ours = sorted(path.name for path in (PROJECT / "configs").glob("*.py"))
    assert [path.name for path in configs] == ours

    assert len((tmp_path / "out.txt").read_text().splitlines()) == 1
    assert MISSING.format("tensorflow_datasets", "tensorflow-datasets") in errors
    assert errors.endswith(MISSING.format("matplotlib", "matplotlib"))


@pytest.fixture
def colab(tmp_path, monkeypatch):
    """Returns a function that runs the first cell of the notebooks, on a machine like Colab's."""
    environment = tmp_path / "environment"
    run(tmp_path, sys.executable, "-m", "venv", "--without-pip", environment)
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])

    package = packages / "google" / "colab"
    package.mkdir(parents=True)
    for name, code in COLAB.items():
        (package / name).write_text(code)

    # Nothing is fetched: the packages that jaxformer needs are there, as on Colab.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip's way to switch it off
    cell = (PROJECT / "notebooks" / "install.py").read_text(encoding="utf-8")
    content = tmp_path / "content"
    content.mkdir()

    def run_cell(source="", code=0):
        text = cell.replace("/content/drive", str(content / "drive"))
        text = text.replace('SOURCE = ""', f"SOURCE = {str(source)!r}")
        python = environment / "bin" / "python"
        output, errors = run(content, python, "-c", COLAB_CELL.format(text), code=code)
        if code == 0:
            assert pathlib.Path(output.splitlines()[-1]).is_relative_to(packages)
        return output, errors

    return run_cell, content


def test_notebooks_install_what_colab_uploads_and_only_once(built, colab, monkeypatch):
    run_cell, content = colab
    output, errors = run_cell(code=1)
    assert output.startswith("Upload a wheel or a zip of jaxformer.")
    message = "No jaxformer yet: set SOURCE above to its wheel, zip, clone or git address.\n"
    assert errors == message
    _, errors = run_cell("nowhere.whl", code=1)
    assert errors == message

    monkeypatch.setenv("UPLOADED", str(built[0]))
    output, _ = run_cell()
    assert output.startswith("Upload")

    (content / built[0].name).unlink()
    monkeypatch.delenv("UPLOADED")
    output, _ = run_cell()
    assert not output.startswith("Upload")


def test_notebooks_install_from_google_drive(built, colab):
    run_cell, content = colab
    unmounted = content / "empty" / "MyDrive"
    unmounted.mkdir(parents=True)
    shutil.copy(built[0], unmounted)
    run_cell(content / "drive" / "MyDrive" / built[0].name)


def test_notebooks_install_from_a_zip_of_the_repository(colab):
    """A zip as GitHub makes it, with one folder, which lies in Colab's files."""
    run_cell, content = colab
    clone = content.parent / "clone" / "jaxformer-main"
    clone.mkdir(parents=True)
    copy_sources(clone)
    shutil.make_archive(content / "jaxformer-main", "zip", clone.parent)
    output, _ = run_cell()
    assert not output.startswith("Upload")
