"""A second copy of a run in another folder, such as a mounted bucket or drive.

The manifest of a step is written last, after all other files have been read back and compared with
their hashes. A step without its manifest is therefore incomplete, and not used. The file system of
the copy need not know rename or locks.
"""

import contextlib
import logging
import pathlib
import shutil
import threading
from collections.abc import Container

from jaxformer.errors import UserError
from jaxformer.files import UNSUPPORTED, flush_to_disk, write_file
from jaxformer.runs.manifest import (
    DamagedError,
    Manifest,
    UnreadableError,
    is_step,
    lock_step,
    manifest_of,
    read_score,
    score_of,
    verify_copy,
)
from jaxformer.runs.step_folders import saved_steps, set_aside, temporary_folder
from jaxformer.runs.workdir import Workdir

_logger = logging.getLogger("jaxformer")

# A failed copy is tried again after this time, or after the next checkpoint.
_RETRY_SECONDS = 60.0
# The end of a run waits for its last copy for at most this time.
_LAST_COPY_SECONDS = 600.0


class Mirror:
    """Copies a run in a thread: its checkpoints, newest first, and the files beside them.

    Training never waits for a copy, except for the last one. If copying is slower than saving, it
    continues with the checkpoint that is then the newest. A copy that fails is reported when it
    first fails and when it works again.
    """

    def __init__(self, run: Workdir, copy: Workdir) -> None:
        self._run, self._copy = run, copy
        self._changed = threading.Event()
        self._closing = False
        self._failure: str | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Mirror":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self) -> None:
        """Makes the thread copy what has changed; returns at once."""
        self._changed.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Completes the copy, within ten minutes."""
        if self._thread is None:
            return
        self._closing = True
        self._changed.set()
        self._thread.join(2)
        if self._thread.is_alive():
            _logger.warning("completing the copy of the run in %s", self._copy.path)
            self._thread.join(_LAST_COPY_SECONDS)
        if self._thread.is_alive():
            self._failure = f"it took more than {_LAST_COPY_SECONDS:.0f} s"
        if self._failure is not None:
            _logger.warning(
                "the copy of the run in %s is incomplete: %s", self._copy.path, self._failure
            )

    def _work(self) -> None:
        closing = False
        while not closing:
            self._changed.wait(None if self._failure is None else _RETRY_SECONDS)
            self._changed.clear()
            closing = self._closing
            self._attempt()

    def _attempt(self) -> None:
        try:
            self._copy_changes()
        except Exception as error:  # whatever happens to the copy, the run continues
            if self._failure is None:
                _logger.warning(
                    "cannot copy the run to %s: %s; training continues, and the copy will be "
                    "tried again",
                    self._copy.path,
                    error,
                )
            self._failure = str(error)
            return
        if self._failure is not None:
            _logger.warning(
                "copying the run to %s works again, up to step %s",
                self._copy.path,
                max(saved_steps(self._copy.checkpoints), default=None),
            )
        self._failure = None

    def _copy_changes(self) -> None:
        """Copies all that is new; then raises an error of the run's own files, if there is one."""
        self._copy.path.mkdir(exist_ok=True)  # not its parents: the drive may be unmounted
        self._remove_old()  # makes space
        errors: dict[int | str, Exception] = {}
        while True:
            step = self._newest_missing(errors)
            self._copy_files(errors)  # After the choice of the step: they have all its reports.
            if step is None:
                break
            source = self._run.checkpoints / str(step)
            try:
                copy_step(source, self._copy.checkpoints / source.name)
            except DamagedError as error:
                errors[step] = error
            except OSError:
                if source.exists():  # the run has not just removed it
                    raise
        self._remove_old()
        for step, error in errors.items():
            if isinstance(step, str) or (self._run.checkpoints / str(step)).exists():
                raise error

    def _newest_missing(self, errors: Container[int | str]) -> int | None:
        """Returns the newest step that has not been copied, but for damaged ones."""
        for step in reversed(saved_steps(self._run.checkpoints)):
            ours, theirs = (f.checkpoints / str(step) for f in (self._run, self._copy))
            with contextlib.suppress(FileNotFoundError):  # the run has just removed the step
                manifest = manifest_of(ours).read_bytes()
                if step not in errors and not _holds(manifest_of(theirs), manifest):
                    return step
        return None

    def _copy_files(self, errors: dict[int | str, Exception]) -> None:
        """Copies the config, the files beside it, and then the scores.

        A run with the score of a validation does not report the validation again.
        """
        scores = {}
        for step in saved_steps(self._run.checkpoints):
            with contextlib.suppress(FileNotFoundError):  # not scored, or just removed
                scores[step] = score_of(self._run.checkpoints / str(step)).read_bytes()
        paths = [path for path in self._run.path.iterdir() if _is_copied(path)]
        for path in sorted(paths, key=lambda path: (path != self._run.config, path)):
            try:
                content = path.read_bytes()
            except OSError as error:  # It may be no file of the run.
                errors[path.name] = error
                continue
            if path != self._run.committed or self._has_committed():
                write_and_verify(self._copy.path / path.name, content)
        for step, content in scores.items():
            if is_step(target := self._copy.checkpoints / str(step)):
                write_and_verify(score_of(target), content)

    def _has_committed(self) -> bool:
        """Returns whether the step that ``committed.json`` names has been copied."""
        return is_step(self._copy.checkpoints / str(self._run.committed_step()))

    def _remove_old(self) -> None:
        """Removes steps that the run has removed and that are older than another complete copy.

        Steps that are newer than all of the run are kept.
        """
        kept, copied = (saved_steps(folder.checkpoints) for folder in (self._run, self._copy))
        complete = [step for step in copied if is_step(self._copy.checkpoints / str(step))]
        newest = min(max(kept, default=0), max(complete, default=0))
        for step in copied:
            if step not in kept and step < newest:
                _remove(self._copy.checkpoints / str(step))


def _remove(step: pathlib.Path) -> None:
    """Removes a step, first its manifest: what a killed process leaves is incomplete."""
    manifest_of(step).unlink(missing_ok=True)
    shutil.rmtree(step)


def _is_copied(path: pathlib.Path) -> bool:
    return path.is_file() and path.name != "lock" and path.suffix != ".partial"


def copy_step(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a step without its score, verifies the copy, and writes its manifest last.

    Nothing is copied if the run removes the step at that moment.

    Raises:
      DamagedError: The step is damaged, or the copy is not what was saved.
      OSError: The step cannot be read, or the copy cannot be written.
    """
    with lock_step(source, shared=True):
        try:
            content = manifest_of(source).read_bytes()
        except FileNotFoundError:
            return
        Manifest.read(source, verify=False)  # A damaged step must not replace a good copy.
        if target.exists():
            _remove(target)
        last = (score_of(source), manifest_of(source))
        for path in sorted(source.rglob("*")):
            if _is_copied(path) and path not in last:
                copy = target / path.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                _copy_file(path, copy)
        verify_copy(target, content)
        write_and_verify(manifest_of(target), content)


def _copy_file(source: pathlib.Path, target: pathlib.Path) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 22)
        writer.flush()
        flush_to_disk(writer.fileno())


def write_and_verify(path: pathlib.Path, content: bytes) -> None:
    """Writes a file unless it has this content, and reads it back.

    Raises:
      OSError: It cannot be written, or has other content afterwards.
    """
    if _holds(path, content):
        return
    try:
        write_file(path, content)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        with path.open("wb") as file:  # a drive that cannot rename
            file.write(content)
            file.flush()
            flush_to_disk(file.fileno())
    if not _holds(path, content):
        raise OSError(f"{path} has other content than was written")


def _holds(path: pathlib.Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() == content


def fetch(copy: Workdir, run: Workdir) -> list[int]:
    """Brings back the good steps of a copy that are newer than all good steps of the run.

    The scores of other steps that both have are brought back, too, and the files beside the
    checkpoints if the run has none. Its config comes last, since it makes the folder a workdir.

    Returns:
      The steps, ascending.

    Raises:
      UserError: The run has no steps, and all steps of the copy are damaged.
      OSError: A file cannot be read or written.
    """
    newest = _newest_good(run.checkpoints)
    fetched, damaged = [], []
    for step in saved_steps(copy.checkpoints):
        ours, theirs = (folder.checkpoints / str(step) for folder in (run, copy))
        try:
            if step > newest:
                _fetch_step(theirs, run.checkpoints)
                fetched.append(step)
            # Another machine may have validated a step after this one ended.
            if ours.exists() and read_score(theirs)[0] and not read_score(ours)[0]:
                write_file(score_of(ours), score_of(theirs).read_bytes())
        except (DamagedError, UnreadableError) as error:
            _logger.warning("copy of step %d in %s not used: %s", step, copy.path, error)
            damaged.append(str(theirs))
    if damaged and not fetched and newest < 0 and copy.committed.exists():
        raise UserError(
            f"expected a good copy of a checkpoint, but {', '.join(damaged)} are damaged; repair "
            f"{copy.path}, or move it away to start from the beginning"
        )
    if fetched or newest >= 0:
        _fetch_files(copy, run)
    return fetched


def _newest_good(checkpoints: pathlib.Path) -> int:
    """Returns the newest step whose files have the hashes of its manifest, or -1."""
    for step in reversed(saved_steps(checkpoints)):
        with contextlib.suppress(DamagedError, UnreadableError):
            Manifest.read(checkpoints / str(step), verify=True)
            return step
    return -1


def _fetch_step(source: pathlib.Path, checkpoints: pathlib.Path) -> None:
    Manifest.read(source, verify=False)  # a copy without one is incomplete
    work = temporary_folder(checkpoints, source.name)
    try:
        copy_step(source, work)
        target = checkpoints / source.name
        if target.exists():
            set_aside(target)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _fetch_files(copy: Workdir, run: Workdir) -> None:
    names = [path.name for path in copy.path.iterdir() if _is_copied(path)]
    if not run.config.exists():
        for name in sorted(names, key=lambda name: name == run.config.name):
            if not (run.path / name).exists():
                write_file(run.path / name, (copy.path / name).read_bytes())
    # The longer history is the later one.
    ours, theirs = (f.metrics.read_bytes() if f.metrics.exists() else b"" for f in (run, copy))
    if len(theirs) > len(ours):
        write_file(run.metrics, theirs)
