"""The command ``data``: downloads and prepares public corpora."""

from collections.abc import Sequence

from jaxformer.data.catalog import CATALOG, download_corpus, is_present
from jaxformer.errors import UserError, did_you_mean
from jaxformer.files import data_directory, file_sha256


def data(names: Sequence[str] = ()) -> None:
    """Download and prepare the public corpora that the shipped configs read.

    Options:
      names (NAME): corpora to download (default: list all corpora)

    Example:
      jaxformer data                     # lists the corpora and their folder

      jaxformer data multi30k
      python train.py --config=configs/multi30k.py --workdir=runs/multi30k

      Corpora are in $JAXFORMER_DATA, by default below ~/.cache/jaxformer. After an interruption,
      the same command downloads the files that are missing.
    """
    for name in names:
        if name not in CATALOG:
            hint = did_you_mean(name, CATALOG, f"choose from {', '.join(CATALOG)}")
            raise UserError(f"unknown corpus {name}; {hint}")
    if not names:
        print(f"corpora in {data_directory()}; docs/data.md describes them:")
        for name, corpus in CATALOG.items():
            state = "present" if is_present(corpus) else "-"
            print(f"  {name:12} {state:8} {corpus.size:13} {corpus.folder:17} {corpus.license}")
    for name in names:
        corpus = CATALOG[name]
        folder = download_corpus(corpus)
        print(f"{name}: {folder} ({corpus.license})")
        for file, recorded in corpus.files.items():
            digest, size = file_sha256(folder / file), (folder / file).stat().st_size
            note = ", as in docs/data.md" if recorded else ""
            if recorded not in ("", digest):
                note = ", not as in docs/data.md: scores may differ from ours"
            print(f"  {file}: {size:,} bytes, SHA-256 {digest}{note}")
