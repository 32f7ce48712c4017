"""Files are written atomically, and a locked folder has one holder."""

import errno
import os
import pathlib
import secrets
import socket
import stat
import subprocess
import sys

import pytest

from jaxformer.errors import UserError
from jaxformer.files import (
    cache_directory,
    check_unicode_path,
    data_directory,
    local_path,
    lock_file,
    lock_folder,
    make_folder,
    open_file,
    read_whole,
    write_file,
)
from jaxformer.interop.export import export_model
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.workdir import Workdir


@pytest.mark.parametrize(
    "url",
    ["GS://b", "file:///run", pathlib.Path("gs://bucket/run")],  # gs:/bucket/run
)
def test_urls_are_refused(url):
    with pytest.raises(UserError, match=r"local disk: got .*(copy|mount the bucket)"):
        local_path(url)


def test_local_paths_are_unchanged_but_for_the_home_directory(tmp_path, monkeypatch):
    """Shells leave the ~ in --workdir=~/runs."""
    for path in ("/runs/a:b/c", "base.py:tiny", ""):
        assert local_path(path) == pathlib.Path(path)
        assert local_path(pathlib.Path(path)) == pathlib.Path(path)

    monkeypatch.setenv("HOME", str(tmp_path))
    assert local_path("~/runs/a") == tmp_path / "runs" / "a"


def test_content_and_name_reach_the_disk_in_this_order(tmp_path, monkeypatch):
    """A power failure leaves the old or the new content, not an empty file."""
    calls = []
    fsync = os.fsync
    replace = os.replace

    def watched_fsync(descriptor):
        facts = os.fstat(descriptor)
        calls.append("folder" if stat.S_ISDIR(facts.st_mode) else facts.st_size)
        fsync(descriptor)

    def watched_replace(*paths):
        calls.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write_file(tmp_path / "file", b"content")

    assert calls == [7, "rename", "folder"]


def test_failed_write_keeps_the_older_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"older")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "replace", full)
        with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
            write_file(path, b"newer")

    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


def test_planted_link_is_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(secrets, "randbelow", lambda _: 77)
    (tmp_path / "file.77.partial").symlink_to(victim)

    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", b"content")

    assert victim.read_bytes() == b"precious"


def test_only_files_are_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    others = [tmp_path / "folder", tmp_path / "link", tmp_path / "pipe", pathlib.Path()]

    for path in others:
        with pytest.raises(UserError, match="the name of a file to write"):
            write_file(path, b"content")


def test_a_file_is_no_folder_to_write_to(tmp_path):
    (tmp_path / "file").write_bytes(b"older")

    with pytest.raises(UserError, match="/file: expected a folder, found a file"):
        write_file(tmp_path / "file" / "below" / "it", b"content")


HOLDS_A_LOCK = """
import pathlib
import sys
from jaxformer.files import lock_folder

with lock_folder(pathlib.Path(sys.argv[1])) as alone:
    print(alone, flush=True)
    input()
"""


def test_folder_is_locked_until_its_holder_ends_even_by_kill(tmp_path):
    folder = tmp_path / "new" / "run"
    with lock_folder(folder) as first, lock_folder(folder) as second:
        assert first is True
        assert second is False

    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_A_LOCK, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "True\n"
        with lock_folder(folder) as alone:
            assert not alone
        holder.kill()

    with lock_folder(folder) as alone:
        assert alone
    assert [path.name for path in folder.iterdir()] == ["lock"]


def test_locks_of_readers_and_a_writer(tmp_path):
    path = tmp_path / "file"
    path.touch()

    with (
        lock_file(path, shared=True) as one,
        lock_file(path, shared=True) as other,
        lock_file(path, shared=False) as alone,
    ):
        assert one is True
        assert other is True
        assert alone is False

    with (
        lock_file(path, shared=False) as alone,
        lock_file(path, shared=True) as reader,
    ):
        assert alone is True
        assert reader is False


def test_only_regular_files_are_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # The names of sockets are short.
    pathlib.Path("folder").mkdir()
    os.mkfifo("FIFO")
    pathlib.Path("device").symlink_to("/dev/zero")
    with open("sparse", "wb") as file:
        file.truncate(1 << 40)
    before = len(os.listdir("/proc/self/fd"))

    for kind in ("folder", "FIFO", "device"):
        with pytest.raises(UserError, match=f"expected a regular file, found a {kind}"):
            open_file(pathlib.Path(kind))
    with pytest.raises(UserError, match="expected a file with content, found a sparse one"):
        open_file(pathlib.Path("sparse"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(OSError, match="No such device"):
            open_file(pathlib.Path("socket"))

    assert len(os.listdir("/proc/self/fd")) == before  # Descriptors are closed.


def test_a_pointer_of_git_lfs_is_named(tmp_path):
    """As in a clone without Git LFS (the example of git-lfs/docs/spec.md)."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
    model = tmp_path / "model.bin"
    model.write_text(pointer)
    with pytest.raises(UserError, match=r"model\.bin: .* found a Git LFS pointer to it; run"):
        read_whole(model)

    text = tmp_path / "text"
    text.write_text(f"# {pointer}")
    assert read_whole(text).decode() == f"# {pointer}"


@pytest.mark.parametrize("name", ["file", "folder/secret", "../secret"])
def test_links_out_of_a_folder_are_refused(tmp_path, name):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "folder").symlink_to("..")
    (root / "file").symlink_to("../secret")

    with pytest.raises(UserError, match=r"expected a file or folder within .*root, found"):
        open_file(root / name, root)


def test_large_files_are_not_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")

    assert read_whole(path, limit=5) == b"12345"
    with pytest.raises(UserError, match="expected a file of at most 4 bytes, found a larger one"):
        read_whole(path, limit=4)


def test_a_file_system_without_fsync_is_written_and_a_failing_one_is_not(tmp_path, monkeypatch):
    path = tmp_path / "file"

    def refuse(_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", refuse)

    error = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        write_file(path, b"content")
    assert list(tmp_path.iterdir()) == []

    error = errno.EINVAL
    write_file(path, b"content")
    assert path.read_bytes() == b"content"


def test_folders_that_variables_name(tmp_path, monkeypatch):
    cache = tmp_path / "new" / "cache"
    monkeypatch.setenv("JAXFORMER_CACHE", str(cache))
    monkeypatch.delenv("JAXFORMER_DATA", raising=False)

    make_folder(data_directory(), "JAXFORMER_DATA")
    assert list(cache.iterdir()) == [data_directory()]
    assert list(data_directory().iterdir()) == []  # The probe is gone.

    monkeypatch.setenv("JAXFORMER_CACHE", "gs://bucket/cache")
    with pytest.raises(UserError, match=r"^JAXFORMER_CACHE: expected a path on a local disk: got"):
        cache_directory()


NOT_UTF_8 = r"expected a path in UTF-8; rename the folder, or set the locale to UTF-8"


@pytest.mark.parametrize("folder", ["/proc/nothing", "/proc/nothing/below", "file", "file/below"])
def test_a_folder_that_cannot_be_written_names_its_variable(folder, tmp_path, monkeypatch):
    """Even for root, to whom all permissions are given."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("file").touch()
    message = rf"^{folder}: expected a folder that can be written: .+; set JAXFORMER_CACHE to one"
    with pytest.raises(UserError, match=message):
        make_folder(pathlib.Path(folder), "JAXFORMER_CACHE")


def test_paths_that_libraries_in_c_would_write_elsewhere_are_refused(tmp_path, monkeypatch):
    """Bytes that are not UTF-8."""
    latin = pathlib.Path(os.fsdecode(b"r\xfcn"))
    for path in (latin, latin / "below", tmp_path / "run" / latin):
        with pytest.raises(UserError, match=NOT_UTF_8):
            check_unicode_path(path)

    os.mkdir(tmp_path / latin)
    monkeypatch.chdir(tmp_path / latin)
    with pytest.raises(UserError, match=NOT_UTF_8):
        check_unicode_path(pathlib.Path("run"))


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_letters_in_a_locale_with_another_encoding_are_refused(encoding, tmp_path, monkeypatch):
    german = pathlib.Path("r\u00fcn")
    check_unicode_path(german)

    def encode(path):
        return str(path).encode(encoding, errors="surrogateescape")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsencode", encode)
        with pytest.raises(UserError, match=NOT_UTF_8):
            check_unicode_path(german)
        check_unicode_path(tmp_path)


def test_what_holds_arrays_is_in_such_paths(tmp_path):
    """Of training, import, quantize, average, distill, export, and models to read."""
    path = tmp_path / os.fsdecode(b"r\xfcn")
    message = r"r\udcfcn: expected a path in UTF-8"

    with pytest.raises(UserError, match=message):
        Workdir(path)
    with pytest.raises(UserError, match=message):
        Checkpoints(path, keep=1)
    with pytest.raises(UserError, match=message):
        export_model("marian", tmp_path, path)

    assert list(tmp_path.iterdir()) == []
