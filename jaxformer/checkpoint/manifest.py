"""The manifest of a checkpoint: what a step holds, and the SHA-256 of every file.

And its score, which is known only later: a file of its own, beside the manifest.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

import jax
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.files import write_file

_NAME = "manifest.json"
_SCORE = "score.json"
# Orbax writes these two after the manifest. They hold times and no part of the state.
_UNVERIFIED = {"_CHECKPOINT_METADATA", "commit_success.txt"}


class DamagedError(UserError):
    """A step on disk is not what was saved."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a step holds.

    Attributes:
      step: Number of the step.
      metadata: What the run wants to remember beside the state.
      score: Of steps that an earlier version saved after it had validated them; None otherwise.
      keep: How many of the newest steps the run keeps.
      leaves: Dtype and shape by name of the array: ``{"params/kernel": "float32[2,3]"}``.
      interim: Whether it is kept only until the next is saved.
    """

    step: int
    metadata: dict[str, Any]
    score: float | None
    keep: int
    leaves: dict[str, str]
    interim: bool = False

    def write(self, folder: pathlib.Path) -> None:
        """Writes the manifest into the folder of a step, with the hashes of the files there."""
        names = sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )
        files = {name: _sha256(folder / name) for name in names if name not in _UNVERIFIED}
        content = {"step": dataclasses.asdict(self), "files": files}
        with (folder / _NAME).open("w", encoding="utf-8") as file:
            json.dump({"sha256": _sha256_of_json(content), "content": content}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def read(cls, folder: pathlib.Path, *, verify: bool) -> "Manifest":
        """Reads the manifest in the folder of a step.

        Args:
          folder: Has the step's number as its name.
          verify: Whether to compare every file with its hash, about 2 GB/s, or only the manifest.

        Raises:
          DamagedError: Something is missing, or is not what was saved.
        """
        path = folder / _NAME
        try:
            values = json.loads(path.read_bytes())
            expected, content = values["sha256"], values["content"]
            manifest, files = cls(**content["step"]), content["files"]
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DamagedError(f"{path} has changed since it was saved") from None
        if _sha256_of_json(content) != expected or manifest.step != int(folder.name):
            raise DamagedError(f"{path} has changed since it was saved")
        if verify:
            _verify(folder, files)
        return manifest

    def check_leaves(self, wanted: dict[str, str], *, partial: bool) -> None:
        """Compares the arrays with those that are wanted.

        Args:
          wanted: As ``leaves``.
          partial: Whether the step may hold more.

        Raises:
          UserError: They differ; with the first difference spelled out.
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
    """Returns whether this is the folder of a step, by its name and its manifest."""
    return path.name.isascii() and path.name.isdecimal() and (path / _NAME).is_file()


def write_score(folder: pathlib.Path, score: float | None) -> None:
    """Writes the score of a step, atomically. No part of the state depends on it."""
    content = {"score": score}
    digest = {"sha256": _sha256_of_json(content), "content": content}
    write_file(folder / _SCORE, json.dumps(digest).encode())


def read_score(folder: pathlib.Path) -> tuple[bool, float | None]:
    """Reads the score of a step.

    Returns:
      Whether the step has been scored, and the score: higher is better, None for not a number. A
      damaged file counts as none, since the step itself is as good as without it.
    """
    try:
        values = json.loads((folder / _SCORE).read_bytes())
        if _sha256_of_json(values["content"]) != values["sha256"]:
            return False, None
        return True, values["content"]["score"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False, None


def describe_leaves(tree: PyTree) -> dict[str, str]:
    """Dtype and shape by name of the array.

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


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_json(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
