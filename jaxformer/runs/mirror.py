"""A second copy of a run in another folder, such as a mounted bucket or drive.

The manifest of a step is written last, after all other files have been read back and compared with
their hashes. A step without a manifest is therefore incomplete and is not used. The file system of
the copy need not support renames or locks.
"""

import contextlib
import logging
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator

from jaxformer.errors import StoppedError, UserError
from jaxformer.files import UNSUPPORTED, flush_to_disk, local_path, lock_folder, write_file
from jaxformer.runs import manifest, processes, watchdog
from jaxformer.runs.manifest import MANIFEST, SCORE, DamagedError, Manifest
from jaxformer.runs.workdir import Workdir

_logger = logging.getLogger("jaxformer")

_RETRY_SECONDS = 60.0  # a failed copy is retried after this time or after the next checkpoint
_LAST_COPY_SECONDS = 600.0  # the end of a run waits for its last copy for at most this time


@contextlib.contextmanager
def start_mirror(run: Workdir, mirror: str | None) -> Iterator[Callable[[], None]]:
    """Copies a run during the block; yields a function that starts copying new files."""
    if mirror is None:
        yield lambda: None
    else:
        with Mirror(run, Workdir(local_path(mirror))) as thread:
            yield thread.update


class Mirror(threading.Thread):
    """A thread that copies a run: its checkpoints, newest first, and the other files.

    Training waits only for the last copy, and for that at most ten minutes. A copy that fails is
    reported when it first fails and when it works again.
    """

    def __init__(self, run: Workdir, copy: Workdir) -> None:
        super().__init__(name="mirror", daemon=True)
        self._workdir = run
        self._copy = copy
        self._changed = threading.Event()
        self._closing = False
        self._failure: str | None = None

    def __enter__(self) -> "Mirror":
        return self

    def update(self) -> None:
        """Makes the thread copy all changes; returns immediately."""
        self._changed.set()
        if self.ident is None:
            self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        watchdog.record_progress("the end of training", limited=False)
        has_started = self.ident is not None
        if has_started:
            self._complete()

        # Process 0 does not survive the other processes. Either all of them are stopped or none.
        if kind is None or issubclass(kind, StoppedError):
            processes.all_gather(None)

    def _complete(self) -> None:
        """Waits for the last copy, and reports if it is incomplete."""
        self._closing = True
        self._changed.set()
        self.join(2)
        if self.is_alive():
            _logger.warning("completing the copy of the run in %s", self._copy.path)
            self.join(_LAST_COPY_SECONDS)

        failure = self._failure
        if self.is_alive():
            failure = f"it took more than {_LAST_COPY_SECONDS:.0f} s"
        if failure:
            text = "the copy of the run in %s is incomplete: %s"
            _logger.warning(text, self._copy.path, failure)

    def run(self) -> None:
        closing = False
        while not closing:
            self._changed.wait(None if self._failure is None else _RETRY_SECONDS)
            self._changed.clear()
            closing = self._closing  # before the copy, which then has all files

            failure = None
            try:
                self._copy_changes()
            except Exception as error:  # the run continues without the copy
                failure = str(error)
            self._log_change(failure)
            self._failure = failure

    def _log_change(self, failure: str | None) -> None:
        """Logs the first failure, and the first copy that works again."""
        path = self._copy.path
        has_failed_before = self._failure is not None
        if failure is not None and not has_failed_before:
            hope = "training continues, and the copy will be retried"
            _logger.warning("cannot copy the run to %s: %s; %s", path, failure, hope)

        if failure is None and has_failed_before:
            newest = max(manifest.saved_steps(self._copy.checkpoints), default=None)
            _logger.warning("copying the run to %s works again, up to step %s", path, newest)

    def _copy_changes(self) -> None:
        self._copy.path.mkdir(exist_ok=True)  # without parents, since the drive may be unmounted
        self._remove_old()  # makes space

        while (step := self._newest_missing()) is not None:
            self._copy_files()  # After choosing the step, so that they have all its reports.
            source = self._original_step(step)
            try:
                copy_step(source, self._copied_step(step))
            except (DamagedError, OSError):
                if source.exists():  # unless the run has just removed it
                    raise

        self._copy_files()
        self._remove_old()

    def _newest_missing(self) -> int | None:
        """Returns the newest step that is not in the copy, or differs there."""
        for step in reversed(manifest.saved_steps(self._workdir.checkpoints)):
            with contextlib.suppress(FileNotFoundError):  # the run has just removed the step
                content = (self._original_step(step) / MANIFEST).read_bytes()
                copied = self._copied_step(step) / MANIFEST
                if not _has_content(copied, content):
                    return step
        return None

    def _copy_files(self) -> None:
        """Copies the config and the files next to it, and then the scores of the copied steps."""
        run = self._workdir
        scores = {}
        for step in manifest.saved_steps(run.checkpoints):
            path = self._original_step(step) / SCORE
            with contextlib.suppress(FileNotFoundError):  # not scored, or just removed
                # Read before the metrics: a run with a score does not report its validation again.
                scores[step] = path.read_bytes()

        for path in _files(run):
            # The copy must not name a step that it does not have.
            if path == run.committed:
                committed = self._copied_step(run.committed_step())
                if not manifest.is_step(committed):
                    continue
            content = path.read_bytes()
            write_and_verify(self._copy.path / path.name, content)

        for step, content in scores.items():
            copied = self._copied_step(step)
            if manifest.is_step(copied):
                write_and_verify(copied / SCORE, content)

    def _original_step(self, step: int) -> pathlib.Path:
        return self._workdir.checkpoints / str(step)

    def _copied_step(self, step: int | None) -> pathlib.Path:
        return self._copy.checkpoints / str(step)

    def _remove_old(self) -> None:
        """Removes steps that the run has removed, if both have newer ones."""
        kept = manifest.saved_steps(self._workdir.checkpoints)
        copied = manifest.saved_steps(self._copy.checkpoints)
        complete = []
        for step in copied:
            if manifest.is_step(self._copied_step(step)):
                complete.append(step)

        newest_kept = max(kept, default=0)
        newest_complete = max(complete, default=0)
        newest = min(newest_kept, newest_complete)

        for step in copied:
            is_old = step not in kept and step < newest
            if is_old:
                _remove(self._copied_step(step))


def _remove(step: pathlib.Path) -> None:
    """Removes a step, starting with its manifest, so that an interruption leaves no valid step."""
    (step / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(step)


def _files(folder: Workdir) -> list[pathlib.Path]:
    """Returns the files next to the checkpoints, the config first."""
    found = []
    for path in folder.path.iterdir():
        is_temporary = path.name == "lock" or path.suffix == ".partial"
        if path.is_file() and not is_temporary:
            found.append(path)
    return sorted(found, key=lambda path: path != folder.config)


def copy_step(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a step without its score, verifies the copy, and writes its manifest last."""
    with manifest.lock_step(source, shared=True):
        # A damaged step must not replace a good copy.
        expected = Manifest.read(source)
        if target.exists():
            _remove(target)

        for name in manifest.list_files(source):
            original = source / name
            is_data = not name.startswith((MANIFEST, SCORE))
            if is_data and original.is_file():
                copied = target / name
                copied.parent.mkdir(parents=True, exist_ok=True)
                _copy_file(original, copied)

        expected.verify(target)
        write_and_verify(target / MANIFEST, (source / MANIFEST).read_bytes())


def _copy_file(source: pathlib.Path, target: pathlib.Path) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 22)
        writer.flush()
        flush_to_disk(writer.fileno())


def write_and_verify(path: pathlib.Path, content: bytes) -> None:
    """Writes a file unless it has this content, and reads it back."""
    if _has_content(path, content):
        return

    try:
        write_file(path, content)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        with path.open("wb") as file:  # the drive may not support renames
            file.write(content)
            file.flush()
            flush_to_disk(file.fileno())

    if not _has_content(path, content):
        raise OSError(f"{path} has other content than was written")


def _has_content(path: pathlib.Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() == content


def fetch_copy(copy: Workdir, run: Workdir) -> list[int]:
    """Restores and returns the good steps of a copy that are newer than all good steps of a run.

    Also restores scores and files that the run lacks. Does nothing if another process trains in
    the run. Raises a ``UserError`` if the run has no steps, and all in the copy are damaged.
    """
    copied = manifest.saved_steps(copy.checkpoints)
    if not copied:
        return []

    with lock_folder(run.path) as alone:
        if not alone:
            return []

        newest = _newest_good(run.checkpoints)
        fetched = []
        damaged = []
        for step in copied:
            ours = run.checkpoints / str(step)
            theirs = copy.checkpoints / str(step)
            if step > newest:
                try:
                    _fetch_step(theirs, ours)
                    fetched.append(step)
                except UserError as error:
                    _logger.warning("copy of step %d in %s not used: %s", step, copy.path, error)
                    damaged.append(str(theirs))

            _fetch_score(theirs, ours)

        has_steps = fetched or newest >= 0
        if damaged and not has_steps and copy.committed.exists():
            raise UserError(
                f"expected a good copy of a checkpoint, but {', '.join(damaged)} are damaged; "
                f"repair {copy.path}, or move it away to start from the beginning"
            )
        if has_steps:
            _fetch_files(copy, run)

    if fetched:
        steps = ", ".join(map(str, fetched))
        _logger.warning("brought back the checkpoints of steps %s from %s", steps, copy.path)
    return fetched


def _fetch_step(theirs: pathlib.Path, ours: pathlib.Path) -> None:
    """Restores a step, and renames ours if it is damaged."""
    # If this folder is left behind, the run removes it.
    work = manifest.temporary_folder(ours.parent, ours.name)
    copy_step(theirs, work)
    if ours.exists():
        manifest.mark_damaged(ours)
    work.rename(ours)


def _fetch_score(theirs: pathlib.Path, ours: pathlib.Path) -> None:
    """Restores a score: another machine may have validated a step after this one ended."""
    our_score = ours / SCORE
    their_score = theirs / SCORE
    is_missing = manifest.is_step(ours) and not our_score.exists()
    if is_missing and their_score.exists():
        write_file(our_score, their_score.read_bytes())


def _newest_good(checkpoints: pathlib.Path) -> int:
    """Returns the newest step whose files have the hashes of its manifest, or -1."""
    for step in reversed(manifest.saved_steps(checkpoints)):
        with contextlib.suppress(UserError):
            Manifest.read(checkpoints / str(step), verify=True)
            return step
    return -1


def _fetch_files(copy: Workdir, run: Workdir) -> None:
    """Restores the files that the run lacks, the config last, and the later metrics."""
    for theirs in reversed(_files(copy)):
        ours = run.path / theirs.name
        is_needed = not ours.exists()
        if theirs == copy.metrics and ours.exists():
            # The longer of two histories is the later one.
            is_needed = theirs.stat().st_size > ours.stat().st_size
        if is_needed:
            write_file(ours, theirs.read_bytes())
