"""The folder of a step: its name, files and lock, and the manifest with a SHA-256 of every file.

The score, which is known only later, is in a separate file next to the manifest. Both files also
contain the hash of their own content.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import operator
import os
import pathlib
import shutil
import stat
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.files import MAX_JSON_BYTES, file_sha256, lock_file, read_json, write_file

MANIFEST = "manifest.json"
SCORE = "score.json"
METADATA = "_METADATA"
# Without these files, orbax would expect another format, with other file names.
_ESSENTIAL = {METADATA, "manifest.ocdbt"}
# Orbax writes these two files after the manifest. They hold only timestamps.
_UNVERIFIED = ("_CHECKPOINT_METADATA", "commit_success.txt")
# Errors of open() if the saved file is missing or replaced; after others, it may be intact.
_MISSING = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP}

T = TypeVar("T")


class DamagedError(UserError):
    """A step on disk differs from the saved step."""


class MissingStepError(DamagedError):
    """There is no such step; a run that trains there may have removed it."""


def saved_steps(directory: pathlib.Path) -> list[int]:
    """Returns the complete steps in a folder, ascending; none if there is no folder."""
    if not directory.is_dir():
        return []

    names = [path.name for path in directory.iterdir()]
    steps = [int(name) for name in names if _is_step_name(name)]
    return sorted(steps)


def is_step(path: pathlib.Path) -> bool:
    """Returns whether this is the folder of a step, judging by its name and its manifest."""
    return _is_step_name(path.name) and (path / MANIFEST).is_file()


def _is_step_name(name: str) -> bool:
    is_number = name.isascii() and name.isdecimal()
    return is_number and name == str(int(name))  # not "007"


def temporary_folder(directory: pathlib.Path, step: int | str) -> pathlib.Path:
    """Returns the folder of a step that is being written; the next writer removes it."""
    return directory / f"{step}{ocp.utils.TMP_DIR_SUFFIX}"


def mark_damaged(step: pathlib.Path) -> None:
    """Renames a damaged step, so that the same step can be saved again."""
    aside = step.with_name(f"{step.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    step.rename(aside)


def list_files(step: pathlib.Path) -> dict[str, os.stat_result]:
    """Returns the status of all files in a step by name, except folders; links are not followed."""
    found = {}
    for path in step.rglob("*"):
        # File managers and network file systems create hidden files at any time.
        if path.name.startswith("."):
            continue

        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            found[path.relative_to(step).as_posix()] = status
    return found


def lock_step(step: pathlib.Path, *, shared: bool) -> contextlib.AbstractContextManager[bool]:
    """Locks a step, shared to read it, exclusively to remove it; yields whether it succeeded."""
    path = step / MANIFEST
    if not path.exists():
        return contextlib.nullcontext(True)
    return lock_file(path, shared=shared)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Contents of a step; ``files`` are known once the manifest is read."""

    step: int
    metadata: dict[str, Any]
    score: float | None  # of a step that an earlier version saved after its validation
    keep: int  # number of newest steps that the run keeps
    leaves: dict[str, str]  # dtype and shape of the arrays, as of describe_leaves
    interim: bool = False  # whether the step is kept only until the next save
    files: dict[str, str] = dataclasses.field(default_factory=dict)  # SHA-256 by name

    def write(self, folder: pathlib.Path) -> None:
        """Writes the manifest into the folder of a step, with the hashes of its files."""
        names = []
        for name in list_files(folder):
            if not name.startswith(_UNVERIFIED):
                names.append(name)

        missing = sorted(_ESSENTIAL.difference(names))
        if missing:
            raise FileNotFoundError(f"{folder}: orbax has not written {', '.join(missing)}")

        step = dataclasses.asdict(self)
        del step["files"]
        files = {}
        for name in sorted(names):
            files[name] = file_sha256(folder / name)
        text = _with_hash({"step": step, "files": files})

        if len(text) > MAX_JSON_BYTES:
            raise ValueError(
                f"expected less metadata and fewer arrays: they take {len(text)} bytes"
            )
        write_file(folder / MANIFEST, text)

    @classmethod
    def read(cls, folder: pathlib.Path, *, verify: bool = False) -> "Manifest":
        """Reads the manifest in the folder of a step, and can :meth:`verify` the other files."""
        path = folder / MANIFEST

        def from_content(content: Any) -> "Manifest":
            return cls(**content["step"], files=content["files"])

        try:
            manifest = _read_hashed(path, from_content)
        except DamagedError:
            if folder.exists():
                raise
            raise MissingStepError(
                f"{folder} was removed while it was read, as a run does with its old checkpoints; "
                "run the same command again"
            ) from None

        if not manifest._has_types():
            raise DamagedError(f"{path}: expected the manifest of a checkpoint, found other values")
        if manifest.step != int(folder.name):
            raise DamagedError(f"{path} has changed since it was saved")

        if verify:
            manifest.verify(folder)
        return manifest

    def _has_types(self) -> bool:
        """Returns whether the fields have their types; untrusted files may contain anything."""
        return (
            type(self.step) is int
            and type(self.keep) is int
            and isinstance(self.metadata, dict)
            and isinstance(self.score, int | float | None)
            and isinstance(self.interim, bool)
            and _has_texts(self.leaves)
            and _has_texts(self.files)
        )

    def verify(self, folder: pathlib.Path) -> None:
        """Compares all files that orbax can read with their hashes, at about 2 GB/s."""
        found = list_files(folder)
        optional = (MANIFEST, SCORE, *_UNVERIFIED)
        for name, status in found.items():
            if not stat.S_ISREG(status.st_mode):
                raise DamagedError(
                    f"{folder / name}: expected a regular file, found a link or a device"
                )
            is_known = name in self.files or name.startswith(optional)
            if not is_known:
                raise DamagedError(f"{folder / name} was not saved with the checkpoint")

        needed = _ESSENTIAL.union(self.files)
        missing = sorted(needed - found.keys())
        if missing:
            path = folder / missing[0][:200]
            raise DamagedError(f"{path} cannot be read: No such file or directory")

        for name, expected in self.files.items():
            if _read(folder / name, file_sha256) != expected:
                raise DamagedError(f"{folder / name} has changed since it was saved")

    def check_leaves(self, wanted: dict[str, str], *, partial: bool) -> None:
        """Raises a UserError if the step has other arrays; if ``partial``, it may have more."""
        # More arrays than wanted are differences, too, unless a part is wanted.
        names = wanted if partial else wanted | self.leaves
        different = []
        for name in names:
            if wanted.get(name) != self.leaves.get(name):
                different.append(name)
        if not different:
            return

        name, *others = different
        expected = wanted.get(name, "absent")
        found = self.leaves.get(name, "none")
        if others:
            found += f" (and {len(others)} more differences)"
        raise UserError(
            f"checkpoint of step {self.step}: expected {name} to be {expected}, found {found}; use "
            "the config that it was trained with"
        )


def _has_texts(texts: object) -> bool:
    if not isinstance(texts, dict):
        return False
    return all(isinstance(text, str) for text in texts.values())


def describe_leaves(tree: PyTree) -> dict[str, str]:
    """Returns dtype and shape by name of the array, such as "float32[2,3]" of "params/kernel"."""
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        sizes = ",".join(map(str, leaf.shape))
        leaves[name] = f"{leaf.dtype}[{sizes}]"
    return leaves


def file_versions(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Returns sizes and modification times of a manifest and all files that it lists."""
    versions = {}
    for name, status in list_files(folder).items():
        if not name.startswith((SCORE, *_UNVERIFIED)):
            versions[name] = (status.st_size, status.st_mtime_ns)
    return versions


def write_score(folder: pathlib.Path, score: float) -> None:
    """Writes the score of a step atomically; JSON has no NaN."""
    value = None if math.isnan(score) else score
    write_file(folder / SCORE, _with_hash({"score": value}))


def read_score(folder: pathlib.Path) -> float | None:
    """Reads the score of a step, NaN if it was NaN; None if there is none, or a damaged file."""
    try:
        score = _read_hashed(folder / SCORE, operator.itemgetter("score"))
    except DamagedError:
        return None
    if score is None:
        return math.nan
    if not isinstance(score, int | float):
        return None
    return score


def _with_hash(content: Any) -> bytes:
    values = {"sha256": _sha256_of_json(content), "content": content}
    return json.dumps(values, indent=1).encode()


def _read_hashed(path: pathlib.Path, use: Callable[[Any], T]) -> T:
    """Reads a JSON file with the hash of its content; returns ``use`` of the content."""

    def read(path: pathlib.Path) -> Any:
        run_directory = path.parents[1]
        return read_json(path, run_directory)

    values = _read(path, read)
    with contextlib.suppress(KeyError, TypeError):  # other values than were saved
        content = values["content"]
        is_unchanged = _sha256_of_json(content) == values["sha256"]
        if is_unchanged:
            return use(content)
    raise DamagedError(f"{path} has changed since it was saved")


def _read(path: pathlib.Path, read: Callable[[pathlib.Path], T]) -> T:
    try:
        return read(path)
    except UserError as error:
        cause = str(error).removeprefix(f"{path}: ")
        raise DamagedError(f"{path} has changed since it was saved: {cause}") from None
    except OSError as error:
        if error.errno in _MISSING:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None

        raise UserError(
            f"{path} cannot be read: {error.strerror}; the checkpoint may be intact: check the "
            "disk and the permissions and run the same command, or move the folder of this step "
            "away to use an older one"
        ) from None


def _sha256_of_json(content: Any) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
