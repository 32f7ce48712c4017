"""The manifest of a checkpoint: its contents, and the SHA-256 of every file.

The score, which is known only later, is in a file of its own beside the manifest.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

import jax
from jaxtyping import PyTree

from jaxformer.checkpoint.untrusted import DamagedError, check_listing
from jaxformer.errors import UserError
from jaxformer.files import MOST_JSON_BYTES, open_file, read_json, write_file

_NAME = "manifest.json"
_SCORE = "score.json"
# Orbax writes these two files after the manifest. They hold only timestamps.
_UNVERIFIED = {"_CHECKPOINT_METADATA", "commit_success.txt"}


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
        """Writes the manifest into the folder of a step, with the hashes of its files."""
        names = sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )
        files = {name: _sha256(folder / name) for name in names if name not in _UNVERIFIED}
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
        """
        path = folder / _NAME
        try:
            values = read_json(path, folder.parent)
            expected, content = values["sha256"], values["content"]
            manifest, files = cls(**content["step"]), content["files"]
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
        except (KeyError, TypeError):
            raise DamagedError(f"{path} has changed since it was saved") from None
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


def is_step(path: pathlib.Path) -> bool:
    """Returns whether this is the folder of a step, judging by its name and its manifest."""
    return path.name.isascii() and path.name.isdecimal() and (path / _NAME).is_file()


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
    """
    try:
        values = read_json(folder / _SCORE, folder.parent)
        score = values["content"]["score"]
        good = _sha256_of_json(values["content"]) == values["sha256"]
    except (OSError, UserError, KeyError, TypeError):
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
        try:
            found = _sha256(path)
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
        if found != expected:
            raise DamagedError(f"{path} has changed since it was saved")


def _maps_to_text(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(text, str) for text in values.values())


def _sha256(path: pathlib.Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_json(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
