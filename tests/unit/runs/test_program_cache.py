"""Compiled programs are kept where they can be, and a note tells where they cannot."""

import jax
import pytest

from jaxformer.runs import workdir
from jaxformer.runs.workdir import use_compilation_cache


@pytest.fixture
def updates(monkeypatch):
    """Collects changes of JAX's settings, in a process whose cache is not yet chosen."""
    changed = {}
    values = {"jax_compilation_cache_dir": None}
    monkeypatch.setattr(type(jax.config), "values", property(lambda config: values))
    monkeypatch.setattr(jax.config, "update", changed.__setitem__)

    workdir._can_write_programs.cache_clear()
    return changed


def test_a_cache_that_can_be_written_is_used(updates, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "cache"))

    use_compilation_cache()

    assert updates["jax_compilation_cache_dir"] == str(tmp_path / "cache" / "programs")
    assert capsys.readouterr().err == ""


def test_no_cache_is_one_note(updates, monkeypatch, capsys):
    monkeypatch.setenv("JAXFORMER_CACHE", "/proc/nothing")

    use_compilation_cache()
    use_compilation_cache()

    assert updates == {}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: compiled programs are not kept: /proc/nothing/programs: expected")
    assert "set JAXFORMER_CACHE to" in line


def test_programs_of_a_cache_that_cannot_be_written_are_used(
    updates, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path))
    (tmp_path / "programs").mkdir()

    def read_only(*args, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(workdir.files.tempfile, "TemporaryFile", read_only)
    use_compilation_cache()

    assert updates["jax_compilation_cache_dir"] == str(tmp_path / "programs")
    assert "can be written: Read-only file system; set" in capsys.readouterr().err
