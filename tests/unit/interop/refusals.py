"""Models with changed files, whose import must be refused in one line that names the file."""

import json

import pytest
import safetensors.numpy

from jaxformer.errors import UserError
from jaxformer.runs.workdir import Workdir


def change(path, new):
    """Changes the values of a JSON file, or the arrays of a safetensors file."""
    has_arrays = path.suffix == ".safetensors"
    content = (safetensors.numpy.load if has_arrays else json.loads)(path.read_bytes())
    new(content) if callable(new) else content.update(new)
    path.write_bytes(
        safetensors.numpy.save(content) if has_arrays else json.dumps(content).encode()
    )


def refused(import_model, directory, message):
    """Imports a model into a folder beside it."""
    workdir = directory.parent / "run"
    with pytest.raises(UserError, match=message) as error:
        import_model(directory, workdir)
    assert "\n" not in str(error.value)
    assert not Workdir(workdir).config.exists()


def refused_changes(import_model, path, cases):
    """Imports a model with each change of one of its files."""
    before = path.read_bytes()
    for new, message in cases:
        change(path, new)
        refused(import_model, path.parent, message)
        path.write_bytes(before)


def refused_files(import_model, directory, cases):
    """Imports a model with another content of a file, or without the file."""
    for name, content, message in cases:
        before = (directory / name).read_bytes()
        (directory / name).unlink()
        if content is not None:
            (directory / name).write_bytes(content)
        refused(import_model, directory, message)
        (directory / name).write_bytes(before)
