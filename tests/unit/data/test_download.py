"""Downloads from a server on this machine that misbehaves."""

import gzip
import hashlib

import pytest

from jaxformer.data.checksum import Checksum
from jaxformer.data.download import DownloadError, download
from jaxformer.errors import UserError

from .conftest import respond, serve

CONTENT = bytes(range(256)) * 40
SIZE = len(CONTENT)
CHECKSUM = Checksum(hashlib.sha256(CONTENT).hexdigest())
WHOLE = serve(CONTENT)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "file"


@pytest.fixture
def fetch(server, path):
    def fetch(largest=SIZE):
        download(f"{server.url}/file", path, largest=largest, checksum=CHECKSUM)
        return path.read_bytes()

    return fetch


# Content of the partial file, an answer, and the expected header Range of each request.
RESUMED = {
    "cut again and again": (
        *(b"", serve(CONTENT, cut_after=1000)),
        [None, *(f"bytes={start}-" for start in range(1000, SIZE, 1000))],
    ),
    "interrupted": (CONTENT[:5000], WHOLE, ["bytes=5000-"]),
    "all is sent again": (b"x" * 5000, lambda h: respond(h, 200, CONTENT), ["bytes=5000-"]),
}


@pytest.mark.parametrize(("partial", "answer", "expected"), RESUMED.values(), ids=RESUMED)
def test_downloads_are_resumed(partial, answer, expected, server, path, fetch):
    if partial:
        path.parent.mkdir()
        path.with_name("file.partial").write_bytes(partial)
    server.answers["/file"] = answer
    assert fetch() == CONTENT
    assert server.requests == expected
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_temporary_failures_are_retried(server, fetch):
    def answer(handler):
        if len(server.requests) < 4:
            return handler.send_error(503)
        WHOLE(handler)

    server.answers["/file"] = answer
    assert fetch() == CONTENT
    server.answers["/file"] = lambda handler: handler.send_error(503)
    with pytest.raises(DownloadError, match="the server answers 503"):
        fetch()


# Answer, message, and the number of requests.
REFUSED = {
    "wrong hash": (
        *(serve(CONTENT[:-1] + b"x"), rf"/file: .*expected SHA-256 {CHECKSUM.digest}, got", 1),
    ),
    "large": (serve(CONTENT + b"x"), "expected at most 10,240 bytes, got more", 1),
    "of unknown length": (
        *(lambda h: respond(h, 200, CONTENT * 9), "expected at most 10,240 bytes, got more", 1),
    ),
    "missing": (None, "/file: cannot be downloaded: the server answers 404", 1),
    "redirect to a file": (
        *(lambda h: respond(h, 302, Location="file:///etc/hostname"), "cannot be downloaded", 1),
    ),
}


@pytest.mark.parametrize(("answer", "message", "requests"), REFUSED.values(), ids=REFUSED)
def test_files_are_refused_and_an_existing_one_is_kept(
    answer, message, requests, server, path, fetch
):
    path.parent.mkdir()
    path.write_bytes(b"old")
    if answer is not None:
        server.answers["/file"] = answer
    with pytest.raises(UserError, match=message):
        fetch()
    assert len(server.requests) == requests
    assert path.read_bytes() == b"old"
    assert all(file.stat().st_size <= SIZE for file in path.parent.iterdir())


def test_hashes_of_archives(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(CONTENT))
    Checksum(CHECKSUM.digest, unpacked=True).check(path)
    Checksum(hashlib.md5(path.read_bytes()).hexdigest(), "md5").check(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="expected a whole gzip file"):
        Checksum(CHECKSUM.digest, unpacked=True).check(path)
