"""The command ``data``, which downloads and prepares public corpora."""

import argparse
import sys

from jaxformer.data.catalog import CATALOG, is_present
from jaxformer.data.checksum import file_sha256
from jaxformer.data.fetching import MissingFilesError, fetch
from jaxformer.errors import UserError, did_you_mean
from jaxformer.files import data_directory


def data(options: argparse.Namespace) -> None:
    """Downloads and prepares the named corpora, or lists all of them."""
    for name in options.names:
        if name not in CATALOG:
            hint = did_you_mean(name, CATALOG, f"choose from {', '.join(CATALOG)}")
            raise UserError(f"unknown corpus {name}; {hint}")
    if not options.names:
        _list()
    for name in options.names:
        _fetch(name)


def _list() -> None:
    print(f"corpora in {data_directory()}; docs/data.md describes them:")
    for name, corpus in CATALOG.items():
        state = "present" if is_present(corpus) else "-"
        print(f"  {name:12} {state:8} {corpus.size:13} {corpus.folder:17} {corpus.license}")


def _fetch(name: str) -> None:
    corpus = CATALOG[name]
    try:
        folder = fetch(corpus)
    except MissingFilesError as error:
        print(f"{name} needs these files in {error.folder}:", file=sys.stderr)
        for file in error.files:
            print(f"  {file.name}  from  {file.url}", file=sys.stderr)
        raise
    print(f"{name}: {folder} ({corpus.license})")
    for file, recorded in corpus.files.items():
        path = folder / file
        digest = file_sha256(path)
        note = "" if not recorded else ", as in docs/data.md"
        if recorded not in ("", digest):
            note = ", not as in docs/data.md: scores may differ from ours"
        print(f"  {file}: {path.stat().st_size:,} bytes, SHA-256 {digest}{note}")
