"""No data is ever executed or unpickled: the source has no means to, except where named here.

An audit hook checks the same while data is used: tests/integration/test_hostile_files.py.
"""

import ast
import pathlib

PROJECT = pathlib.Path(__file__).parents[2]
SOURCES = [*sorted((PROJECT / "jaxformer").rglob("*.py")), PROJECT / "train.py"]

# Modules that run what they are given, or whose formats can hold code.
MODULES = {
    *("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"),
    *("subprocess", "multiprocessing", "pty", "runpy", "code", "codeop", "ctypes", "cffi"),
    *("torch", "yaml", "imp", "zipimport", "tarfile", "zipfile", "xml", "pickletools"),
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
    ("jaxformer/interop/named_arrays.py", "torch"): "loads with weights_only=True",
    ("jaxformer/cli/config_file.py", "runpy"): "runs the file of --config, which is code",
    ("jaxformer/registry.py", "import_module"): "the names are of the modules of a package",
    ("jaxformer/data/images.py", "load"): "of numpy, which refuses pickles by default",
    ("jaxformer/data/images.py", "zipfile"): "names the error of a damaged file",
    ("jaxformer/inference/shortlist.py", "load"): "of numpy, which refuses pickles by default",
    ("jaxformer/inference/shortlist.py", "zipfile"): "names the error of a damaged file",
    ("jaxformer/data/preparation.py", "tarfile"): "reads files, and extracts nothing to disk",
    ("jaxformer/data/preparation.py", "zipfile"): "reads files, and extracts nothing to disk",
    ("jaxformer/__init__.py", "import_module"): "the name is of the package's own stub",
}


def offenses(tree: ast.AST) -> set[str]:
    """Returns names of what a module could run data with."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").split(".")[0]} & MODULES
            found |= {alias.name for alias in node.names} & (BUILTINS | {"system", "popen"})
        elif isinstance(node, ast.Name) and node.id in BUILTINS:
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            owner = getattr(node.value, "id", getattr(node.value, "attr", None))
            owners = ATTRIBUTES.get(node.attr, ())
            if (
                owners is None
                or owner in owners
                or (owner == "os" and node.attr.startswith(FAMILIES))
            ):
                found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "shell"):
            found.add(node.arg)
    return found


def test_source_cannot_run_data():
    found = {
        (path.relative_to(PROJECT).as_posix(), name)
        for path in SOURCES
        for name in offenses(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert len(SOURCES) > 100
    assert found == ALLOWED.keys()


def test_means_are_noticed_and_others_are_not():
    for source in (
        *("import torch.serialization", "def f():\n  from pickle import loads", "run = eval"),
        *("from builtins import exec as run", "os.execvp(text, [])", "np.load(path)"),
        *("read(path, allow_pickle=True)", "spec.loader.exec_module(module)"),
    ):
        assert offenses(ast.parse(source)), source
    for source in ("step.compile()", "re.compile(text)", "json.load(file)"):
        assert not offenses(ast.parse(source)), source
