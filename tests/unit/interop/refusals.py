"""Models with changed files, whose import must be refused in one line that names the file."""

import json

import pytest
import safetensors.numpy

from jaxformer.errors import UserError
from jaxformer.runs.workdir import Workdir


def change(path, new):
    """Changes the values of a JSON file, or the arrays of a safetensors file."""
    has_arrays = path.suffix == ".safetensors"
    if has_arrays:
        content = safetensors.numpy.load(path.read_bytes())
    else:
        content = json.loads(path.read_bytes())

    if callable(new):
        new(content)
    else:
        content.update(new)

    if has_arrays:
        path.write_bytes(safetensors.numpy.save(content))
    else:
        path.write_text(json.dumps(content))


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
        path = directory / name
        before = path.read_bytes()
        path.unlink()
        if content is not None:
            path.write_bytes(content)

        refused(import_model, directory, message)
        path.write_bytes(before)
