"""Checkpoints of a run: save, verify, restore, fall back.

A step is a folder, ``directory/<step>``. Orbax fills it under a temporary name and renames it when
it is complete. Just before the rename, ``manifest.json`` is written into it: the SHA-256 of every
file, the shape and dtype of every array, and the metadata. A step is therefore either absent or
complete with its manifest, whenever the process is killed, and later changes on the disk are
detected. Orbax alone restores flipped bits and casts dtypes silently. The score of a step is
written after the step: saving a state does not wait for a validation, which may fail.
"""

import contextlib
import json
import logging
import math
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.files import local_path
from jaxformer.layout import global_mesh
from jaxformer.runs.manifest import (
    Manifest,
    UnreadableError,
    describe_leaves,
    lock_step,
    read_score,
    versions,
    write_score,
)
from jaxformer.runs.step_folders import (
    saved_steps,
    set_aside,
    temporary_folder,
)
from jaxformer.runs.untrusted import DamagedError, check_sizes
from jaxformer.runs.workdir import check_directory

_logger = logging.getLogger("jaxformer")


class Restored(NamedTuple):
    """A state, bit for bit as it was saved.

    Attributes:
      step: Step at which it was saved.
      state: The state, sharded like the template.
      metadata: Metadata given to :meth:`Checkpoints.save`.
    """

    step: int
    state: PyTree
    metadata: dict[str, Any]


class RestoredParams(NamedTuple):
    """Parameters of a state, bit for bit as they were saved.

    Attributes:
      step: Step at which they were saved.
      params: ``state.params``, sharded like the template.
      metadata: Metadata given to :meth:`Checkpoints.save`.
    """

    step: int
    params: PyTree
    metadata: dict[str, Any]


class _Verified(NamedTuple):
    """A step whose files had the hashes of its manifest."""

    manifest: Manifest
    versions: dict[str, tuple[int, int]]  # before they were hashed


class MissingStepError(DamagedError):
    """There is no such step, perhaps not anymore: the run that trains there has removed it."""


class Checkpoints:
    """Checkpoints of one run, a folder for each step.

    With several processes, each calls every method at the same point of the program, on a shared
    file system.

    >>> with Checkpoints("runs/mine/checkpoints") as checkpoints:  # doctest: +SKIP
    ...     template = jax.eval_shape(task.init, jax.random.key(0))
    ...     params = checkpoints.restore_params(template).params  # of the newest step
    """

    # Orbax's CheckpointManager is not safe enough. Its check_for_errors races with its clean-up,
    # which can then delete old steps although the save failed. One flipped bit in its file of
    # scores prevents it from opening.

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
          keep: Number of newest steps to keep; the best one is kept too. Creates the folder if need
            be, and removes what a killed process left incomplete, so there must be only one writer.
            None opens the folder only for reading, at any time, and changes nothing.
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
        self._saving: Manifest | None = None
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.PyTreeCheckpointHandler(),
            async_options=ocp.AsyncOptions(post_finalization_callback=self._write_manifest),
        )
        if keep is not None and jax.process_index() == 0:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_temporary()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        """Closes even after an error: the save in progress may be all that remains of the run."""
        self.close()

    def steps(self) -> list[int]:
        """Returns the complete steps, ascending. Restoring a step verifies its contents."""
        return saved_steps(self.directory)

    def newest_steps(self) -> list[int]:
        """Returns the newest steps that the run keeps, ascending, without an older best one.

        Raises:
          UserError: The newest one, which records how many are kept, is damaged.
        """
        newest: list[int] = []
        most: float = math.inf
        for step in reversed(self.steps()):
            if len(newest) == most:
                break
            try:
                # Older steps than the newest `keep` are left only for another reason.
                most = min(most, len(newest) + self._manifest(step).keep)
            except MissingStepError:
                continue
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
        found = self._find(None)
        return None if found is None else found.manifest.step

    def best_step(self) -> int | None:
        """Returns the step with the highest score, the newest one of a tie; None without scores."""
        scored = [(self.score(step)[1], step) for step in self.steps()]
        return max((pair for pair in scored if pair[0] is not None), default=(None, None))[1]

    def score(self, step: int) -> tuple[bool, float | None]:
        """Returns whether a step has been scored, and its score; None if it was NaN."""
        # A damaged step is never the best; restoring it raises an error.
        with contextlib.suppress(DamagedError):
            earlier = self._manifest(step).score
            return (True, earlier) if earlier is not None else read_score(self._folder(step))
        return False, None

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
          step: Number higher than of all saved steps.
          state: Any pytree of arrays. :meth:`restore_params` requires ``params`` at its top level.
          metadata: Any values that JSON can represent.
          interim: Keep this step only until the next save, in addition to the ``keep`` newest. A
            run that was interrupted and resumed then ends with the same steps as an uninterrupted
            one.

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
        # Metadata that JSON cannot represent should fail here, not in the background.
        metadata = json.loads(json.dumps(metadata))
        leaves = describe_leaves(state)
        self._saving = Manifest(step, metadata, None, self._keep, leaves, interim)
        with self._failures_explained(), global_mesh(None):
            self._checkpointer.save(self._folder(step), args=ocp.args.PyTreeSave(state))

    def attach_score(self, step: int, score: float) -> None:
        """Writes the score of a step, after waiting for its save.

        Args:
          step: A complete step, or the one that is being saved.
          score: Higher is better; NaN is never the best.

        Raises:
          OSError: The save failed, or the score cannot be written.
        """
        self.wait()
        if jax.process_index() == 0:
            write_score(self._folder(step), None if math.isnan(score) else score)
        self._remove_old()
        if self._on_commit is not None and jax.process_index() == 0:
            self._on_commit(step)

    def check(self) -> None:
        """Checks whether the background save has finished; takes microseconds if it has not.

        Raises:
          OSError: The save failed, for instance because the disk is full. Older steps are intact.
        """
        with self._failures_explained():
            self._checkpointer.check_for_errors()
        if self._saving is not None and self._folder(self._saving.step).is_dir():
            step, self._saving = self._saving.step, None
            if self._on_commit is not None and jax.process_index() == 0:
                self._on_commit(step)
            self._remove_old()

    def wait(self) -> None:
        """Waits for the background save.

        Raises:
          OSError: The save failed, for instance because the disk is full. Older steps are intact.
        """
        with self._failures_explained():
            self._checkpointer.wait_until_finished()
        self.check()

    def close(self) -> None:
        """Waits for the background save and releases the threads.

        Raises:
          OSError: The save failed.
        """
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
            ``<step>.damaged``. An error of the disk is not taken for damage.

        Returns:
          The restored state, or None if there are no steps.

        Raises:
          UserError: The step is damaged or missing, all are damaged, the template does not match,
            or the disk cannot be read.
        """
        found = self._find_and_read(step, template)
        return None if found is None else Restored(found[0].step, found[1], found[0].metadata)

    def restore_params(self, template: PyTree, *, step: int | None = None) -> RestoredParams:
        """Restores only ``state.params``.

        Args:
          template: As in :meth:`restore`, for the parameters alone.
          step: As in :meth:`restore`.

        Raises:
          UserError: As in :meth:`restore`, or there are no steps.
        """
        found = self._find_and_read(step, {"params": template}, partial=True)
        if found is None:
            raise UserError(f"{self.directory}: expected a checkpoint, found none; train first")
        return RestoredParams(found[0].step, found[1]["params"], found[0].metadata)

    def _folder(self, step: int) -> pathlib.Path:
        return self.directory / str(step)

    def _temporary(self, step: int | str) -> pathlib.Path:
        return temporary_folder(self.directory, str(step))

    def _manifest(self, step: int) -> Manifest:
        with self._removal_noticed(step):
            return Manifest.read(self._folder(step), verify=False)

    def _verify(self, step: int) -> _Verified:
        with self._removal_noticed(step):
            before = versions(self._folder(step))
            return _Verified(Manifest.read(self._folder(step), verify=True), before)

    @contextlib.contextmanager
    def _removal_noticed(self, step: int) -> Iterator[None]:
        """Raises MissingStepError instead of any other error if the step does not exist anymore."""
        try:
            yield
        except Exception as error:
            if os.path.lexists(self._folder(step)):
                raise
            raise MissingStepError(
                f"{self._folder(step)} was removed while it was read, as a run does with its old "
                "checkpoints; run the same command again"
            ) from error

    def _write_manifest(self) -> None:
        """Runs on process 0, in a thread of orbax, after all writes and before the rename."""
        assert self._saving is not None
        self._saving.write(self._temporary(self._saving.step))

    @contextlib.contextmanager
    def _failures_explained(self) -> Iterator[None]:
        """Turns errors of a save into an OSError that names the step, and removes its files."""
        try:
            yield
        except Exception as error:
            step = self._saving.step if self._saving else None
            self._saving = None
            if jax.process_index() == 0:
                self._remove_temporary()
            raise OSError(
                f"{self.directory}: step {step} could not be saved; the steps {self.steps()} are "
                f"intact. Free or repair the disk, then run the same command. The cause: {error}"
            ) from error

    def _remove_temporary(self) -> None:
        # After one write has failed, others continue for a moment and may create folders again.
        for _ in range(50):
            folders = list(self.directory.glob(self._temporary("*").name))
            if not folders:
                return
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.1)
        _logger.warning("%s: could not remove %s", self.directory, self._temporary("*").name)

    def _remove_old(self) -> None:
        """Keeps the newest steps and the best; only after a commit, in case the save fails."""
        if jax.process_index() != 0 or self._keep is None:
            return
        try:
            steps = self.steps()
            regular = [step for step in steps if not self._is_interim(step)]
            for step in set(steps) - {steps[-1], self.best_step(), *regular[-self._keep :]}:
                with lock_step(self._folder(step), shared=False) as unused:
                    if unused:
                        # Rename first, so that a kill leaves no step with half of its files.
                        self._folder(step).rename(self._temporary(step))
            for temporary in self.directory.glob(self._temporary("*").name):
                shutil.rmtree(temporary)
        except (OSError, UnreadableError) as error:
            _logger.warning(
                "%s: could not remove old checkpoints, and will try again after the next save: %s",
                self.directory,
                error,
            )

    def _is_interim(self, step: int) -> bool:
        try:
            return self._manifest(step).interim
        except DamagedError:
            return False

    def _find_and_read(
        self, step: int | None, template: PyTree, *, partial: bool = False
    ) -> tuple[Manifest, PyTree] | None:
        while True:
            found = self._find(step)
            if found is None:
                return None
            try:
                return found.manifest, self._read(found, template, partial=partial)
            except MissingStepError:
                if step is not None:
                    raise

    def _find(self, step: int | None) -> _Verified | None:
        """Verifies the given step, or finds the newest undamaged one."""
        self.wait()
        steps = self.steps()
        if step is not None:
            if step not in steps:
                raise MissingStepError(
                    f"{self.directory}: expected one of the steps {steps}: got {step}"
                )
            return self._verify(step)
        damaged: dict[int, DamagedError] = {}
        for candidate in reversed(steps):
            try:
                found = self._verify(candidate)
            except MissingStepError:
                return self._find(None)  # a newer step was saved before this one was removed
            except DamagedError as error:
                damaged[candidate] = error
                continue
            self._set_aside(damaged, candidate)
            return found
        if not damaged:
            return None
        raise UserError(
            f"expected a good checkpoint, found none: {'; '.join(map(str, damaged.values()))}. "
            f"Restore {self.directory} from a backup, or move it away to start from the beginning"
        )

    def _set_aside(self, damaged: dict[int, DamagedError], good: int) -> None:
        """Reports damaged steps, and renames them so that these steps can be saved again."""
        for step, error in damaged.items():
            _logger.warning("damaged checkpoint not used: %s; going back to step %d", error, good)
            if self._keep is not None and jax.process_index() == 0:
                set_aside(self._folder(step))

    def _read(self, found: _Verified, template: PyTree, *, partial: bool = False) -> PyTree:
        """Reads a verified step; nothing is returned that changed after it was verified."""
        found.manifest.check_leaves(describe_leaves(template), partial=partial)
        folder = self._folder(found.manifest.step)
        with (
            self._removal_noticed(found.manifest.step),
            lock_step(folder, shared=True),
            _failures_of_reading_explained(folder),
        ):
            try:
                if partial:  # The config may be the author's, too, and not the user's.
                    check_sizes(folder, template)
                template = jax.tree.map(_abstract, template)
                return jax.block_until_ready(self._restore(folder, template, partial))
            finally:
                if versions(folder) != found.versions:
                    raise DamagedError(
                        f"{folder} changed while it was read; run the same command again"
                    )

    @global_mesh(None)
    def _restore(self, folder: pathlib.Path, template: PyTree, partial: bool) -> PyTree:
        args = ocp.args.PyTreeRestore(
            template,
            restore_args=ocp.checkpoint_utils.construct_restore_args(template),
            partial_restore=partial,
        )
        arrays = self._checkpointer.restore(folder, args=args)
        # Arrays of several processes cannot be put anywhere else.
        return jax.tree.map(lambda a: a if isinstance(a, jax.Array) else jax.device_put(a), arrays)


@contextlib.contextmanager
def _failures_of_reading_explained(folder: pathlib.Path) -> Iterator[None]:
    """Turns errors of orbax, which has no class for them, into a UserError that names the step."""
    try:
        yield
    except (UserError, OSError, MemoryError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {str(error)[:500]}"
        raise UserError(f"{folder} is as it was saved, but cannot be restored: {cause}") from error


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
