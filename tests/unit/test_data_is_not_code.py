"""No data is ever executed or unpickled: the source has no means to, except where named here.

An audit hook checks the same while data is used: tests/integration/test_hostile_files.py.
"""

import ast
import pathlib

import pytest

PROJECT = pathlib.Path(__file__).parents[2]
SOURCES = [*sorted((PROJECT / "jaxformer").rglob("*.py")), PROJECT / "train.py"]

# Modules that run what they are given, or whose formats can hold code.
MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "subprocess",
    "multiprocessing",
    "pty",
    "runpy",
    "code",
    "codeop",
    "ctypes",
    "cffi",
    "torch",
    "yaml",
    "imp",
    "zipimport",
    "tarfile",
    "zipfile",
    "xml",
    "pickletools",
}
BUILTINS = {"eval", "exec", "compile", "__import__"}
# Attributes by the module that they are called on; None: of anything.
ATTRIBUTES = {
    "system": {"os"},
    "popen": {"os"},
    "import_module": {"importlib"},
    "spec_from_file_location": {"importlib", "util"},
    "exec_module": None,
    "load_module": None,
    "save": {"np", "jnp", "numpy"},
    "load": {"np", "jnp", "numpy"},
    "unpack_archive": {"shutil"},
    "unpackb": None,
}
FAMILIES = ("exec", "spawn", "posix_spawn", "fork")  # of os

# The places where it is done all the same, and why no data gets there.
ALLOWED = {
    ("jaxformer/runs/watchdog.py", "ctypes"): "handles SIGABRT",
    ("jaxformer/runs/allocator.py", "ctypes"): "calls mallopt",
    ("jaxformer/interop/weight_files.py", "torch"): "loads with weights_only=True",
    ("jaxformer/interop/flax_arrays.py", "unpackb"): "of msgpack, which builds plain values only",
    ("jaxformer/cli/config_file.py", "runpy"): "runs the file of --config, which is code",
    ("jaxformer/registry.py", "import_module"): "the names are of the modules of a package",
    ("jaxformer/data/array_files.py", "load"): "of numpy, which refuses pickles by default",
    ("jaxformer/data/array_files.py", "zipfile"): "names the error of a damaged file",
    ("jaxformer/inference/shortlist.py", "load"): "of numpy, which refuses pickles by default",
    ("jaxformer/inference/shortlist.py", "zipfile"): "names the error of a damaged file",
    ("jaxformer/interop/argos.py", "zipfile"): "writes files",
    ("jaxformer/data/preparation.py", "tarfile"): "reads files, and extracts nothing to disk",
    ("jaxformer/data/preparation.py", "zipfile"): "reads files, and extracts nothing to disk",
    ("jaxformer/data/translation_memories.py", "xml"): "of expat, which reads no other file",
    ("jaxformer/__init__.py", "import_module"): "the name is of the package's own stub",
}


def runs_data(node: ast.Attribute) -> bool:
    """Returns whether an attribute is one of those that could run data."""
    owner = getattr(node.value, "id", getattr(node.value, "attr", None))
    if owner == "os" and node.attr.startswith(FAMILIES):
        return True

    owners = ATTRIBUTES.get(node.attr, ())
    return owners is None or owner in owners


def offenses(tree: ast.AST) -> set[str]:
    """Returns names of what a module could run data with."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=imported):
                found |= {alias.name.split(".")[0] for alias in imported} & MODULES
            case ast.ImportFrom(module=module, names=imported):
                found |= {(module or "").split(".")[0]} & MODULES
                found |= {alias.name for alias in imported} & (BUILTINS | {"system", "popen"})
            case ast.Name(id=name) if name in BUILTINS:
                found.add(name)
            case ast.Attribute(attr=name) if runs_data(node):
                found.add(name)
            case ast.keyword(arg="allow_pickle" | "shell" as name):
                found.add(name)
    return found


def test_source_cannot_run_data():
    found = set()
    for path in SOURCES:
        file = path.relative_to(PROJECT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {(file, name) for name in offenses(tree)}

    assert len(SOURCES) > 100
    assert found == ALLOWED.keys()


@pytest.mark.parametrize(
    "source",
    [
        "import torch.serialization",
        "def f():\n  from pickle import loads",
        "run = eval",
        "from builtins import exec as run",
        "os.execvp(text, [])",
        "np.load(path)",
        "read(path, allow_pickle=True)",
        "spec.loader.exec_module(module)",
    ],
)
def test_means_are_noticed(source):
    assert offenses(ast.parse(source))


@pytest.mark.parametrize("source", ["step.compile()", "re.compile(text)", "json.load(file)"])
def test_other_calls_are_not_noticed(source):
    assert not offenses(ast.parse(source))
