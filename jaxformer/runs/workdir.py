"""The directory of a run (workdir). Nothing in it is ever executed or unpickled."""

import functools
import hashlib
import json
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import jax

from jaxformer import files
from jaxformer.errors import UserError
from jaxformer.waits import log_stream

# Name of the file with the places of skipped and of unusual examples.
DATA_NOTES = "data_notes.txt"


class Workdir:
    """Paths of the files of a run; refuses URLs, and links in the folder that lead out of it."""

    def __init__(self, path: pathlib.Path) -> None:
        files.local_path(path)  # Refuses URLs.
        self.path = path
        # The resolved config; for a custom task, the settings of the loop as "fit".
        self.config = path / "config.json"
        # A SentencePiece model, or a JSON object of another tokenizer.
        self.tokenizer = path / "tokenizer.model"
        # The names of the classes of pictures, one on each line; the kind has no tokenizer.
        self.class_names = path / "class_names.txt"
        # SHA-256 of the tokenizer and of the data; of a converted model also "made_by", a command.
        self.identity = path / "identity.json"
        # SHA-256 of the parameters of training.init_from that the run began with.
        self.initial_parameters = path / "initial_parameters.json"
        self.data_notes = path / DATA_NOTES
        self.checkpoints = path / "checkpoints"  # one folder per step
        self.averaged = path / "averaged"  # the average of several, stored as a checkpoint
        # The step of the newest checkpoint; it detects that ``checkpoints`` is missing.
        self.committed = path / "committed.json"
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.profile = path / "profile"  # in the format of JAX's profiler
        files.check_unicode_path(path)
        for folder in (self.checkpoints, self.averaged, self.tensorboard, self.profile):
            files.resolve_inside(folder, path)

    def write_data_notes(self, lines: Sequence[str]) -> None:
        """Writes the places of unusual examples, unless there are none or the file exists."""
        if not lines or self.data_notes.exists():
            return
        text = "".join(f"{line}\n" for line in lines)
        files.write_file(self.data_notes, text.encode())

    def write_class_names(self, names: Sequence[str]) -> None:
        """Writes the names of the classes of pictures, unless there are none."""
        if names:
            text = "".join(f"{name}\n" for name in names)
            files.write_file(self.class_names, text.encode())

    def read_class_names(self) -> list[str]:
        """Returns the names of the classes of pictures; none if the file is missing."""
        if not self.class_names.exists():
            return []
        content = files.read_whole(self.class_names, self.path)
        return content.decode("utf-8", "replace").splitlines()

    def record_commit(self, step: int) -> None:
        text = json.dumps({"step": step})
        files.write_file(self.committed, text.encode())

    def committed_step(self) -> int | None:
        """Returns the step recorded last, or None before the first commit."""
        if not self.committed.exists():
            return None
        step = read_workdir_object(self.committed).get("step")
        if not isinstance(step, int):
            raise UserError(f"{self.committed}: expected the number of a step: got {step!r:.50}")
        return step

    def check_writable(self, command: str | None = None) -> None:
        """Checks that a run, or a command, may write here or complete its own workdir."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: expected a folder for a workdir, this is a file")
        check_directory(self.path)

        if self.config.exists():
            if command is None:
                return
            raise UserError(f"{self.path}: expected a new workdir, but it has a run; name another")

        # The command that began to write here, if any.
        author = None
        if self.identity.exists():
            author = read_workdir_object(self.identity).get("made_by")
        if author is not None and author != command:
            raise UserError(
                f"{self.path}: expected a new folder, but {author} has begun to write a workdir "
                "here; run it again, or name another folder"
            )

        files_of_runs = (self.identity, self.tokenizer, self.checkpoints)
        found = []
        for path in files_of_runs:
            if path.is_symlink() or path.exists():
                found.append(path.name)
        if command is not None and author is None and found:
            raise UserError(
                f"{self.path}: expected a new or empty folder, but it holds {', '.join(found)}, "
                f"which {command} did not write; name another folder"
            )

    def create(self, command: str, identity: dict[str, Any]) -> None:
        """Creates the folder, and records the command and the sources of the model first."""
        self.check_writable(command)
        text = json.dumps({**identity, "made_by": command}, indent=2) + "\n"
        files.write_file(self.identity, text.encode())

    def check_tokenizer(self) -> None:
        """Compares the tokenizer with the hash recorded when training began."""
        if not self.tokenizer.exists():
            raise UserError(f"{self.tokenizer}: no such file; copy the whole workdir")

        found = sha256_of(self.tokenizer)
        expected = read_workdir_object(self.identity).get("tokenizer")
        if found != expected:
            raise UserError(
                f"{self.tokenizer}: expected the tokenizer that the model was trained with, "
                f"SHA-256 {expected!s:.64}, but this one has {found}; copy the whole workdir again"
            )

    def write_tokenizer(self, serialized: bytes) -> None:
        """Writes the tokenizer of a new run, whose workdir must not hold another one."""
        expected = hashlib.sha256(serialized).hexdigest()
        if self.tokenizer.exists() and sha256_of(self.tokenizer) != expected:
            raise UserError(
                f"{self.tokenizer}: expected no tokenizer, or this run's, found another; "
                "move it away, or give another --workdir"
            )
        files.write_file(self.tokenizer, serialized)


def check_directory(directory: pathlib.Path) -> None:
    """Refuses folders whose absolute path has characters that orbax reads as a pattern."""
    files.check_unicode_path(directory)
    path = directory.absolute().as_posix()
    found = set(path) & set("*?[\\")
    if found:
        characters = "".join(sorted(found))
        raise UserError(
            f"{path}: expected a path without the characters {characters}, since checkpoints "
            "cannot be written there; rename the folder"
        )


def sha256_of(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a small file of a workdir, in hexadecimal digits."""
    content = files.read_whole(path, path.parent)
    return hashlib.sha256(content).hexdigest()


def read_workdir_object(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object of a workdir; refuses links out of the workdir."""
    return files.read_object(path, path.parent, advice="copy the whole workdir")


def use_compilation_cache() -> None:
    """Enables JAX's persistent compilation cache, unless the user has chosen a directory for it."""
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    folder = files.cache_directory() / "programs"
    # Programs that cannot be written may still be read.
    if not _can_write_programs(folder) and not folder.is_dir():
        return

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@functools.cache
def _can_write_programs(folder: pathlib.Path) -> bool:
    """Returns whether compiled programs can be kept; reports once that they cannot."""
    try:
        files.make_folder(folder, "JAXFORMER_CACHE")
    except UserError as error:
        print(f"note: compiled programs are not kept: {error}", file=log_stream())
        # JAX would repeat it for every program.
        message = "Error writing persistent compilation cache entry"
        warnings.filterwarnings("ignore", message=message)
        return False
    return True


@functools.cache
def code_digest() -> str:
    """Returns the SHA-256 of this package's source, which all hosts of a run must share."""
    package = pathlib.Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        # Names, too, since modules of other names are other code.
        name = path.relative_to(package).as_posix()
        digest.update(name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
