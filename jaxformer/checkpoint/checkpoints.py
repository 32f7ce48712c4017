"""The checkpoints of a run: save, verify, restore, fall back.

A step is a folder, ``directory/<step>``, which orbax fills under a temporary name and renames when
it is complete. Just before the rename, ``manifest.json`` is written into it: the SHA-256 of every
file, the shape and dtype of every array, and what is not an array. So a step is either absent or
complete with its manifest, whenever the process is killed; and what the disk has changed since is
noticed before it is used. Orbax alone restores flipped bits and casts dtypes without a word. A step
gets its score, if any, after it was saved: a state does not wait for what may fail.
"""

import contextlib
import json
import logging
import math
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from jaxformer.checkpoint.manifest import (
    DamagedError,
    Manifest,
    describe_leaves,
    read_score,
    write_score,
)
from jaxformer.errors import UserError
from jaxformer.files import local_path

_logger = logging.getLogger("jaxformer")


class Restored(NamedTuple):
    """A state as it was saved, bit for bit.

    Attributes:
      step: The step it was saved at.
      state: The state, laid out on devices like the template.
      metadata: What was given to ``save`` beside it.
    """

    step: int
    state: PyTree
    metadata: dict[str, Any]


class RestoredParams(NamedTuple):
    """The parameters of a state as they were saved, bit for bit.

    Attributes:
      step: The step they were saved at.
      params: ``state.params``, laid out on devices like the template.
      metadata: What was given to ``save`` beside the state.
    """

    step: int
    params: PyTree
    metadata: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, a folder for each step.

    With several processes, each calls every method at the same point of the program, on one shared
    file system.
    """

    # Not orbax's CheckpointManager: its check_for_errors races with its own clean-up, which then
    # deletes old steps although the save failed, and one flipped bit in its file of scores keeps
    # it from opening at all.

    def __init__(
        self,
        directory: pathlib.Path,
        *,
        keep: int | None = None,
        on_commit: Callable[[int], None] | None = None,
    ) -> None:
        """Opens the folder.

        Args:
          directory: Holds the steps and nothing else.
          keep: How many of the newest steps to keep; the best one is kept besides. The folder is
            made if need be, and what a killed process left half-written is removed, so there must
            be one writer. None: only for reading, at any time; nothing is changed.
          on_commit: Called on process 0 with each step once it is complete on the disk.
        """
        if keep is not None and keep < 1:
            raise UserError(f"expected at least 1 checkpoint to keep: got {keep}")
        self.directory = local_path(directory).absolute()
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
        """Does nothing more."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes, also after an error: what is being saved may be all that remains of the run."""
        self.close()

    def steps(self) -> list[int]:
        """The complete steps, ascending. Their contents are verified when they are restored."""
        return saved_steps(self.directory)

    def newest_steps(self) -> list[int]:
        """The steps kept for being new, ascending: without one kept only for being the best.

        Raises:
          UserError: The newest is damaged, which says how many were kept.
        """
        newest: list[int] = []
        most: float = math.inf
        for step in reversed(self.steps()):
            if len(newest) == most:
                break
            try:
                # Those before it that were not among so many are gone, or there for another reason.
                most = min(most, len(newest) + self._manifest(step).keep)
            except DamagedError:
                if not newest:
                    raise
            newest.append(step)
        return newest[::-1]

    def newest_good_step(self) -> int | None:
        """The step that ``restore`` takes; None if there are no steps.

        Raises:
          UserError: All are damaged.
        """
        manifest = self._find(None)
        return None if manifest is None else manifest.step

    def best_step(self) -> int | None:
        """The step with the highest score, the newer of equal ones; None if none has a score."""
        scored = []
        for step in self.steps():
            # A damaged one is never the best; whoever restores it is told.
            with contextlib.suppress(DamagedError):
                scored.append((self._score(step)[1], step))
        return max((pair for pair in scored if pair[0] is not None), default=(None, None))[1]

    def is_scored(self, step: int) -> bool:
        """Returns whether a step has been scored, also if the score was not a number."""
        with contextlib.suppress(DamagedError):
            return self._score(step)[0]
        return False

    def _score(self, step: int) -> tuple[bool, float | None]:
        earlier = self._manifest(step).score
        return (True, earlier) if earlier is not None else read_score(self._folder(step))

    def save(
        self,
        step: int,
        state: PyTree,
        *,
        metadata: dict[str, Any],
        interim: bool = False,
    ) -> None:
        """Saves in the background; the state may be donated or changed as soon as this returns.

        Waits for the save before, if that is still going on.

        Args:
          step: Higher than all saved before.
          state: Arrays in any pytree; to serve ``restore_params`` it has ``params`` at its top.
          metadata: Anything that JSON can say.
          interim: Keep it only until the next is saved, beside those to keep: a run that was
            stopped and went on then has the steps of one that was not.

        Raises:
          ValueError: The step is not newer than the newest.
          OSError: The save before has failed, or this one cannot begin.
        """
        assert self._keep is not None, "opened only for reading"
        self.wait()
        newest = max(self.steps(), default=-1)
        if step <= newest:
            raise ValueError(
                f"{self.directory}: expected a step after {newest} to save: got {step}"
            )
        # What JSON cannot say fails here, not in the background.
        metadata = json.loads(json.dumps(metadata))
        leaves = describe_leaves(state)
        self._saving = Manifest(step, metadata, None, self._keep, leaves, interim)
        with self._failures_explained():
            self._checkpointer.save(self._folder(step), args=ocp.args.PyTreeSave(state))

    def attach_score(self, step: int, score: float) -> None:
        """Gives a step its score; waits until it has been saved.

        Args:
          step: A complete one, or the one that is being saved.
          score: Higher is better; NaN is never the best.

        Raises:
          OSError: The save has failed, or the score cannot be written.
        """
        self.wait()
        if jax.process_index() == 0:
            write_score(self._folder(step), None if math.isnan(score) else score)
        self._remove_old()

    def check(self) -> None:
        """Sees whether the save in the background has ended; if not, that takes microseconds.

        Raises:
          OSError: It failed, for instance because the disk is full. Older steps are intact.
        """
        with self._failures_explained():
            self._checkpointer.check_for_errors()
        if self._saving is not None and self._folder(self._saving.step).is_dir():
            step, self._saving = self._saving.step, None
            if self._on_commit is not None and jax.process_index() == 0:
                self._on_commit(step)
            self._remove_old()

    def wait(self) -> None:
        """Waits until the save in the background has ended.

        Raises:
          OSError: It failed, for instance because the disk is full. Older steps are intact.
        """
        with self._failures_explained():
            self._checkpointer.wait_until_finished()
        self.check()

    def close(self) -> None:
        """Waits for the save in the background and frees the threads.

        Raises:
          OSError: The save failed.
        """
        try:
            self.wait()
        finally:
            self._checkpointer.close()

    def restore(self, template: PyTree, *, step: int | None = None) -> Restored | None:
        """Reads a state.

        Args:
          template: Arrays or ShapeDtypeStructs in the pytree that was saved. They say which shapes
            and dtypes are expected, and by their shardings where the result lies: any mesh will
            do. Without a sharding that is the first device.
          step: None for the newest good one. Damaged newer ones are reported as warnings of the
            logger "jaxformer" and, if this is the writer, renamed to ``<step>.damaged``.

        Returns:
          None if there are no steps.

        Raises:
          UserError: The step is damaged or missing, all are damaged, or they do not fit.
        """
        manifest = self._find(step)
        if manifest is None:
            return None
        return Restored(manifest.step, self._read(manifest, template), manifest.metadata)

    def restore_params(self, template: PyTree, *, step: int | None = None) -> RestoredParams:
        """Reads ``state.params`` and nothing else of the state.

        Args:
          template: As in ``restore``, but of the parameters alone.
          step: As in ``restore``.

        Raises:
          UserError: As in ``restore``, or there are no steps.
        """
        manifest = self._find(step)
        if manifest is None:
            raise UserError(f"{self.directory}: expected a checkpoint, found none; train first")
        params = self._read(manifest, {"params": template}, partial=True)["params"]
        return RestoredParams(manifest.step, params, manifest.metadata)

    def _folder(self, step: int) -> pathlib.Path:
        return self.directory / str(step)

    def _temporary(self, step: int | str) -> pathlib.Path:
        return self.directory / f"{step}{ocp.utils.TMP_DIR_SUFFIX}"

    def _manifest(self, step: int, *, verify: bool = False) -> Manifest:
        return Manifest.read(self._folder(step), verify=verify)

    def _write_manifest(self) -> None:
        """Runs on process 0, in orbax's thread, when all is written but not yet renamed."""
        assert self._saving is not None
        self._saving.write(self._temporary(self._saving.step))

    @contextlib.contextmanager
    def _failures_explained(self) -> Iterator[None]:
        """Says which save failed, and removes what it left."""
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
        # After one write has failed, others still go on for a moment and make folders anew.
        for _ in range(50):
            folders = list(self.directory.glob(self._temporary("*").name))
            if not folders:
                return
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.1)
        _logger.warning("%s: could not remove %s", self.directory, self._temporary("*").name)

    def _remove_old(self) -> None:
        """Keeps the newest and the best. Only after a commit: a failed save costs no older step."""
        if jax.process_index() != 0 or self._keep is None:
            return
        steps = self.steps()
        regular = [step for step in steps if not self._is_interim(step)]
        for step in set(steps) - {steps[-1], self.best_step(), *regular[-self._keep :]}:
            # Renamed first: killed on the way, it leaves no step with half of its files.
            temporary = self._folder(step).rename(self._temporary(step))
            shutil.rmtree(temporary)

    def _is_interim(self, step: int) -> bool:
        try:
            return self._manifest(step).interim
        except DamagedError:
            return False

    def _find(self, step: int | None) -> Manifest | None:
        """Verifies the given step, or finds the newest that is good."""
        self.wait()
        steps = self.steps()
        if step is not None:
            if step not in steps:
                raise UserError(f"{self.directory}: expected one of the steps {steps}: got {step}")
            return self._manifest(step, verify=True)
        damaged: dict[int, DamagedError] = {}
        for candidate in reversed(steps):
            try:
                manifest = self._manifest(candidate, verify=True)
            except DamagedError as error:
                damaged[candidate] = error
                continue
            self._set_aside(damaged, candidate)
            return manifest
        if not damaged:
            return None
        raise UserError(
            f"expected a good checkpoint, found none: {'; '.join(map(str, damaged.values()))}. "
            f"Restore {self.directory} from a backup, or move it away to start from the beginning"
        )

    def _set_aside(self, damaged: dict[int, DamagedError], good: int) -> None:
        """Reports damaged steps, and takes them out of the way of those to be saved again."""
        for step, error in damaged.items():
            _logger.warning("damaged checkpoint not used: %s; going back to step %d", error, good)
            if self._keep is not None and jax.process_index() == 0:
                aside = self.directory / f"{step}.damaged"
                shutil.rmtree(aside, ignore_errors=True)
                self._folder(step).rename(aside)

    def _read(self, manifest: Manifest, template: PyTree, *, partial: bool = False) -> PyTree:
        manifest.check_leaves(describe_leaves(template), partial=partial)
        template = jax.tree.map(_with_sharding, template)
        args = ocp.args.PyTreeRestore(
            template,
            restore_args=ocp.checkpoint_utils.construct_restore_args(template),
            partial_restore=partial,
        )
        return self._checkpointer.restore(self._folder(manifest.step), args=args)


def _with_sharding(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def saved_steps(directory: pathlib.Path) -> list[int]:
    """The complete steps in a folder of checkpoints, ascending; none if there is no folder."""
    if not directory.is_dir():
        return []
    names = (path.name for path in directory.iterdir())
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())
