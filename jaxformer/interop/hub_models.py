"""Models by their address on the Hugging Face Hub, hf://OWNER/NAME, fetched to our cache.

The workdir of a commit is written once. It is complete when it has its name, so that processes at
the same time, and killed ones, leave nothing unfinished.
"""

import os
import pathlib
import re
import shutil
import tempfile
from typing import Any

from jaxformer.errors import UserError, prefix_errors
from jaxformer.files import make_folder, model_cache, read_object
from jaxformer.inference.shortlist import NAME as SHORTLIST
from jaxformer.interop.hub import ModelFiles, ModelName, download
from jaxformer.interop.huggingface.importer import known_layouts
from jaxformer.interop.systems import Importer, known_systems
from jaxformer.version import __version__
from jaxformer.waits import announce

SCHEME = "hf://"
_COMMIT = re.compile("[0-9a-f]{40}")
# The files of every model; config.json tells which system has written it.
_CONFIG = ModelFiles(
    model="a model of jaxformer or transformers",
    needed=("config.json",),
    optional=(),
    weights=(),
)
# A run directory. Its state of training, if it has one, is in its checkpoints.
_RUN = ModelFiles(
    model="a run of jaxformer",
    needed=("config.json", "identity.json"),
    optional=("tokenizer.model", "committed.json", "metrics.jsonl", SHORTLIST),
    weights=(("checkpoints", "checkpoints/*", "averaged/*"),),
)


def fetch_model(address: str) -> pathlib.Path:
    """Returns a workdir with the model of an address: hf://OWNER/NAME, or hf://OWNER/NAME@REVISION.

    A run directory on the Hub is used as it is, and a model of transformers is imported. Both are
    in the cache, below ``models``, by the repository, the commit and our version.

    Raises:
      UserError: There is no such model, it cannot be downloaded and is not in the cache, or it
        cannot be imported.
    """
    name = ModelName.parse(address.removeprefix(SCHEME))
    if name is None:
        raise UserError(f"{address}: expected {SCHEME}OWNER/NAME, or {SCHEME}OWNER/NAME@REVISION")

    # A commit never changes.
    if name.revision and _COMMIT.fullmatch(name.revision):
        workdir = _workdir_of(name.repository, name.revision)
        if workdir.is_dir():
            return workdir

    folder = _download(name, _CONFIG)
    workdir = _workdir_of(name.repository, folder.name)
    if workdir.is_dir():
        return workdir

    with prefix_errors(address), announce(f"fetching {address}"):
        _write_workdir(name._replace(revision=folder.name), workdir)
    return workdir


def _workdir_of(repository: str, commit: str) -> pathlib.Path:
    """Returns the workdir of a commit; versions of ours may import a model in other ways."""
    return model_cache() / repository.replace("/", "--") / f"{commit}-{__version__}"


def _download(name: ModelName, files: ModelFiles) -> pathlib.Path:
    return download(
        name,
        files,
        reason="which downloads models",
        if_missing="check the name",
        if_offline="and is not in the cache",
    )


def _write_workdir(commit: ModelName, workdir: pathlib.Path) -> None:
    """Downloads a commit and writes its workdir, beside other processes that may do the same."""
    config = read_object(_download(commit, _CONFIG) / "config.json", advice="")
    make_folder(workdir.parent, "JAXFORMER_CACHE")

    with tempfile.TemporaryDirectory(prefix="unfinished.", dir=workdir.parent) as scratch:
        new = pathlib.Path(scratch) / "run"
        if "model_type" in config:
            importer = _importer_of(config["model_type"], commit.repository)
            assert importer.files is not None, "these systems have models on the Hub"
            importer.convert(_download(commit, importer.files), new)
        else:
            _copy_run(_download(commit, _RUN), new)

        try:
            new.rename(workdir)
        except OSError:
            if not workdir.is_dir():  # Another process may have written it meanwhile.
                raise


def _importer_of(model_type: Any, repository: str) -> Importer:
    """Returns the importer of a model, before a download that it would refuse."""
    systems = known_systems()
    if model_type == "marian":
        return systems["marian"].importer()

    layouts = known_layouts()
    if not isinstance(model_type, str) or model_type not in layouts:
        known = " or ".join(["marian", *layouts])
        raise UserError(f"expected model_type to be {known}: got {model_type!r:.80}")
    if layouts[model_type].has_languages:
        raise UserError(
            f"a model of many languages; convert it with jaxformer import hf {repository} "
            "--workdir DIR --source-language SOURCE --target-language TARGET"
        )
    return systems["hf"].importer()


def _copy_run(folder: pathlib.Path, workdir: pathlib.Path) -> None:
    """Copies the files of a run, which are links to other folders in a cache of huggingface_hub."""
    workdir.mkdir()
    for name in ("checkpoints", "averaged"):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, workdir / name)
    for name in (*_RUN.needed, *_RUN.optional):
        if os.path.exists(folder / name):
            shutil.copyfile(folder / name, workdir / name)
