"""The command ``data``, which downloads and prepares public corpora."""

import argparse

from jaxformer.data.catalog import CATALOG, is_present
from jaxformer.data.fetching import fetch
from jaxformer.errors import UserError, did_you_mean
from jaxformer.files import data_directory, file_sha256


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
    folder = fetch(corpus)
    print(f"{name}: {folder} ({corpus.license})")
    for file, recorded in corpus.files.items():
        path = folder / file
        digest = file_sha256(path)
        note = "" if not recorded else ", as in docs/data.md"
        if recorded not in ("", digest):
            note = ", not as in docs/data.md: scores may differ from ours"
        print(f"  {file}: {path.stat().st_size:,} bytes, SHA-256 {digest}{note}")
