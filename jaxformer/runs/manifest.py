"""The manifest of a checkpoint: its contents, and the SHA-256 of every file.

The score, which is known only later, is in a file of its own beside the manifest.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.files import MOST_JSON_BYTES, lock_file, open_file, read_json, write_file
from jaxformer.runs.step_folders import is_step_name
from jaxformer.runs.untrusted import ESSENTIAL, DamagedError, check_listing

_NAME = "manifest.json"
_SCORE = "score.json"
# Orbax writes these two files after the manifest. They hold only timestamps.
_UNVERIFIED = {"_CHECKPOINT_METADATA", "commit_success.txt"}


# What open() reports of a path that is not the file that was saved. All other errors, such as EIO
# or EACCES, say nothing about the file.
_MISSING = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP}

T = TypeVar("T")


class UnreadableError(UserError):
    """The disk did not return a file of a step, which may be intact."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Contents of a step.

    Attributes:
      step: Number of the step.
      metadata: Metadata that the run saved with the state.
      score: Score of a step that an earlier version saved after its validation; None otherwise.
      keep: Number of newest steps that the run keeps.
      leaves: Dtype and shape by name of the array: ``{"params/kernel": "float32[2,3]"}``.
      interim: Whether the step is kept only until the next save.
    """

    step: int
    metadata: dict[str, Any]
    score: float | None
    keep: int
    leaves: dict[str, str]
    interim: bool = False

    def write(self, folder: pathlib.Path) -> None:
        """Writes the manifest into the folder of a step, with the hashes of its files.

        Raises:
          OSError: A file cannot be read or written, or orbax has not written all files.
        """
        names = sorted(path.relative_to(folder).as_posix() for path in _files(folder, _UNVERIFIED))
        if missing := set(ESSENTIAL).difference(names):
            raise FileNotFoundError(f"{folder}: orbax has not written {', '.join(sorted(missing))}")
        files = {name: _sha256(folder / name) for name in names}
        content = {"step": dataclasses.asdict(self), "files": files}
        text = json.dumps({"sha256": _sha256_of_json(content), "content": content}, indent=1)
        if len(text) > MOST_JSON_BYTES:
            raise ValueError(
                f"expected less metadata and fewer arrays: they take {len(text)} bytes"
            )
        with (folder / _NAME).open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def read(cls, folder: pathlib.Path, *, verify: bool) -> "Manifest":
        """Reads the manifest in the folder of a step.

        Args:
          folder: Folder whose name is the step's number.
          verify: Whether to compare every file with its hash, at about 2 GB/s, or only the
            manifest.

        Raises:
          DamagedError: A file is missing, or differs from what was saved.
          UnreadableError: The disk cannot be read.
        """
        path = folder / _NAME
        try:
            values = _read(path, lambda path: read_json(path, folder.parent))
            expected, content = values["sha256"], values["content"]
            manifest, files = cls(**content["step"]), content["files"]
        except (KeyError, TypeError):
            raise DamagedError(f"{path} has changed since it was saved") from None
        except (DamagedError, UnreadableError):
            raise
        except UserError as error:
            cause = str(error).removeprefix(f"{path}: ")
            raise DamagedError(f"{path} has changed since it was saved: {cause}") from None
        if _sha256_of_json(content) != expected or manifest.step != int(folder.name):
            raise DamagedError(f"{path} has changed since it was saved")
        manifest.check_types(path, files)
        if verify:
            check_listing(folder, set(files), {_NAME, _SCORE, *_UNVERIFIED})
            _verify(folder, files)
        return manifest

    def check_types(self, path: pathlib.Path, files: Any) -> None:
        """Checks what was read from a file, whose author may have written anything.

        Args:
          path: The file.
          files: The hashes in it.

        Raises:
          DamagedError: A value has another type.
        """
        numbers = (self.step, self.keep)
        if not (
            all(type(number) is int for number in numbers)
            and isinstance(self.metadata, dict)
            and (self.score is None or isinstance(self.score, int | float))
            and isinstance(self.interim, bool)
            and _maps_to_text(self.leaves)
            and _maps_to_text(files)
        ):
            raise DamagedError(f"{path}: expected the manifest of a checkpoint, found other values")

    def check_leaves(self, wanted: dict[str, str], *, partial: bool) -> None:
        """Compares the arrays of the step with the wanted ones.

        Args:
          wanted: Wanted arrays, in the form of ``leaves``.
          partial: Whether the step may hold more arrays.

        Raises:
          UserError: They differ; the message shows the first difference.
        """
        names = wanted if partial else wanted | self.leaves
        different = [name for name in names if wanted.get(name) != self.leaves.get(name)]
        if different:
            name, others = different[0], len(different) - 1
            raise UserError(
                f"checkpoint of step {self.step}: expected {name} to be "
                f"{wanted.get(name, 'absent')}, found {self.leaves.get(name, 'none')}"
                f"{f' (and {others} more differences)' if others else ''}; "
                "use the config that it was trained with"
            )


def lock_step(folder: pathlib.Path, *, shared: bool) -> contextlib.AbstractContextManager[bool]:
    """Locks a step, shared to read it or alone to remove it; yields whether it is locked."""
    path = folder / _NAME
    return lock_file(path, shared=shared) if path.exists() else contextlib.nullcontext(True)


def manifest_of(folder: pathlib.Path) -> pathlib.Path:
    """Returns the path of the manifest of a step."""
    return folder / _NAME


def score_of(folder: pathlib.Path) -> pathlib.Path:
    """Returns the path of the score of a step."""
    return folder / _SCORE


def verify_copy(copy: pathlib.Path, manifest: bytes) -> None:
    """Compares the files in a copy of a step with the content of the step's manifest.

    Raises:
      DamagedError: A file of the copy is missing or differs.
      UnreadableError: The disk cannot be read.
    """
    _verify(copy, json.loads(manifest)["content"]["files"])


def versions(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Returns size and time of change of all files that a manifest covers, and of the manifest."""
    paths = _files(folder, {_SCORE, *_UNVERIFIED})
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


def _files(folder: pathlib.Path, ignored: set[str]) -> Iterator[pathlib.Path]:
    """Yields the files of a step but for ignored beginnings of names, and hidden files.

    File managers and network file systems create hidden files at any time.
    """
    for path in folder.rglob("*"):
        if not path.name.startswith((".", *ignored)) and path.is_file():
            yield path


def is_step(path: pathlib.Path) -> bool:
    """Returns whether this is the folder of a step, judging by its name and its manifest."""
    return is_step_name(path.name) and (path / _NAME).is_file()


def write_score(folder: pathlib.Path, score: float | None) -> None:
    """Writes the score of a step atomically."""
    content = {"score": score}
    digest = {"sha256": _sha256_of_json(content), "content": content}
    write_file(folder / _SCORE, json.dumps(digest).encode())


def read_score(folder: pathlib.Path) -> tuple[bool, float | None]:
    """Reads the score of a step.

    Returns:
      Whether the step has been scored, and the score: higher is better, None for NaN. A damaged
      file counts as missing, since the step itself is intact without it.

    Raises:
      UnreadableError: The disk cannot be read.
    """
    try:
        values = _read(folder / _SCORE, lambda path: read_json(path, folder.parent))
        score = values["content"]["score"]
        good = _sha256_of_json(values["content"]) == values["sha256"]
    except UnreadableError:
        raise
    except (UserError, KeyError, TypeError):
        return False, None
    return (True, score) if good and isinstance(score, int | float | None) else (False, None)


def describe_leaves(tree: PyTree) -> dict[str, str]:
    """Returns dtype and shape by name of the array.

    >>> import numpy as np
    >>> describe_leaves({"params": {"kernel": np.zeros((2, 3), np.float32)}})
    {'params/kernel': 'float32[2,3]'}
    """
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (
            f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _verify(folder: pathlib.Path, files: dict[str, str]) -> None:
    for name, expected in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise DamagedError(f"{path} lies outside of the checkpoint")
        if _read(path, _sha256) != expected:
            raise DamagedError(f"{path} has changed since it was saved")


def _read(path: pathlib.Path, read: Callable[[pathlib.Path], T]) -> T:
    """Reads a file, a second time if the disk fails once."""
    with contextlib.suppress(OSError):
        return read(path)
    try:
        return read(path)
    except OSError as error:
        if error.errno in _MISSING:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
        raise UnreadableError(
            f"{path} cannot be read: {error.strerror}; the checkpoint may be intact: check the "
            "disk and the permissions and run the same command, or move the folder of this step "
            "away to use an older one"
        ) from None


def _maps_to_text(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(text, str) for text in values.values())


def _sha256(path: pathlib.Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_json(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
