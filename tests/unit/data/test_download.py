"""Downloads from a server on this machine that misbehaves in every way we know."""

import email.utils
import errno
import gzip
import hashlib
import http.client
import os
import re
import socket

import pytest

from jaxformer.data import download as module
from jaxformer.data.checksum import Checksum, file_sha256
from jaxformer.data.download import DownloadError, download
from jaxformer.errors import UserError

from .conftest import serve

CONTENT = bytes(range(256)) * 40
SIZE = len(CONTENT)
CHECKSUM = Checksum(hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "file"


@pytest.fixture
def fetch(server, path):
    def fetch(largest=SIZE, checksum=CHECKSUM):
        download(f"{server.url}/file", path, largest=largest, checksum=checksum)
        return path.read_bytes()

    return fetch


def ranges(server):
    return [asked for _, asked in server.requests]


def test_whole_file(server, path, fetch):
    server.answers["/file"] = serve(CONTENT)
    assert fetch() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["file"]
    assert file_sha256(path) == CHECKSUM.digest


def test_connections_that_are_cut_are_resumed(server, fetch):
    server.answers["/file"] = serve(CONTENT, cut_after=1000)
    assert fetch() == CONTENT
    assert ranges(server) == [None, *(f"bytes={start}-" for start in range(1000, 10_240, 1000))]


def test_an_interrupted_download_is_completed(server, path, fetch):
    path.parent.mkdir()
    path.with_name("file.partial").write_bytes(CONTENT[:5000])
    server.answers["/file"] = serve(CONTENT)
    assert fetch() == CONTENT
    assert ranges(server) == ["bytes=5000-"]


def test_a_file_that_has_changed_is_downloaded_anew(server, path, fetch):
    """Old bytes are not completed with new ones, though no hash would notice."""

    def answer(handler):
        before = handler.headers["If-Unmodified-Since"]
        if before and email.utils.parsedate_to_datetime(before).year < 2020:
            handler.send_response(412)
            handler.end_headers()
            return
        serve(CONTENT)(handler)

    path.parent.mkdir()
    partial = path.with_name("file.partial")
    partial.write_bytes(b"x" * 5000)
    os.utime(partial, (10**9, 10**9))
    server.answers["/file"] = answer
    assert fetch(checksum=None) == CONTENT
    assert ranges(server) == ["bytes=5000-", None]


def test_errors_of_the_connection_are_retried(server, fetch, monkeypatch):
    """Such as "No route to host" in the middle of a file."""
    read, failures = http.client.HTTPResponse.read, [OSError(errno.EHOSTUNREACH, "No route")] * 2

    def failing(response, amount=None):
        if failures:
            raise failures.pop()
        return read(response, amount)

    monkeypatch.setattr(http.client.HTTPResponse, "read", failing)
    server.answers["/file"] = serve(CONTENT)
    assert fetch() == CONTENT


def test_a_server_that_cannot_resume_sends_all_again(server, path, fetch):
    path.parent.mkdir()
    path.with_name("file.partial").write_bytes(b"x" * 5000)
    server.answers["/file"] = serve(CONTENT, resumes=False)
    assert fetch() == CONTENT


@pytest.mark.parametrize("end", [len(CONTENT), len(CONTENT) + 500])
def test_nothing_is_left_to_download(server, path, fetch, end):
    """The download was complete, or the file has become shorter and is downloaded again."""
    path.parent.mkdir()
    path.with_name("file.partial").write_bytes((CONTENT + bytes(500))[:end])
    server.answers["/file"] = serve(CONTENT)
    assert fetch() == CONTENT
    assert ranges(server) == [f"bytes={end}-"] + [None] * (end > len(CONTENT))


def test_a_server_that_resumes_elsewhere(server, path, fetch):
    def answer(handler):
        if not handler.headers["Range"]:
            return serve(CONTENT)(handler)
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 100-{len(CONTENT) - 1}/{len(CONTENT)}")
        handler.send_header("Content-Length", str(len(CONTENT) - 100))
        handler.end_headers()
        handler.wfile.write(CONTENT[100:])

    path.parent.mkdir()
    path.with_name("file.partial").write_bytes(CONTENT[:5000])
    server.answers["/file"] = answer
    assert fetch() == CONTENT


def test_a_wrong_hash_is_refused(server, path, fetch):
    server.answers["/file"] = serve(CONTENT[:-1] + b"x")
    with pytest.raises(UserError, match=rf"/file: .*expected SHA-256 {CHECKSUM.digest}, got \w+"):
        fetch()
    assert list(path.parent.iterdir()) == []
    server.answers["/file"] = serve(CONTENT)
    assert fetch() == CONTENT


def test_an_existing_file_is_kept_until_its_successor_is_whole(server, path, fetch):
    path.parent.mkdir()
    path.write_bytes(b"old")
    server.answers["/file"] = serve(b"wrong")
    with pytest.raises(UserError):
        fetch()
    assert path.read_bytes() == b"old"


def test_hash_functions(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(CONTENT))
    Checksum(CHECKSUM.digest, unpacked=True).check(path)
    Checksum(hashlib.md5(path.read_bytes()).hexdigest(), "md5").check(path)
    with pytest.raises(UserError, match="expected SHA-256 of the content 00, got"):
        Checksum("00", unpacked=True).check(path)
    with pytest.raises(UserError, match="expected MD5 00, got"):
        Checksum("00", "md5").check(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="expected a whole gzip file"):
        Checksum(CHECKSUM.digest, unpacked=True).check(path)


def test_files_that_are_announced_as_huge_are_refused(server, path, fetch):
    server.answers["/file"] = serve(CONTENT)
    with pytest.raises(UserError, match="expected at most 10,000 bytes, got more"):
        fetch(largest=10_000)
    assert list(path.parent.iterdir()) == []


def test_endless_files_are_refused(server, path, fetch, monkeypatch):
    def answer(handler):
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(bytes(1000))

    monkeypatch.setattr(module, "_CHUNK", 1000)
    server.answers["/file"] = answer
    with pytest.raises(UserError, match="expected at most 10,240 bytes, got more"):
        fetch()
    assert path.with_name("file.partial").stat().st_size <= 10_240


@pytest.mark.parametrize("length", [len(CONTENT) - 10, len(CONTENT) + 10])
def test_sizes_that_lie(server, fetch, length):
    """A body that is too short looks like a connection that is cut again and again."""

    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(length))
        handler.end_headers()
        handler.wfile.write(CONTENT)

    server.answers["/file"] = answer
    with pytest.raises(UserError, match=r"expected SHA-256|cannot be downloaded: the conn"):
        fetch(largest=20_000)
    assert len(server.requests) == (1 if length < len(CONTENT) else 5)


def test_a_server_without_the_file(server, path, fetch):
    with pytest.raises(DownloadError, match="/file: cannot be downloaded: the server answers 404"):
        fetch()
    assert len(server.requests) == 1
    assert not path.exists()


@pytest.mark.parametrize("code", [429, 500, 503])
def test_temporary_failures_are_retried(server, fetch, code):
    def answer(handler):
        if len(server.requests) < 4:
            return handler.send_error(code)
        serve(CONTENT)(handler)

    server.answers["/file"] = answer
    assert fetch() == CONTENT
    server.answers["/file"] = lambda handler: handler.send_error(code)
    with pytest.raises(DownloadError, match=f"the server answers {code}"):
        fetch()


def redirect(place):
    def answer(handler):
        handler.send_response(302)
        handler.send_header("Location", place)
        handler.end_headers()

    return answer


def test_redirects_are_followed_and_resumed(server, fetch):
    server.answers["/file"] = redirect("/elsewhere")
    server.answers["/elsewhere"] = serve(CONTENT, cut_after=9000)
    assert fetch() == CONTENT
    assert ("/elsewhere", "bytes=9000-") in server.requests


@pytest.mark.parametrize("place", ["file:///etc/hostname", "/file"], ids=["file", "loop"])
def test_redirects_that_are_refused(server, path, fetch, place):
    server.answers["/file"] = redirect(place)
    with pytest.raises(DownloadError, match="cannot be downloaded"):
        fetch(checksum=None)
    assert not path.exists()


def test_a_silent_server(server, fetch, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT_SECONDS", 0.1)
    server.answers["/file"] = lambda handler: handler.rfile.read(1)
    with pytest.raises(DownloadError, match="timed out"):
        fetch()


def test_no_server(server, path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/file"
    with pytest.raises(DownloadError, match="Connection refused"):
        download(url, path, largest=1)
    url = "http://nowhere.invalid/file"
    with pytest.raises(DownloadError, match=re.escape(f"{url}: cannot be downloaded: ")):
        download(url, path, largest=1)


def test_the_progress_bar_counts_bytes(server, fetch, monkeypatch):
    seen = []

    class Bar(module.tqdm):
        def close(self):
            seen.append((self.initial, self.n, self.total))
            super().close()

    monkeypatch.setattr(module, "tqdm", lambda **settings: Bar(**settings | {"disable": False}))
    server.answers["/file"] = serve(CONTENT, cut_after=8000)
    assert fetch() == CONTENT
    assert (0, 8000, 10_240) in seen
    assert (8000, 10_240, 10_240) in seen
