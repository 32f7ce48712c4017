"""Downloads over HTTP: resumed after interruptions, checked by hash, with a progress bar."""

import email.utils
import http
import http.client
import pathlib
import re
import socket
import time
import urllib.error
import urllib.request
from typing import Any

from tqdm import tqdm

from jaxformer.data.checksum import Checksum
from jaxformer.errors import UserError
from jaxformer.version import __version__

_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 30
# A connection that is cut after some progress is opened again, so long downloads survive.
_MOST_FAILURES_IN_ROW = 5
_PAUSE_SECONDS = 1.0
_INTERRUPTIONS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
)
_TEMPORARY = {http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_MANY_REQUESTS}


class DownloadError(UserError):
    """A file that cannot be downloaded: no network, or its server does not have it."""


def download(
    url: str, path: pathlib.Path, *, largest: int, checksum: Checksum | None = None
) -> None:
    """Downloads a file, or completes an interrupted download of it.

    The bytes are collected in ``<path>.partial``, which becomes ``path`` once its hash is right.

    Args:
      url: Address of the file.
      path: Place of the file; an existing one is replaced.
      largest: Largest plausible size in bytes; a server that sends more is refused.
      checksum: Hash of the file; None accepts any content.

    Raises:
      DownloadError: The server cannot be reached, or does not have the file.
      UserError: The server sends something else.
      OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    failures = 0
    while True:
        before = _size(partial)
        try:
            _fetch(url, partial, largest)
            break
        except _INTERRUPTIONS as error:
            failures = 1 if _size(partial) > before else failures + 1
            if failures == _MOST_FAILURES_IN_ROW or not _may_pass(error):
                raise DownloadError(f"{url}: cannot be downloaded: {_reason(error)}") from None
            time.sleep(_PAUSE_SECONDS * failures)
    if checksum is not None:
        try:
            checksum.check(partial)
        except UserError as error:
            partial.unlink()
            raise UserError(f"{url}: {error}; the file is not what it was, or damaged") from None
    partial.replace(path)


def _fetch(url: str, partial: pathlib.Path, largest: int) -> None:
    """Appends what is missing of a file; raises if the connection is cut."""
    start = _size(partial)
    since = email.utils.formatdate(partial.stat().st_mtime, usegmt=True) if start else ""
    response = _open(url, start, since)
    if response is None:
        return
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            start = 0  # The server cannot resume.
        elif _position(response.headers.get("Content-Range")) != start:
            partial.unlink()
            raise ConnectionError("the server resumes at another position")
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        _check_size(url, total or 0, largest)
        with (
            partial.open("r+b" if start else "wb") as file,
            tqdm(
                desc=partial.name.removesuffix(".partial"),
                total=total,
                initial=start,
                unit="B",
                unit_scale=True,
                disable=None,
            ) as bar,
        ):
            file.seek(start)
            while chunk := _read(response):
                _check_size(url, file.tell() + len(chunk), largest)
                file.write(chunk)
                bar.update(len(chunk))
            if total is not None and file.tell() < total:
                raise ConnectionError("the connection was cut")


def _read(response: Any) -> bytes:
    """Reads the next bytes; any error is one of the connection, not of a file of ours."""
    try:
        return response.read(_CHUNK)
    except OSError as error:
        raise ConnectionError(error.strerror or str(error)) from None


def _open(url: str, start: int, since: str = "") -> Any:
    """Requests a file from a position on; returns None if the file ends there.

    Args:
      url: Address of the file.
      start: The position.
      since: Date of what was downloaded of it; if the file is newer, all of it is requested.
    """
    headers = {"User-Agent": f"jaxformer/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Unmodified-Since": since}
    try:
        return urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        error.close()
        if start and error.code == http.HTTPStatus.PRECONDITION_FAILED:
            return _open(url, 0)
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise
        if error.headers.get("Content-Range") in (None, f"bytes */{start}"):
            return None
        return _open(url, 0)  # The file is now shorter than what was downloaded of it.


def _check_size(url: str, size: int, largest: int) -> None:
    if size > largest:
        raise UserError(f"{url}: expected at most {largest:,} bytes, got more")


def _position(content_range: str | None) -> int | None:
    """Returns the first position of a header such as ``bytes 5-9/10``."""
    found = re.match(r"bytes (\d+)-", content_range or "")
    return int(found[1]) if found else None


def _may_pass(error: Exception) -> bool:
    """Returns whether the same request may succeed later."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR or error.code in _TEMPORARY
    return not isinstance(getattr(error, "reason", None), socket.gaierror)


def _reason(error: Exception) -> object:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    return getattr(error, "reason", None) or error


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.exists() else 0
