"""Uploads a model to the Hugging Face Hub, with a model card."""

import contextlib
import dataclasses
import json
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from jaxformer.errors import UserError, needs_package
from jaxformer.files import write_file
from jaxformer.inference.conversions import write_model
from jaxformer.inference.origins import name_folder
from jaxformer.inference.shortlist import NAME as SHORTLIST
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.formats import Usage
from jaxformer.interop.hub import ModelName
from jaxformer.interop.hub_models import SCHEME
from jaxformer.interop.huggingface import exporter
from jaxformer.interop.model_card import code_block, facts_of_model, languages_of, write_card
from jaxformer.nn.precision import dequantize
from jaxformer.plots.learning_curve import read_metrics
from jaxformer.runs.workdir import Workdir, read_workdir_object
from jaxformer.version import __version__

PUSH = "jaxformer push"  # the command, in messages and workdirs
# What a Hub writes into every repository.
_KEPT = ".gitattributes"


class Pushed(NamedTuple):
    """A model that was uploaded."""

    url: str  # of its page
    format: str
    size: int  # bytes of its files
    commit: str
    use: str  # a sentence about its use in jaxformer


def push_model(
    workdir: str | pathlib.Path,
    name: str,
    *,
    weights: str | int = "auto",
    private: bool = False,
    update: bool = False,
    license: str | None = None,
) -> Pushed:
    """Uploads the model of a workdir in one commit, which ``hf://NAME`` loads.

    A model that transformers has is in the layout of transformers. Any other model is a run
    directory of jaxformer, without the state of training.

    Args:
      workdir: The run directory.
      name: OWNER/NAME, or OWNER/NAME@BRANCH.
      weights: Checkpoint; see :func:`~jaxformer.load_model`.
      private: Create a private repository.
      update: Replace the files of a repository that exists.
      license: Identifier of the license, such as "apache-2.0", for the card.

    Raises:
      UserError: There is no token, no network or no such model, or the repository exists.
    """
    target = ModelName.parse(name.removeprefix(SCHEME))
    if target is None or "/" not in target.repository:
        raise UserError(f"{name}: expected the name of a model to upload, OWNER/NAME")
    if license is not None and not re.fullmatch(r"[\w.+-]+", license, re.ASCII):
        raise UserError(f"--license: expected an identifier, such as apache-2.0: got {license!r}")
    _check_token()

    model = TrainedModel.load(workdir, weights=weights)
    is_foreign = exporter.can_write(model)
    if is_foreign and model.config.model.compute_dtype == "int8":
        model = TrainedModel.load(workdir, weights=weights, dequantized=True)
    model = dataclasses.replace(model, params=jax.device_get(model.params))

    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "model"
        folder.mkdir()
        usage = exporter.write(model, folder) if is_foreign else _write_run(model, folder)
        card = _card(model, target, usage, is_foreign=is_foreign, license=license)
        write_file(folder / "README.md", card.encode())

        paths = [path for path in folder.rglob("*") if path.is_file()]
        files = {path.relative_to(folder).as_posix(): path for path in paths}
        size = sum(path.stat().st_size for path in paths)
        address = f"{SCHEME}{_with_revision(target)}"
        url, commit = _upload(files, target, private=private, update=update)

    use = model.config.kind.use.format(workdir=address)
    return Pushed(url=url, format=usage.format, size=size, commit=commit, use=use)


def _check_token() -> None:
    with needs_package("huggingface_hub", "which uploads models", extra="interop"):
        from huggingface_hub import get_token

    if get_token() is None:
        raise UserError(
            "expected a token of the Hugging Face Hub that may write: there is none; set HF_TOKEN, "
            "or run hf auth login"
        )


def _with_revision(name: ModelName) -> str:
    return name.repository if name.revision is None else f"{name.repository}@{name.revision}"


def _write_run(model: TrainedModel, folder: pathlib.Path) -> Usage:
    """Writes a run directory with one checkpoint, of the parameters only."""
    source = model.folder
    write_model(
        Workdir(folder),
        PUSH,
        identity=read_workdir_object(source.identity),
        tokenizer=model.tokenizer_file,
        config=model.config,
        params=model.params,
        class_names=source.read_class_names(),
        origin=f"{name_folder(source.path)}, {model.weights}",
    )
    for path in (source.metrics, source.path / SHORTLIST):
        if path.is_file():
            shutil.copyfile(path, folder / path.name)

    return Usage(
        format="a run directory of jaxformer",
        requires="jaxformer",
        code="",
        notes=("`metrics.jsonl` has the metrics of the training run, if it is there.",),
    )


def _card(
    model: TrainedModel,
    name: ModelName,
    usage: Usage,
    *,
    is_foreign: bool,
    license: str | None,
) -> str:
    """Returns the card, which begins with the fields that the Hub reads."""
    fields: dict[str, Any] = {
        "library_name": "transformers" if is_foreign else "jaxformer",
        "tags": ["jaxformer", model.config.model.architecture],
    }
    if license is not None:
        fields["license"] = license
    languages = [each for each in languages_of(model) if re.fullmatch("[a-z]{2,3}", each)]
    if languages:
        fields["language"] = languages

    # Facts are about numbers, also of a model in int8.
    numbers = jax.device_get(dequantize(model.params))
    facts = facts_of_model(dataclasses.replace(model, params=numbers))
    if license is not None:
        facts["license"] = license
    facts |= _scores(model.folder)

    address = f"{SCHEME}{_with_revision(name)}"
    sentence = model.config.kind.use.format(workdir=address)
    command = re.sub(r"jaxformer .*", lambda found: f"`{found[0]}`", sentence)
    use = (
        f"With jaxformer, {command}, or in Python:\n\n```python\n"
        f'from jaxformer import load_model\n\nmodel, params = load_model("{address}")\n```'
    )
    if is_foreign:
        remote = f'from_pretrained("{name.repository}")'
        code = usage.code.replace('from_pretrained(".")', remote)
        use += f"\n\nWith transformers, {code_block(usage._replace(code=code), '')}"

    # JSON is YAML, too.
    header = "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())
    _, _, title = name.repository.partition("/")
    return f"---\n{header}---\n\n{write_card(model, title, usage, use=use, facts=facts)}"


def _scores(source: Workdir) -> dict[str, str]:
    """Returns the values of the last validation of a run."""
    if not source.metrics.is_file():
        return {}

    records = [each for each in read_metrics(source.metrics) if each.get("kind") == "valid"]
    if not records:
        return {}

    last = records[-1]
    scores = {}
    for name, value in last.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in ("kind", "step") and is_number:
            key = f"validation {name.replace('_', ' ')} at step {last.get('step')}"
            scores[key] = f"{value:.4g}"
    return scores


def _upload(
    files: dict[str, pathlib.Path],
    name: ModelName,
    *,
    private: bool,
    update: bool,
) -> tuple[str, str]:
    """Uploads files in one commit; returns the address of the repository and the commit."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants

    repository = name.repository
    url = f"{constants.ENDPOINT}/{repository}"
    api = HfApi(endpoint=constants.ENDPOINT, library_name="jaxformer", library_version=__version__)

    operations: list[Any] = [
        CommitOperationAdd(path_in_repo=path, path_or_fileobj=str(file))
        for path, file in sorted(files.items())
    ]
    with _explain_errors(url), _bars_only_in_terminals():
        api.create_repo(repository, private=private or None, exist_ok=update)
        if name.revision is not None:
            api.create_branch(repository, branch=name.revision, exist_ok=True)

        # Files of an older model, perhaps in another layout, would be mistaken for the new one's.
        old = set(api.list_repo_files(repository, revision=name.revision))
        for path in sorted(old - files.keys() - {_KEPT}):
            operations.append(CommitOperationDelete(path_in_repo=path))

        done = api.create_commit(
            repository,
            operations,
            commit_message=f"Push a model with jaxformer {__version__}",
            revision=name.revision,
        )
    return url, done.oid


@contextlib.contextmanager
def _bars_only_in_terminals() -> Iterator[None]:
    """Disables the progress bars of huggingface_hub where they would go to a file."""
    from huggingface_hub import utils

    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if is_terminal or utils.are_progress_bars_disabled():
        yield
        return

    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


@contextlib.contextmanager
def _explain_errors(url: str) -> Iterator[None]:
    """Raises the errors of an upload as UserErrors."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        reasons = {
            401: "expected a token that the Hub knows: it refuses this one; set another HF_TOKEN",
            403: "expected a token that may write there: it may not; set another HF_TOKEN, or give "
            "another OWNER",
            409: "exists already; give --update to replace its files in a new commit",
        }
        reason = reasons.get(status, f"cannot be written: {_first_line(error)}")
        raise UserError(f"{url}: {reason}") from None
    except (OSError, RuntimeError, ValueError, errors.HTTPError) as error:  # pyright: ignore[reportPrivateImportUsage]
        raise UserError(f"{url}: cannot be written: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    """Returns the reason of an error, which for a failed upload of a file is its cause."""
    return str(error.__cause__ or error).partition("\n")[0]
