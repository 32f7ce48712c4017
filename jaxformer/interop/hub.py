"""Downloads models from the Hugging Face Hub."""

import functools
import pathlib
import re
from collections.abc import Callable
from typing import NamedTuple

from jaxformer.errors import UserError, needs_package
from jaxformer.inference.origins import name_folder

_PART = r"[A-Za-z0-9][\w.-]*"
# OWNER/MODEL, and perhaps @REVISION. The oldest models, such as gpt2 and t5-small, have no owner.
_NAME = re.compile(rf"((?:{_PART}/)?{_PART})(?:@([\w./-]+))?", re.ASCII)
# A folder in the cache of huggingface_hub.
_CACHED = re.compile(r"models--([^/]+)/snapshots/")


def describe_source(system: str, directory: pathlib.Path) -> str:
    """Returns the origin of an imported model, by its name on the Hub or its folder.

    >>> describe_source("Hugging Face", pathlib.Path("hub/models--org--gpt2/snapshots/1f"))
    'imported from Hugging Face: org/gpt2'
    """
    name = name_folder(directory)
    match = _CACHED.search(directory.as_posix())
    if match:
        name = match[1].replace("--", "/", 1)
    return f"imported from {system}: {name}"


class ModelFiles(NamedTuple):
    """Files of a model in the format of another system, in a folder or on the Hub."""

    model: str  # such as "a Marian model"
    needed: tuple[str, ...]  # "|" separates alternatives
    optional: tuple[str, ...]
    # Groups of files, each with all weights; the first group that exists is used. A group is the
    # name of the file that shows that it exists, and names or patterns of its other files.
    weights: tuple[tuple[str, ...], ...]


def model_folder(name: pathlib.Path, files: ModelFiles) -> pathlib.Path:
    """Returns the folder of a model: ``name`` itself, or a download if it is a name on the Hub.

    An existing folder has priority over a model on the Hub. Downloads are in the cache of
    huggingface_hub. Without a network, the newest cached commit is used. ``NAME@REVISION`` names a
    branch, a tag or a commit, and ``NAME`` may have no owner.
    """
    match = _NAME.fullmatch(name.as_posix())
    if name.exists() or not match:
        return name

    reason = f"which downloads models, since there is no folder {name}"
    with needs_package("huggingface_hub", reason, extra="interop"):
        from huggingface_hub import constants, errors, snapshot_download

    repository, revision = match.groups()
    address = f"{constants.ENDPOINT}/{repository}"
    download = functools.partial(snapshot_download, repository, revision=revision)

    try:
        return _download(download, address, files)

    except errors.GatedRepoError:
        raise UserError(
            f"{address}: expected a model that all may download, but its authors ask to accept "
            "their conditions; do so at this address, and set HF_TOKEN"
        ) from None

    except (errors.HFValidationError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise UserError(
            f"{address}: expected a model, but there is none, or it is private; check the name "
            f"{name}, which is not a folder either, or set HF_TOKEN"
        ) from None

    except (OSError, errors.HTTPError) as error:  # pyright: ignore[reportPrivateImportUsage]
        message = str(error).partition("\n")[0]
        raise UserError(
            f"{address}: cannot be downloaded, and there is no folder {name}; without a network, "
            f"give a folder with {', '.join(files.needed)}, {_weight_names(files)}, and if there "
            f"are any {' and '.join(files.optional)}: {message}"
        ) from None


def _download(download: Callable[..., str], address: str, files: ModelFiles) -> pathlib.Path:
    """Downloads the small files, and then the first group of weights that exists."""
    needed = [file.split("|") for file in files.needed]
    names = list(files.optional)
    for alternatives in needed:
        names += alternatives

    folder = pathlib.Path(download(allow_patterns=names))

    for alternatives in needed:
        if not any((folder / name).exists() for name in alternatives):
            raise UserError(f"{address}: expected {files.model}, but it has no {alternatives[0]}")

    for group in files.weights:
        download(allow_patterns=[*names, *group])
        if (folder / group[0]).exists():
            return folder

    raise UserError(
        f"{address}: expected {_weight_names(files)}, found neither there nor, without a "
        "network, in the cache"
    )


def _weight_names(files: ModelFiles) -> str:
    first_names = [group[0] for group in files.weights]
    return " or ".join(first_names)
