"""Checkpoints of a run: saves, verifies and restores them.

A step is a folder, ``directory/<step>``. Orbax writes it under a temporary name and renames it when
it is complete. Just before the rename, ``manifest.json`` is added: the SHA-256 of every file, the
shape and dtype of every array, and the metadata. Whenever the process is killed, a step is either
absent or complete, and later changes on the disk are detected. Orbax alone would silently restore
flipped bits and cast dtypes. The score of a step is written after the step, since saving does not
wait for a validation, which may fail.
"""

import contextlib
import functools
import json
import logging
import math
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import orbax.checkpoint as ocp
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.files import local_path
from jaxformer.layout import global_mesh
from jaxformer.runs import manifest
from jaxformer.runs.manifest import DamagedError, Manifest, MissingStepError
from jaxformer.runs.processes import is_primary
from jaxformer.runs.restoring import Restored, read_step
from jaxformer.runs.workdir import check_directory

_logger = logging.getLogger("jaxformer")

T = TypeVar("T")


class RestoredParams(NamedTuple):
    """The parameters of a state, ``state.params``; see :meth:`Checkpoints.restore_params`."""

    step: int
    params: PyTree
    metadata: dict[str, Any]


class Checkpoints:
    """Checkpoints of one run, a folder for each step.

    Several processes, on a shared file system, call every method at the same point of the program.

    >>> with Checkpoints("runs/mine/checkpoints") as checkpoints:  # doctest: +SKIP
    ...     template = jax.eval_shape(task.init, jax.random.key(0))
    ...     params = checkpoints.restore_params(template).params  # of the newest step
    """

    # Orbax's CheckpointManager is not safe enough. Its check_for_errors races with its clean-up,
    # which can delete old steps although the save failed. One flipped bit in its file of scores
    # prevents it from opening.

    def __init__(
        self,
        directory: str | pathlib.Path,
        *,
        keep: int | None = None,
        on_commit: Callable[[int], None] | None = None,
    ) -> None:
        """Opens the folder.

        Args:
          directory: Folder that holds only checkpoints.
          keep: Number of newest steps to keep; the best one is kept, too. Creates the folder if
            needed, and removes incomplete steps of killed processes, so there must be only one
            writer. None opens the folder for reading only, which is always possible.
          on_commit: Called on process 0 with each step once it is complete on the disk, and again
            when it has its score.
        """
        if keep is not None and keep < 1:
            raise UserError(f"expected at least 1 checkpoint to keep: got {keep}")
        self.directory = local_path(directory).absolute()
        if keep is not None:
            check_directory(self.directory)

        self._keep = keep
        self._on_commit = on_commit
        self._saving: Manifest | None = None  # of the step that is being saved
        options = ocp.AsyncOptions(post_finalization_callback=self._write_manifest)
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.PyTreeCheckpointHandler(),
            async_options=options,
        )

        if keep is not None and is_primary():
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_temporary()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        # Even after an error, since the save in progress may be the only checkpoint of the run.
        self.close()

    def steps(self) -> list[int]:
        """Returns the complete steps, ascending. Restoring a step verifies its contents."""
        return manifest.saved_steps(self.directory)

    def newest_steps(self) -> list[int]:
        """Returns the newest steps that the run keeps, ascending, without an older best step.

        Raises:
          UserError: The newest one, which records how many are kept, is damaged.
        """
        newest: list[int] = []
        limit: float = math.inf
        for step in reversed(self.steps()):
            if len(newest) == limit:
                break

            try:
                keep = Manifest.read(self._folder(step)).keep
                # This step and older ones, `keep` together. Others are kept for another reason.
                limit = min(limit, len(newest) + keep)
            except DamagedError:
                if not newest:
                    raise
            newest.append(step)
        return newest[::-1]

    def newest_good_step(self) -> int | None:
        """Returns the step that :meth:`restore` reads by default; None if there are no steps.

        Raises:
          UserError: All are damaged.
        """
        read = functools.partial(Manifest.read, verify=True)
        found = self._read_good(None, read)
        return None if found is None else found.step

    def best_step(self) -> int | None:
        """Returns the step with the highest score, for a tie the newest; None without scores."""
        scored = []
        for step in self.steps():
            score = self.score(step)
            if score is not None and not math.isnan(score):
                scored.append((score, step))

        if not scored:
            return None
        _, step = max(scored)
        return step

    def score(self, step: int) -> float | None:
        """Returns the score of a step, which may be NaN; None if it has not been scored."""
        # A damaged step is never the best; restoring it raises an error.
        with contextlib.suppress(DamagedError):
            folder = self._folder(step)
            # Earlier versions wrote the score into the manifest.
            score_in_manifest = Manifest.read(folder).score
            if score_in_manifest is not None:
                return score_in_manifest
            return manifest.read_score(folder)
        return None

    def save(
        self,
        step: int,
        state: PyTree,
        *,
        metadata: dict[str, Any],
        interim: bool = False,
    ) -> None:
        """Saves in the background; the state may be donated or changed as soon as this returns.

        Waits for the previous save if it is still in progress.

        Args:
          step: A number higher than all saved steps.
          state: Any pytree of arrays. :meth:`restore_params` requires ``params`` at its top level.
          metadata: Any values that JSON can represent.
          interim: Keep this step only until the next save, in addition to the ``keep`` newest. An
            interrupted and resumed run then ends with the same steps as an uninterrupted run.

        Raises:
          ValueError: The step is not newer than the newest.
          OSError: The previous save failed, or this one cannot begin.
        """
        assert self._keep is not None, "opened only for reading"
        self.wait()

        newest = max(self.steps(), default=-1)
        if step <= newest:
            raise ValueError(
                f"{self.directory}: expected a step after {newest} to save: got {step}"
            )

        self._saving = Manifest(
            step=step,
            # Metadata that JSON cannot represent should fail here, not in the background.
            metadata=json.loads(json.dumps(metadata)),
            score=None,
            keep=self._keep,
            leaves=manifest.describe_leaves(state),
            interim=interim,
        )

        with self._explain_failures(), global_mesh(None):
            arguments = ocp.args.PyTreeSave(state)
            self._checkpointer.save(self._folder(step), args=arguments)

    def attach_score(self, step: int, score: float) -> None:
        """Writes the score of a step, after waiting for its save.

        Args:
          step: A complete step, or the one that is being saved.
          score: Higher is better; NaN is never the best.

        Raises:
          OSError: The save failed, or the score cannot be written.
        """
        self.wait()
        if is_primary():
            manifest.write_score(self._folder(step), score)
        self._handle_commit(step)

    def check(self) -> None:
        """Checks whether the background save has finished; takes microseconds if it has not.

        Raises:
          OSError: The save failed, for instance because the disk is full. Older steps are intact.
        """
        with self._explain_failures():
            self._checkpointer.check_for_errors()

        if self._saving is None:
            return

        step = self._saving.step
        is_complete = self._folder(step).is_dir()
        if is_complete:
            self._saving = None
            self._handle_commit(step)

    def wait(self) -> None:
        """Waits for the background save; raises the errors of :meth:`check`."""
        with self._explain_failures():
            self._checkpointer.wait_until_finished()
        self.check()

    def close(self) -> None:
        """Waits for the background save and releases the threads; raises as :meth:`check` does."""
        try:
            self.wait()
        finally:
            self._checkpointer.close()

    def restore(self, template: PyTree, *, step: int | None = None) -> Restored | None:
        """Restores a state.

        Args:
          template: Arrays or ShapeDtypeStructs in the pytree that was saved, with the expected
            shapes and dtypes. Their shardings, on any mesh, determine the layout of the result.
            Without a sharding, arrays are on JAX's default device, uncommitted.
          step: Step to restore; None restores the newest undamaged one. Damaged newer steps are
            reported as warnings of the logger "jaxformer". A writer also renames them to
            ``<step>.damaged``. A disk error does not count as damage.

        Returns:
          The restored state, or None if there are no steps.

        Raises:
          UserError: The step is damaged or missing, all are damaged, the template does not match,
            or the disk cannot be read.
        """
        read = functools.partial(read_step, template=template, partial=False)
        return self._read_good(step, read)

    def restore_params(self, template: PyTree, *, step: int | None = None) -> RestoredParams:
        """Restores only ``state.params``, as :meth:`restore` does, from a template of these alone.

        Raises:
          UserError: As in :meth:`restore`, or there are no steps.
        """
        read = functools.partial(read_step, template={"params": template}, partial=True)
        found = self._read_good(step, read)
        if found is None:
            raise UserError(f"{self.directory}: expected a checkpoint, found none; train first")
        return RestoredParams(found.step, found.state["params"], found.metadata)

    def _folder(self, step: int) -> pathlib.Path:
        return self.directory / str(step)

    def _write_manifest(self) -> None:
        """Writes the manifest on process 0, in a thread of orbax, just before the rename."""
        assert self._saving is not None
        folder = manifest.temporary_folder(self.directory, self._saving.step)
        self._saving.write(folder)

    @contextlib.contextmanager
    def _explain_failures(self) -> Iterator[None]:
        """Converts errors of a save to an OSError that names the step, and removes its files."""
        try:
            yield
        except Exception as error:
            step = self._saving.step if self._saving else None
            self._saving = None
            if is_primary():
                self._remove_temporary()

            raise OSError(
                f"{self.directory}: step {step} could not be saved; the steps {self.steps()} are "
                f"intact. Free or repair the disk, then run the same command. The cause: {error}"
            ) from error

    def _temporary_folders(self) -> list[pathlib.Path]:
        """Returns the folders of steps that are being written or removed."""
        pattern = manifest.temporary_folder(self.directory, "*").name
        return list(self.directory.glob(pattern))

    def _remove_temporary(self) -> None:
        # After a failed write, orbax's other writes continue for a moment and may create folders
        # again. They have five seconds to end.
        folders: list[pathlib.Path] = []
        for _ in range(50):
            folders = self._temporary_folders()
            if not folders:
                return

            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.1)

        _logger.warning("could not remove %s", ", ".join(map(str, folders)))

    def _handle_commit(self, step: int) -> None:
        """Reports a step that is now complete or scored, and removes old steps."""
        if not is_primary():
            return
        if self._on_commit is not None:
            self._on_commit(step)
        self._remove_old()

    def _remove_old(self) -> None:
        """Removes all steps but the newest and the best.

        Runs only after a commit: if a save fails, the older steps are still needed.
        """
        assert self._keep is not None
        try:
            steps = self.steps()
            newest = steps[-1]
            regular = [step for step in steps if not self._is_interim(step)]
            newest_regular = regular[-self._keep :]
            kept = {newest, self.best_step(), *newest_regular}

            # A step that another process reads is locked and stays until after the next save.
            for step in set(steps) - kept:
                self._set_aside(step)
            for folder in self._temporary_folders():
                shutil.rmtree(folder)
        except (OSError, UserError) as error:
            message = "could not remove old checkpoints, and will try again after the next save"
            _logger.warning("%s: %s: %s", self.directory, message, error)

    def _set_aside(self, step: int) -> None:
        """Renames a step that is to be removed, unless it is being read.

        If the process is killed while it removes files, no step is left with half of them.
        """
        folder = self._folder(step)
        with manifest.lock_step(folder, shared=False) as is_unused:
            if is_unused:
                folder.rename(manifest.temporary_folder(self.directory, step))

    def _is_interim(self, step: int) -> bool:
        with contextlib.suppress(DamagedError):
            return Manifest.read(self._folder(step)).interim
        return False

    def _read_good(
        self,
        step: int | None,
        read: Callable[[pathlib.Path], T],
    ) -> T | None:
        """Applies ``read`` to the folder of a step.

        Args:
          step: Step to read; None for the newest that is not damaged.
          read: Verifies and reads a folder. Raises a DamagedError or a MissingStepError.

        Returns:
          The result of ``read``; None if there are no steps.
        """
        self.wait()
        steps = self.steps()

        if step is not None:
            if step not in steps:
                raise MissingStepError(
                    f"{self.directory}: expected one of the steps {steps}: got {step}"
                )
            return read(self._folder(step))

        damaged: dict[int, DamagedError] = {}
        for candidate in reversed(steps):
            try:
                found = read(self._folder(candidate))
            except MissingStepError:
                # The run has removed this step, since it has saved newer ones.
                return self._read_good(None, read)
            except DamagedError as error:
                damaged[candidate] = error
                continue

            self._report_damaged(damaged, candidate)
            return found

        if not damaged:
            return None
        causes = "; ".join(map(str, damaged.values()))
        raise UserError(
            f"expected a good checkpoint, found none: {causes}. Restore {self.directory} from a "
            "backup, or move it away to start from the beginning"
        )

    def _report_damaged(self, damaged: dict[int, DamagedError], good: int) -> None:
        """Reports damaged steps newer than a good one; a writer also renames them."""
        for step, error in damaged.items():
            _logger.warning(
                "damaged checkpoint not used: %s; going back to step %d, %d steps earlier",
                error,
                good,
                step - good,
            )
            if self._keep is not None and is_primary():
                manifest.mark_damaged(self._folder(step))  # so that this step can be saved again


def write_single(
    directory: pathlib.Path,
    step: int,
    state: PyTree,
    metadata: dict[str, Any],
) -> None:
    """Writes a folder with one checkpoint, in place of an older folder of checkpoints, if any.

    After an ``OSError``, older checkpoints are unchanged.

    Raises:
      UserError: There is anything else at ``directory`` or in it.
      OSError: The checkpoint cannot be written.
    """
    is_replaced = directory.is_symlink() or directory.exists()  # A broken link does not exist.

    if directory.is_dir():
        existing = list(directory.iterdir())
    elif is_replaced:
        existing = [directory]
    else:
        existing = []

    foreign = [str(path) for path in existing if not manifest.is_step(path)]
    if foreign:
        raise UserError(
            f"{directory}: expected nothing, or a folder of checkpoints to replace, but "
            f"{min(foreign)} is none; move it away"
        )

    # Remove what killed processes have left.
    directory.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{directory.name}.jaxformer-tmp."
    for left in directory.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)

    with tempfile.TemporaryDirectory(prefix=prefix, dir=directory.parent) as name:
        work = pathlib.Path(name)
        with Checkpoints(work / "new", keep=1) as checkpoints:
            checkpoints.save(step, state, metadata=metadata)

        if is_replaced:
            directory.rename(work / "old")  # renames a link itself, not its target
        (work / "new").rename(directory)
