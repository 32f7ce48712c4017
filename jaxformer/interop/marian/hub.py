"""Downloads Marian models from the Hugging Face Hub."""

import functools
import pathlib
import re

from jaxformer.errors import UserError, needs_package

_NEEDED = ("config.json", "source.spm", "target.spm", "vocab.json")
_OPTIONAL = ("generation_config.json", "tokenizer_config.json")
# The first of these that exists is downloaded; only the second needs PyTorch.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?", re.ASCII)


def marian_folder(name: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a model; downloads a model of the Hub if there is no such folder.

    Downloads are in the cache of huggingface_hub. Without a network, the newest cached commit is
    used. ``NAME@REVISION`` names a branch, a tag or a commit.
    """
    found = _NAME.fullmatch(name.as_posix())
    if name.exists() or not found:
        return name
    with needs_package("huggingface_hub", "which downloads models", extra="interop"):
        from huggingface_hub import constants, errors, snapshot_download
    repository, revision = found.groups()
    address = f"{constants.ENDPOINT}/{repository}"
    download = functools.partial(snapshot_download, repository, revision=revision)
    try:
        folder = pathlib.Path(download(allow_patterns=[*_NEEDED, *_OPTIONAL]))
        if missing := [file for file in _NEEDED if not (folder / file).exists()]:
            raise UserError(f"{address}: expected a Marian model, but it has no {missing[0]}")
        for weights in _WEIGHTS:
            download(allow_patterns=[*_NEEDED, weights])
            if (folder / weights).exists():
                break
        else:
            raise UserError(
                f"{address}: expected {' or '.join(_WEIGHTS)}, found neither there nor, without a "
                "network, in the cache"
            )
    except errors.GatedRepoError:
        raise UserError(
            f"{address}: expected a model that all may download, but its authors ask to accept "
            "their conditions; do so at this address, and set HF_TOKEN"
        ) from None
    except (errors.HFValidationError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise UserError(
            f"{address}: expected a model, but there is none, or it is private; check the name "
            f"{name}, or set HF_TOKEN"
        ) from None
    except (OSError, errors.HTTPError) as error:  # pyright: ignore[reportPrivateImportUsage]
        message = str(error).partition("\n")[0]
        raise UserError(
            f"{address}: cannot be downloaded, and there is no folder {name}; without a network, "
            f"give a folder with {', '.join(_NEEDED)}, {' or '.join(_WEIGHTS)}, and if there are "
            f"any {' and '.join(_OPTIONAL)}: {message}"
        ) from None
    return folder
