"""Downloads over HTTP: resumed after interruptions, checked by hash, with a progress bar."""

import hashlib
import http
import http.client
import pathlib
import time
import urllib.error
import urllib.request

from tqdm import tqdm

from jaxformer.errors import UserError
from jaxformer.version import __version__

_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 30
# A connection that is cut after some progress is opened again, so long downloads survive.
_MOST_FAILURES_IN_ROW = 5
_PAUSE_SECONDS = 1.0


def download(url: str, path: pathlib.Path, *, largest: int, sha256: str | None = None) -> None:
    """Downloads a file, or completes an interrupted download of it.

    The bytes are collected in ``<path>.partial``, which becomes ``path`` once its hash is right.

    Args:
      url: Address of the file.
      path: Place of the file; an existing one is replaced.
      largest: Largest plausible size in bytes; a server that sends more is refused.
      sha256: Hash of the file, hexadecimal; None accepts any content.

    Raises:
      UserError: The server cannot be reached, or sends something else.
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
        except (urllib.error.HTTPError, UserError):
            raise
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError):
            failures = 1 if _size(partial) > before else failures + 1
            if failures == _MOST_FAILURES_IN_ROW:
                raise
            time.sleep(_PAUSE_SECONDS * failures)
    digest = sha256_of(partial)
    if sha256 is not None and digest != sha256:
        partial.unlink()
        raise UserError(f"{url}: expected a file with SHA-256 {sha256}, got {digest}")
    partial.replace(path)


def sha256_of(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fetch(url: str, partial: pathlib.Path, largest: int) -> None:
    """Appends what is missing of a file; raises if the connection is cut."""
    start = _size(partial)
    headers = {"User-Agent": f"jaxformer/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return  # The file is already complete; its hash tells.
        raise
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            start = 0  # The server cannot resume.
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else None
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
            while chunk := response.read(_CHUNK):
                if file.tell() + len(chunk) > largest:
                    raise UserError(f"{url}: expected at most {largest:,} bytes, got more")
                file.write(chunk)
                bar.update(len(chunk))
            if total is not None and file.tell() < total:
                raise ConnectionError(f"{url}: the connection was cut")


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.exists() else 0
