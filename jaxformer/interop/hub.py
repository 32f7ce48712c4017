"""Downloads models from the Hugging Face Hub."""

import contextlib
import functools
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tqdm.auto import tqdm

from jaxformer.errors import UserError, needs_package
from jaxformer.inference.origins import name_folder

_PART = r"[A-Za-z0-9][\w.-]*"
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
    # name of the file that shows that it exists, and names or patterns of its other files. Without
    # any group, the small files are enough.
    weights: tuple[tuple[str, ...], ...]


class _TerminalBar(tqdm):
    """A progress bar for a terminal only; tqdm and huggingface_hub also write to files."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings.setdefault("disable", None)
        super().__init__(*arguments, **settings)


class ModelName(NamedTuple):
    """The name of a model on the Hub: OWNER/MODEL, and perhaps @REVISION.

    The oldest models, such as gpt2 and t5-small, have no owner. A revision is a branch, a tag or a
    commit; None is the main branch.
    """

    repository: str
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> "ModelName | None":
        """Returns the name in a text; None if the text is not one.

        >>> ModelName.parse("org/gpt2@v1")
        ModelName(repository='org/gpt2', revision='v1')
        """
        match = _NAME.fullmatch(text)
        return cls(*match.groups()) if match else None


def model_folder(name: pathlib.Path, files: ModelFiles) -> pathlib.Path:
    """Returns the folder of a model: ``name`` itself, or a download if it is a name on the Hub.

    An existing folder has priority over a model on the Hub.
    """
    parsed = ModelName.parse(name.as_posix())
    if name.exists() or parsed is None:
        return name

    needed = [file.replace("|", " or ") for file in files.needed]
    folder = ", ".join([*needed, _weight_names(files)])
    return download(
        parsed,
        files,
        reason=f"which downloads models, since there is no folder {name}",
        if_missing=f"check the name {name}, which is not a folder either",
        if_offline=f"and there is no folder {name}; without a network, give a folder with {folder}",
    )


def download(
    name: ModelName,
    files: ModelFiles,
    *,
    reason: str,
    if_missing: str,
    if_offline: str,
) -> pathlib.Path:
    """Downloads a model to the cache of huggingface_hub, and returns its folder, named by a commit.

    Without a network, the newest cached commit is used.

    Args:
      name: Name of the model.
      files: Files of the model.
      reason: The need for the package, in an error.
      if_missing: Advice if there is no such model.
      if_offline: End of the error that it cannot be downloaded.
    """
    with needs_package("huggingface_hub", reason, extra="interop"):
        from huggingface_hub import constants, snapshot_download

    address = f"{constants.ENDPOINT}/{name.repository}"
    fetch = functools.partial(
        snapshot_download,
        name.repository,
        revision=name.revision,
        tqdm_class=_TerminalBar,
    )
    with _explain_errors(address, if_missing=if_missing, if_offline=if_offline):
        return _download_groups(fetch, address, files)


@contextlib.contextmanager
def _explain_errors(address: str, *, if_missing: str, if_offline: str) -> Iterator[None]:
    """Raises the errors of a download as UserErrors."""
    from huggingface_hub import errors

    try:
        yield

    except errors.GatedRepoError:
        raise UserError(
            f"{address}: expected a model that all may download, but its authors ask to accept "
            "their conditions; do so at this address, and set HF_TOKEN"
        ) from None

    except (errors.HFValidationError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise UserError(
            f"{address}: expected a model, but there is none, or it is private; {if_missing}, or "
            "set HF_TOKEN"
        ) from None

    except (OSError, errors.HTTPError) as error:  # pyright: ignore[reportPrivateImportUsage]
        message = str(error).partition("\n")[0]
        raise UserError(f"{address}: cannot be downloaded, {if_offline}: {message}") from None


def _download_groups(
    fetch: Callable[..., str],
    address: str,
    files: ModelFiles,
) -> pathlib.Path:
    """Downloads the small files, and then the first group of weights that exists."""
    needed = [file.split("|") for file in files.needed]
    names = list(files.optional)
    for alternatives in needed:
        names += alternatives

    folder = pathlib.Path(fetch(allow_patterns=names))

    for alternatives in needed:
        if not any((folder / name).exists() for name in alternatives):
            raise UserError(f"{address}: expected {files.model}, but it has no {alternatives[0]}")

    if not files.weights:
        return folder
    for group in files.weights:
        fetch(allow_patterns=[*names, *group])
        if (folder / group[0]).exists():
            return folder

    raise UserError(
        f"{address}: expected {_weight_names(files)}, found neither there nor, without a "
        "network, in the cache"
    )


def _weight_names(files: ModelFiles) -> str:
    first_names = [group[0] for group in files.weights]
    return " or ".join(first_names)
