"""Download of Marian models from the Hugging Face hub."""

import os
import pathlib
import re
from typing import Any

from jaxformer.data.checksum import Checksum
from jaxformer.data.download import DownloadError, download
from jaxformer.errors import UserError
from jaxformer.files import MOST_BYTES, MOST_JSON_BYTES, cache_directory, lock_folder
from jaxformer.interop.marian_config import read_object

HUB = "https://huggingface.co"
_NEEDED = ("config.json", "source.spm", "target.spm", "vocab.json")
_OPTIONAL = ("generation_config.json", "tokenizer_config.json")
# The first of these that the hub has is downloaded; only the second needs PyTorch.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_MOST_WEIGHTS_BYTES = 8 << 30
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def marian_folder(name: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a model, downloaded if there is no such folder but a name of the hub.

    Downloads are kept in ``hub`` below the cache folder. ``HF_ENDPOINT`` names a mirror of the hub,
    as it does for Hugging Face's own tools.

    Args:
      name: A folder, or a name such as ``Helsinki-NLP/opus-mt-en-de``.

    Raises:
      UserError: The hub cannot be reached, or the model is none of Marian.
    """
    if name.exists() or not _NAME.fullmatch(name.as_posix()):
        return name
    hub = os.environ.get("HF_ENDPOINT") or HUB
    if not hub.startswith(("https://", "http://")):
        raise UserError(f"HF_ENDPOINT: expected an address such as {HUB}, got {hub}")
    folder = cache_directory() / "hub" / name
    try:
        with lock_folder(folder) as alone:
            if not alone:
                raise UserError(f"{folder}: another process is writing here; wait for its end")
            return _download(hub.rstrip("/"), name.as_posix(), folder)
    except DownloadError as error:
        raise UserError(
            f"{error}; {name} is no folder here. Without a network, get {', '.join(_NEEDED)}, "
            f"{' or '.join(_WEIGHTS)}, and if there are any {' and '.join(_OPTIONAL)} from "
            f"{hub}/{name}/tree/main elsewhere, put them into one folder, and give that folder"
        ) from None


def _download(hub: str, name: str, folder: pathlib.Path) -> pathlib.Path:
    """Downloads the newest commit of a model, unless it is there already.

    Without a network, the commit that was the newest before is used.
    """
    listing = folder / "listing.json"
    address = f"{hub}/api/models/{name}?blobs=true"
    listing.with_name("listing.json.partial").unlink(missing_ok=True)  # of another day
    try:
        download(address, listing, largest=MOST_JSON_BYTES)
    except DownloadError:
        if not listing.exists():
            raise
    commit, files = _parse(address, read_object(listing))
    weights = next((file for file in _WEIGHTS if file in files), _WEIGHTS[0])
    if missing := [file for file in (*_NEEDED, weights) if file not in files]:
        raise UserError(f"{hub}/{name}: expected a Marian model, but it has no {missing[0]}")
    folder = folder / commit
    for file in (*_NEEDED, *_OPTIONAL, weights):
        if file in files and not (folder / file).exists():
            digest = files[file]
            download(
                f"{hub}/{name}/resolve/{commit}/{file}",
                folder / file,
                largest=_MOST_WEIGHTS_BYTES if file == weights else MOST_BYTES,
                checksum=None if digest is None else Checksum(digest),
            )
    return folder


def _parse(address: str, listing: dict[str, Any]) -> tuple[str, dict[str, str | None]]:
    """Returns the commit and the SHA-256, which the hub knows of large files, by name."""
    try:
        commit, siblings = listing["sha"], listing["siblings"]
        files = {file["rfilename"]: (file.get("lfs") or {}).get("sha256") for file in siblings}
        if _COMMIT.fullmatch(commit):
            return commit, files
    except (AttributeError, KeyError, TypeError):
        pass
    raise UserError(f"{address}: expected the files of a model, as the Hugging Face hub lists them")
