"""The command ``data``: downloads and prepares public corpora."""

from collections.abc import Sequence

from jaxformer.cli.command import Command
from jaxformer.data.catalog import CATALOG, download_corpus, is_present
from jaxformer.errors import UserError, did_you_mean
from jaxformer.files import data_directory, file_sha256


def list_corpora() -> str:
    """Returns a table of the corpora, and of whether they are present."""
    rows = [("NAME", "STATE", "SIZE", "FOLDER", "LICENSE")]
    for name, corpus in CATALOG.items():
        state = "present" if is_present(corpus) else "absent"
        rows.append((name, state, corpus.size, corpus.folder, corpus.license))
    return "\n".join("  {:12} {:8} {:13} {:17} {}".format(*row) for row in rows)


def data(names: Sequence[str] = ()) -> None:
    """Download and prepare the public corpora that the shipped configs read.

    Options:
      names (NAME): corpora to download (default: list all corpora)

    Example:
      jaxformer data                     # lists the corpora and their folder

      jaxformer data multi30k
      jaxformer train multi30k --workdir runs/multi30k

      {corpora}

      Corpora are in $JAXFORMER_DATA, by default below ~/.cache/jaxformer. After an interruption,
      the same command downloads the files that are missing.
    """
    for name in names:
        if name not in CATALOG:
            hint = did_you_mean(name, CATALOG, f"choose from {', '.join(CATALOG)}")
            raise UserError(f"unknown corpus {name}; {hint}")

    if not names:
        print(f"corpora in {data_directory()}; docs/data.md describes them:")
        print(list_corpora())

    for name in names:
        corpus = CATALOG[name]
        folder = download_corpus(corpus)
        print(f"{name}: {folder} ({corpus.license})")

        for file, recorded in corpus.files.items():
            path = folder / file
            digest = file_sha256(path)
            note = ""  # Some files have no recorded digest.
            if recorded == digest:
                note = ", as in docs/corpora.md"
            elif recorded:
                note = ", not as in docs/corpora.md: scores may differ from ours"
            print(f"  {file}: {path.stat().st_size:,} bytes, SHA-256 {digest}{note}")


COMMAND = Command("data", data, place=210, lists={"corpora": list_corpora})
