"""Downloads and prepares the public corpora of the catalog."""

import os
import pathlib
import sys
from typing import Any

from jaxformer.data.catalog import PublicCorpus, is_present
from jaxformer.errors import UserError, needs_package
from jaxformer.files import data_directory, write_file
from jaxformer.version import __version__

_RETRIES = 2
_CHUNK = 1 << 20


def fetch(corpus: PublicCorpus) -> pathlib.Path:
    """Returns the folder of a corpus, which is downloaded and prepared if it is not there.

    Files that are in the folder of downloads already are used, if their hashes are right.

    Raises:
      UserError: A file cannot be downloaded, or is not what is expected; or pooch is missing.
      OSError: A file cannot be written.
    """
    folder, downloads = data_directory() / corpus.folder, data_directory() / corpus.downloads
    if is_present(corpus) and (corpus.prepare is not None or not corpus.hashes):
        return folder
    _download(corpus, downloads)
    if corpus.prepare is not None:
        try:
            prepared = corpus.prepare(downloads)
        except UserError as error:
            raise UserError(f"{error}; delete this file and run the same command again") from None
        for name, content in prepared.items():
            write_file(folder / name, content)
    return folder


def _download(corpus: PublicCorpus, downloads: pathlib.Path) -> None:
    """Downloads the files that are missing; each gets its name once its hash is right."""
    with needs_package("pooch", "which downloads corpora", extra="download"):
        import pooch
        import requests
    repository = pooch.create(
        downloads,
        base_url="",
        registry={name: corpus.hashes.get(name) for name in corpus.urls},
        urls=dict(corpus.urls),
        retry_if_failed=_RETRIES,
    )
    downloader: Any = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(),
        chunk_size=_CHUNK,
        # A server that compresses on the fly would make another file of a compressed one.
        headers={"User-Agent": f"jaxformer/{__version__}", "Accept-Encoding": "identity"},
    )
    for name, url in corpus.urls.items():
        try:
            repository.fetch(name, _share, downloader)
        except (requests.RequestException, ValueError) as error:
            known = f", whose hash is {corpus.hashes[name]}" if name in corpus.hashes else ""
            if (downloads / name).exists():
                known += "; the file that is there has another hash, delete it"
            raise UserError(
                f"{url}: cannot be downloaded; run the same command again when there is a network, "
                f"or put the file there yourself as {downloads / name}{known}: {error}"
            ) from None


def _share(path: str, action: str, _: object) -> str:
    """Makes a downloaded file readable for others, which pooch's temporary files are not."""
    if action != "fetch":
        os.chmod(path, 0o644)
    return path
