"""The run directory, which belongs to one experiment and has one run at a time."""

import contextlib
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from jaxformer.errors import UserError, prefix_errors
from jaxformer.fields import STRICT, Facts, check_unchanged
from jaxformer.files import check_file_system, local_path, lock_folder, write_file
from jaxformer.runs import processes
from jaxformer.runs.manifest import saved_steps
from jaxformer.runs.mirror import fetch_copy
from jaxformer.runs.workdir import Workdir, code_digest, read_workdir_object, use_compilation_cache
from jaxformer.waits import announce

# Facts about sections and fields of settings, by names such as "mesh" and "training.steps".
FactsByName: TypeAlias = Mapping[str, Facts]


@runtime_checkable
class Settings(Protocol):
    """Settings of an experiment: sections of named values, from which ``from_dict`` builds them."""

    def to_dict(self) -> dict[str, dict[str, Any]]: ...

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Settings": ...


def prepare_run(
    folder: Workdir,
    settings: Settings,
    facts: FactsByName,
    mirror: str | None = None,
) -> None:
    """Restores files from the mirror, and checks the run as far as possible without its data."""
    use_compilation_cache()

    config = json.dumps(settings.to_dict())
    config_digest = hashlib.sha256(config.encode()).hexdigest()
    processes.check_agreement({"config": config_digest, "jaxformer": code_digest()})

    folder.check_writable()
    if mirror is not None:
        copy = Workdir(local_path(mirror))
        processes.on_primary(lambda: _check_mirror(copy, folder, settings, facts))
        if folder.config.exists():
            _check_fields(folder, settings, facts)

        with announce(f"comparing the checkpoints in {folder.path} with the copy in {copy.path}"):
            processes.on_primary(lambda: fetch_copy(copy, folder))

    # The workdir now has the files that were restored from the mirror.
    check_workdir(folder, settings, facts)


def _check_mirror(
    copy: Workdir,
    folder: Workdir,
    settings: Settings,
    facts: FactsByName,
) -> None:
    """Checks that the mirror is a new folder, or a copy of this run."""
    ours = folder.path.resolve()
    theirs = copy.path.resolve()
    if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
        raise UserError(
            f"expected training.mirror and --workdir to be two separate folders: got {copy.path} "
            f"and {folder.path}"
        )

    is_file = copy.path.exists() and not copy.path.is_dir()
    if is_file or not copy.path.parent.is_dir():
        raise UserError(
            f"training.mirror={copy.path}: expected a folder, or the name of a new one in the "
            f"existing folder {copy.path.parent}; mount its drive first"
        )

    if copy.config.exists():
        _check_fields(copy, settings, facts)
        # A copy that was interrupted lacks the identity.
        if folder.identity.exists() and copy.identity.exists():
            check_identity(copy, read_workdir_object(folder.identity))
        return

    # Without a config, the folder must not hold anything of another run.
    foreign = (copy.identity, copy.tokenizer, copy.checkpoints, copy.metrics)
    found = [path.name for path in foreign if path.exists()]
    if found:
        raise UserError(
            f"training.mirror={copy.path}: expected an empty folder or a copy of this run, found "
            f"{', '.join(found)} and no config.json; give another folder"
        )


def check_workdir(folder: Workdir, settings: Settings, facts: FactsByName) -> None:
    """Checks that the workdir is new, or has a run of the same experiment and its checkpoints."""
    folder.check_writable()
    if folder.config.exists():
        _check_fields(folder, settings, facts)
        _check_checkpoints(folder)
        return
    if folder.config.is_symlink():  # to a file that does not exist
        return

    steps = saved_steps(folder.checkpoints)
    if steps:
        raise UserError(
            f"{folder.path}: expected a new folder, or the {folder.config.name} of the run whose "
            f"checkpoint of step {steps[-1]} is there; bring it back, or give another --workdir"
        )


def _check_fields(folder: Workdir, settings: Settings, facts: FactsByName) -> None:
    """Checks that the saved settings describe the same experiment."""
    values = read_workdir_object(folder.config)
    unknown_sections = values.keys() - settings.to_dict().keys()
    if unknown_sections:
        raise UserError(
            f"{folder.path}: expected a workdir of this task, but it holds a run of another one; "
            "give another workdir"
        )
    with prefix_errors(str(folder.config)):
        saved = type(settings).from_dict(values)

    given = _fixed_fields(settings, facts)
    allowed = _allowed_changes(settings, given)
    for name, was in _fixed_fields(saved, facts).items():
        now = given.get(name)
        if was == now or name in allowed:
            continue

        # A path may change, but not appear or vanish.
        own = facts.get(name, STRICT)
        has_moved = own.may_move and was is not None and now is not None
        if has_moved:
            continue

        # The parameters serve a new run unless the field changes the layers.
        same_layers = not name.startswith("model.") or own.may_differ
        init_advice = ""
        if same_layers and "training.init_from" in given:
            init_advice = (
                f", or --config.training.init_from={folder.path} --workdir NEW to begin with "
                "its parameters"
            )

        raise UserError(
            f"{folder.path}: holds a run with {name}={was!r}, but {now!r} was given; give the "
            f"same config, or another folder{init_advice}"
        )


def _allowed_changes(settings: Settings, given: dict[str, Any]) -> set[str]:
    """Returns the fields that ``may_change`` names, in "training", or in "fit" of a custom task."""
    for section in ("fit", "training"):
        values = settings.to_dict().get(section, {})
        text = str(values.get("may_change", ""))

        # Names without a section are fields of this one.
        changes = set()
        for name in text.replace(" ", "").split(","):
            if "." in name:
                changes.add(name)
            elif name:
                changes.add(f"{section}.{name}")

        never_allowed = {name for name in given if name.startswith("model.")}
        never_allowed.add(f"{section}.best_metric")
        possible = given.keys() - never_allowed
        unknown = changes - possible
        if unknown:
            raise UserError(
                f"{section}.may_change: expected fields of training or data whose change would be "
                f"refused, except best_metric: got {', '.join(sorted(unknown))}"
            )

        if changes:
            return changes
    return set()


def _fixed_fields(settings: Settings, facts: FactsByName) -> dict[str, Any]:
    """Returns the values that a resumed run must not change, by name."""
    fields = {}
    for section, values in settings.to_dict().items():
        if facts.get(section, STRICT).may_change:
            continue
        for name, value in values.items():
            field = f"{section}.{name}"
            if not facts.get(field, STRICT).may_change:
                fields[field] = value
    return fields


def _check_checkpoints(folder: Workdir) -> None:
    """Checks that the checkpoints exist: their disk may not be mounted."""
    if saved_steps(folder.checkpoints):
        return
    step = folder.committed_step()
    if step is None and folder.checkpoints.is_dir():
        return  # stopped before its first checkpoint

    last = "" if step is None else f", the last one of step {step}"
    raise UserError(
        f"{folder.checkpoints}: expected the checkpoints of this run{last}, found none; mount or "
        f"bring back the folder that has them, or give another --workdir, or move {folder.path} "
        "away to start over"
    )


@contextlib.contextmanager
def only_run_in(folder: Workdir) -> Iterator[None]:
    """Creates the folder if needed and locks it; refuses unsuitable file systems."""

    def lock() -> None:
        if not held.enter_context(lock_folder(folder.path)):
            raise UserError(
                f"{folder.path}: another process is training in this folder; stop it or let it end "
                "(a stopped one saves its state first), or give another --workdir"
            )
        check_file_system(folder.path)

    with contextlib.ExitStack() as held:
        processes.on_primary(lock)
        yield


def check_identity(folder: Workdir, identity: dict[str, str]) -> None:
    """Checks that the data has not changed since the run in this workdir began, if there is one."""
    if not folder.config.exists():
        return

    began_with = read_workdir_object(folder.identity)
    names = dict.fromkeys([*identity, *began_with])  # each once, in this order
    for name in names:
        was = began_with.get(name)
        now = identity.get(name)
        if was != now:
            raise UserError(
                f"{folder.path}: the run began with other data: {name} was {was}, now {now}; give "
                "it the old data, or another --workdir"
            )


def check_metadata(
    directory: pathlib.Path,
    expected: dict[str, Any],
    metadata: dict[str, Any],
    advice: str = "use another --workdir",
) -> None:
    """Checks that a checkpoint was trained with the expected tokenizer, data and model."""
    identity = dict(expected)
    model = identity.pop("model", {})
    check_unchanged(model, metadata.get("model"), "model", str(directory))

    # Checkpoints of earlier versions record only the tokenizer.
    recorded = [name for name in identity if name in metadata]
    for name in recorded or identity:
        found = metadata.get(name)
        if found != identity[name]:
            raise UserError(
                f"{directory}: expected checkpoints of the {name} with SHA-256 "
                f"{identity[name]!s:.64}, but they are of {found!s:.64}; {advice}"
            )


def initialize_workdir(
    folder: Workdir,
    settings: Settings,
    identity: dict[str, str],
    save: Callable[[Workdir], None],
) -> None:
    """Writes the task's files by ``save``, the identity, and finally the config."""
    if not folder.config.exists():
        save(folder)
        content = json.dumps(identity, indent=2)
        write_file(folder.identity, content.encode())

    config = json.dumps(settings.to_dict(), indent=2) + "\n"
    write_file(folder.config, config.encode())
