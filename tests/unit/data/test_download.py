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


def respond(handler, code, body=b"", **headers):
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def changed(handler):
    """Has a newer file than the one that an earlier download began with."""
    before = handler.headers["If-Unmodified-Since"]
    if before and email.utils.parsedate_to_datetime(before).year < 2020:
        return respond(handler, 412)
    serve(CONTENT)(handler)


def resumes_elsewhere(handler):
    if not handler.headers["Range"]:
        return serve(CONTENT)(handler)
    place = {"Content_Range": f"bytes 100-{SIZE - 1}/{SIZE}", "Content_Length": str(SIZE - 100)}
    respond(handler, 206, CONTENT[100:], **place)


WHOLE = serve(CONTENT)
# Content of the partial file, an answer, and the expected header Range of each request.
RESUMED = {
    "new": (b"", WHOLE, [None]),
    "cut again and again": (
        *(b"", serve(CONTENT, cut_after=1000)),
        [None, *(f"bytes={start}-" for start in range(1000, SIZE, 1000))],
    ),
    "interrupted": (CONTENT[:5000], WHOLE, ["bytes=5000-"]),
    "changed since": (b"x" * 5000, changed, ["bytes=5000-", None]),
    "all is sent again": (b"x" * 5000, serve(CONTENT, resumes=False), ["bytes=5000-"]),
    "resumes elsewhere": (CONTENT[:5000], resumes_elsewhere, ["bytes=5000-", None]),
    "complete": (CONTENT, WHOLE, [f"bytes={SIZE}-"]),
    "shorter since": (CONTENT + bytes(500), WHOLE, [f"bytes={SIZE + 500}-", None]),
}


@pytest.mark.parametrize(("partial", "answer", "expected"), RESUMED.values(), ids=RESUMED)
def test_downloads_are_resumed(partial, answer, expected, server, path, fetch):
    if partial:
        path.parent.mkdir()
        path.with_name("file.partial").write_bytes(partial)
        os.utime(path.with_name("file.partial"), (10**9, 10**9))
    server.answers["/file"] = answer
    assert fetch() == CONTENT
    assert [asked for _, asked in server.requests] == expected
    assert [file.name for file in path.parent.iterdir()] == ["file"]
    assert file_sha256(path) == CHECKSUM.digest


def test_errors_of_the_connection_are_retried(server, fetch, monkeypatch):
    """Such as "No route to host" in the middle of a file."""
    read, failures = http.client.HTTPResponse.read, [OSError(errno.EHOSTUNREACH, "No route")] * 2

    def failing(response, amount=None):
        if failures:
            raise failures.pop()
        return read(response, amount)

    monkeypatch.setattr(http.client.HTTPResponse, "read", failing)
    server.answers["/file"] = WHOLE
    assert fetch() == CONTENT


@pytest.mark.parametrize("code", [429, 500, 503])
def test_temporary_failures_are_retried(server, fetch, code):
    def answer(handler):
        if len(server.requests) < 4:
            return handler.send_error(code)
        WHOLE(handler)

    server.answers["/file"] = answer
    assert fetch() == CONTENT
    server.answers["/file"] = lambda handler: handler.send_error(code)
    with pytest.raises(DownloadError, match=f"the server answers {code}"):
        fetch()


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(bytes(1000))


def announces(length):
    return lambda handler: respond(handler, 200, CONTENT, Content_Length=str(length))


def redirect(place):
    return lambda handler: respond(handler, 302, Location=place)


# Answer, largest size, message, and the number of requests.
REFUSED = {
    "wrong hash": (
        *(serve(CONTENT[:-1] + b"x"), SIZE),
        *(rf"/file: .*expected SHA-256 {CHECKSUM.digest}, got \w+", 1),
    ),
    "large": (WHOLE, 10_000, "expected at most 10,000 bytes, got more", 1),
    "endless": (endless, SIZE, "expected at most 10,240 bytes, got more", 1),
    "announced as shorter": (announces(SIZE - 10), 20_000, "expected SHA-256", 1),
    # This looks like a connection that is cut again and again.
    "announced as longer": (announces(SIZE + 10), 20_000, "cannot be downloaded: the conn", 5),
    "missing": (None, SIZE, "/file: cannot be downloaded: the server answers 404", 1),
    "redirect to a file": (redirect("file:///etc/hostname"), SIZE, "cannot be downloaded", 1),
    "redirect to itself": (redirect("/file"), SIZE, "cannot be downloaded", None),
}


@pytest.mark.parametrize(
    ("answer", "largest", "message", "requests"), REFUSED.values(), ids=REFUSED
)
def test_files_are_refused(answer, largest, message, requests, server, path, fetch, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 1000)
    if answer is not None:
        server.answers["/file"] = answer
    with pytest.raises(UserError, match=message):
        fetch(largest)
    assert requests in (None, len(server.requests))
    assert not path.exists()
    assert all(file.stat().st_size <= largest for file in path.parent.glob("*"))


def test_an_existing_file_is_kept_until_its_successor_is_whole(server, path, fetch):
    path.parent.mkdir()
    path.write_bytes(b"old")
    server.answers["/file"] = serve(b"wrong")
    with pytest.raises(UserError):
        fetch()
    assert [file.read_bytes() for file in path.parent.iterdir()] == [b"old"]
    server.answers["/file"] = WHOLE
    assert fetch() == CONTENT


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


def test_redirects_are_followed_and_resumed(server, fetch):
    server.answers["/file"] = redirect("/elsewhere")
    server.answers["/elsewhere"] = serve(CONTENT, cut_after=9000)
    assert fetch() == CONTENT
    assert ("/elsewhere", "bytes=9000-") in server.requests


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
    assert {(0, 8000, SIZE), (8000, SIZE, SIZE)} <= set(seen)
