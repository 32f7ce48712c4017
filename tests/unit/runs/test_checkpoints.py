"""Checkpoints are exact and verified, and fall back; random damage: test_checkpoint_mutations."""

import contextlib
import functools
import hashlib
import json
import logging
import math
import os
import pathlib
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from jaxformer.errors import UserError
from jaxformer.runs import manifest as manifest_module
from jaxformer.runs import restoring as restoring_module
from jaxformer.runs.checkpoints import Checkpoints, write_single
from jaxformer.runs.manifest import Manifest

SMALL = {"params": {"w": np.arange(3, dtype=np.float32)}}


@functools.cache
def make_state(seed):
    """Returns a state with every dtype of a run, unusual floats, and an empty optax state."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(16, 8)).astype(np.float32)
    params = {
        "embedding": values,
        "layer": {"kernel": values[:8].astype(jnp.bfloat16)},
        "odd": np.array([np.nan, -0.0, np.inf, 1e-42], np.float32),
    }

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    shapes = jax.eval_shape(optimizer.init, params)
    opt_state = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes)

    return jax.device_put({"step": np.int32(seed), "params": params, "opt_state": opt_state})


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)

    leaves = jax.tree.leaves(found)
    for a, b in zip(leaves, jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def save(checkpoints, steps, scores=(), state=SMALL):
    """Saves small states; scores their first ones."""
    for number, step in enumerate(steps):
        metadata = {"name": f"step {step}"}
        checkpoints.save(step, state or make_state(step), metadata=metadata)
        checkpoints.wait()
        if number < len(scores):
            checkpoints.attach_score(step, scores[number])
    return checkpoints.steps()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a folder with steps 1 and 2; step 1 is the best; tests must not change it."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    with Checkpoints(directory, keep=5) as checkpoints:
        save(checkpoints, [1, 2], [-1, -2], state=None)
    return directory


@pytest.fixture
def directory(saved, tmp_path):
    """Returns a copy of the folder that tests may change."""
    return shutil.copytree(saved, tmp_path / "checkpoints")


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def payload(folder):
    """Returns all files that the state consists of."""
    others = {"_CHECKPOINT_METADATA", "commit_success.txt", "score.json"}
    paths = sorted(folder.rglob("*"))
    files = list(filter(pathlib.Path.is_file, paths))
    return [path for path in files if path.name not in others]


@contextlib.contextmanager
def put_back(path):
    """Yields the content of a file, and writes it again at the end."""
    good = path.read_bytes()
    try:
        yield good
    finally:
        path.write_bytes(good)


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << position % 8
    path.write_bytes(content)


class TestRoundTrip:
    @pytest.mark.parametrize(("options", "step"), [({}, 2), ({"step": 1}, 1)])
    def test_is_exact(self, saved, options, step):
        restored = Checkpoints(saved).restore(make_state(0), **options)

        assert restored.step == step
        assert restored.metadata == {"name": f"step {step}"}
        assert_same(restored.state, make_state(step))

    def test_of_params_alone(self, saved):
        template = jax.eval_shape(lambda: make_state(0)["params"])
        restored = Checkpoints(saved).restore_params(template, step=1)

        assert restored.step == 1
        assert restored.metadata == {"name": "step 1"}
        assert_same(restored.params, make_state(1)["params"])

    def test_by_orbax_alone(self, saved):
        with pytest.warns(UserWarning, match="Sharding info not provided"):
            tree = ocp.PyTreeCheckpointer().restore(saved / "2")  # as any user of orbax does

        params = jax.tree.map(np.asarray, tree["params"])
        assert_same(params, make_state(2)["params"])

    def test_the_state_may_be_donated_while_it_is_saved(self, tmp_path):
        values = np.random.default_rng(0).random((1000, 1000), np.float32)
        state = {"params": jax.device_put(values, may_alias=False)}

        @functools.partial(jax.jit, donate_argnums=0)
        def change(state):
            return jax.tree.map(lambda x: x * 2 + 1, state)

        with Checkpoints(tmp_path, keep=1) as checkpoints:
            checkpoints.save(1, state, metadata={})
            for _ in range(5):
                state = change(state)
            restored = checkpoints.restore(state)

        assert_same(restored.state, {"params": values})


class TestDamage:
    def test_of_any_file_is_detected(self, directory, caplog):
        checkpoints = Checkpoints(directory)
        files = payload(directory / "2")
        assert len(files) > 8

        def assert_detected(path, reason=""):
            caplog.clear()
            assert checkpoints.newest_good_step() == 1

            ((logger, level, message),) = caplog.record_tuples
            assert logger == "jaxformer"
            assert level == logging.WARNING
            assert f"damaged checkpoint not used: {path} {reason}" in message
            assert "going back to step 1" in message

        for path in files:
            with put_back(path) as good:
                size = len(good)
                for position in {0, size // 3, size // 2, size - 1}:
                    flip(path, position)
                    assert_detected(path, "has changed since it was saved")
                    flip(path, position)

                for content in (good[:-1], b""):
                    path.write_bytes(content)
                    assert_detected(path)

                path.unlink()
                assert_detected(path)
                assert_same(checkpoints.restore(make_state(0)).state, make_state(1))

        # All files are as they were.
        assert checkpoints.restore(make_state(0)).step == 2

    def test_of_what_was_asked_for_is_an_error(self, directory):
        (directory / "2" / "_METADATA").unlink()
        checkpoints = Checkpoints(directory)

        message = "2/_METADATA cannot be read: No such file"
        with pytest.raises(UserError, match=message):
            checkpoints.restore(make_state(0), step=2)
        with pytest.raises(UserError, match=message):
            checkpoints.restore_params(make_state(0)["params"], step=2)

    def test_of_all_steps_is_an_error(self, directory):
        (directory / "2" / "_METADATA").unlink()
        (directory / "1" / "manifest.json").unlink()

        expected = "expected a good checkpoint, found none: .*2/_METADATA .*1/manifest.json .*move"
        with Checkpoints(directory, keep=2) as checkpoints:
            with pytest.raises(UserError, match=expected):
                checkpoints.restore(make_state(0))  # and it never starts from the beginning
            assert checkpoints.steps() == [1, 2]

    def test_is_set_aside_by_a_resumed_writer(self, directory):
        (directory / "2" / "_METADATA").write_text("{}")

        # A reader leaves it where it is.
        assert Checkpoints(directory).newest_good_step() == 1
        assert (directory / "2").exists()

        with Checkpoints(directory, keep=2) as checkpoints:
            assert checkpoints.restore(make_state(0)).step == 1
            checkpoints.save(2, make_state(5), metadata={})
            assert_same(checkpoints.restore(make_state(0)).state, make_state(5))
        assert (directory / "2.damaged" / "_METADATA").read_text() == "{}"


@pytest.mark.parametrize("file", ["_METADATA", "manifest.json", "score.json"])
def test_a_disk_that_fails_is_not_damage(file, directory, monkeypatch):
    """Reading /proc/self/mem at 0 gives a real EIO."""
    opened = os.open

    def open_descriptor(path, flags, *rest, **options):
        is_bad = str(path).endswith(f"/2/{file}")
        return opened("/proc/self/mem" if is_bad else path, flags, *rest, **options)

    with Checkpoints(directory, keep=2) as checkpoints:
        read = checkpoints.best_step if file == "score.json" else checkpoints.newest_good_step

        monkeypatch.setattr(os, "open", open_descriptor)
        with pytest.raises(UserError, match=r"2/.* cannot be read: Input/output error; the ch"):
            read()
        monkeypatch.undo()

        assert checkpoints.newest_good_step() == 2
    assert names_in(directory) == ["1", "2"]


def save_two_more(directory):
    """Saves the steps 3 and 4, as a run that keeps one step beside its best one."""
    with Checkpoints(directory, keep=1) as trainer:
        save(trainer, [3, 4], [3, 4], state=None)


class TestBesideATrainer:
    """A run keeps only the newest steps."""

    @pytest.mark.parametrize("name", ["file_sha256", "describe_leaves"])
    def test_a_step_is_kept_while_it_is_read(self, directory, name, monkeypatch):
        function = getattr(manifest_module, name)
        reader = Checkpoints(directory)

        def after_two_saves(argument):
            monkeypatch.undo()
            save_two_more(directory)
            return function(argument)

        monkeypatch.setattr(manifest_module, name, after_two_saves)
        assert_same(reader.restore(make_state(0)).state, make_state(2))
        assert reader.steps() == [2, 4]

    @pytest.mark.parametrize("step", [None, 2])
    def test_the_next_step_is_restored_if_one_disappears(self, directory, step, monkeypatch):
        """Between the list of the steps and its lock."""
        lock = manifest_module.lock_step
        reader = Checkpoints(directory)

        def after_two_saves(folder, **options):
            monkeypatch.undo()
            save_two_more(directory)
            return lock(folder, **options)

        monkeypatch.setattr(manifest_module, "lock_step", after_two_saves)
        if step is None:
            assert_same(reader.restore(make_state(0)).state, make_state(4))
        else:
            with pytest.raises(UserError, match="2 was removed while it was read, as a run"):
                reader.restore(make_state(0), step=step)

    def test_a_step_that_changes_after_it_was_verified_is_not_returned(
        self, directory, monkeypatch
    ):
        describe = manifest_module.describe_leaves
        files = payload(directory / "2")
        largest = max(files, key=lambda path: path.stat().st_size)

        def damage(tree):
            middle = largest.stat().st_size // 2
            flip(largest, middle)
            return describe(tree)

        monkeypatch.setattr(manifest_module, "describe_leaves", damage)
        with pytest.raises(UserError, match="2 changed while it was read"):
            Checkpoints(directory).restore(make_state(0))


def test_an_error_that_is_not_damage_keeps_its_name(directory, monkeypatch):
    monkeypatch.setattr(restoring_module, "_restore", lambda *_: {}["mesh"])
    with pytest.raises(UserError, match="is as it was saved, but cannot be restored: KeyError: 'm"):
        Checkpoints(directory).restore(make_state(0))


def test_a_mismatch_is_described(tmp_path):
    good = {
        "params": {"w": np.ones((2, 3), np.float32)},
        "n": np.int32(1),
    }
    other = np.ones((1, 3), jnp.bfloat16)

    with Checkpoints(tmp_path, keep=1) as checkpoints:
        save(checkpoints, [1], state=good)

        with pytest.raises(
            UserError, match=r"params/w to be bfloat16\[1,3\], found float32\[2,3\]"
        ):
            checkpoints.restore(good | {"params": {"w": other}})
        with pytest.raises(UserError, match=r"expected params/v .*, found none \(and 1 more diff"):
            checkpoints.restore(good | {"params": {"v": other}})
        with pytest.raises(UserError, match=r"expected n to be absent, found int32\[\]"):
            checkpoints.restore({"params": good["params"]})

        with pytest.raises(UserError, match=r"params/w to be bfloat16\[1,3\], found float32"):
            checkpoints.restore_params({"w": other})


class TestKept:
    def test_are_the_newest_and_the_best(self, tmp_path):
        scores = [float("nan"), 1.0, 5.0, None, 5.0, 2.0, 3.0, 4.0]
        scored = {}

        with Checkpoints(tmp_path, keep=2) as checkpoints:
            for step, score in enumerate(scores):
                save(checkpoints, [step], [] if score is None else [score])
                if score is not None and not math.isnan(score):
                    scored[step] = score

                # The newest of the best, and the two newest.
                best = max(scored, key=lambda step: (scored[step], step), default=None)
                newest = [step - 1, step] if step else [step]
                kept = {*newest, best} - {None}
                assert checkpoints.steps() == sorted(kept)
                assert checkpoints.best_step() == best
                assert checkpoints.newest_steps() == newest

        reopened = Checkpoints(tmp_path)
        assert reopened.best_step() == 4
        assert reopened.steps() == [4, 6, 7]
        assert reopened.newest_steps() == [6, 7]

    def test_an_interim_step_until_the_next(self, tmp_path):
        seen = []
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            for step in range(1, 7):
                checkpoints.save(step, SMALL, metadata={}, interim=step in (1, 4, 5))
                checkpoints.wait()
                seen.append(checkpoints.steps())
            assert checkpoints.best_step() is None

        assert seen == [
            [1],
            [2],
            [2, 3],
            [2, 3, 4],
            [2, 3, 5],
            [3, 6],
        ]


class TestScore:
    def test_that_is_damaged_does_not_affect_its_step(self, directory):
        path = directory / "1" / "score.json"
        good = path.read_bytes()
        checkpoints = Checkpoints(directory)
        assert checkpoints.best_step() == 1

        for position in range(len(good)):
            flip(path, position)
            assert checkpoints.score(1) is None
            assert checkpoints.best_step() == 2
            flip(path, position)
        for content in (b"", good[:-1], b"{}", b"[" * 10_000):
            path.write_bytes(content)
            assert checkpoints.best_step() == 2

        restored = checkpoints.restore(make_state(0), step=1)
        assert_same(restored.state, make_state(1))


class TestSingle:
    def test_replaces_only_itself(self, directory, saved):
        """Even another folder with a copy of our checkpoints is left alone."""
        averaged = directory.rename(directory.with_name("averaged"))
        mine = shutil.copytree(saved, directory.with_name("averaged.old"))

        for steps in ([1, 2], [2]):
            metadata = {"averaged_steps": steps}
            write_single(averaged, 2, SMALL, metadata=metadata)

            restored = Checkpoints(averaged).restore_params(SMALL["params"])
            assert Checkpoints(averaged).steps() == [2]
            assert restored.metadata == metadata
            assert_same(restored.params, SMALL["params"])

        assert names_in(directory.parent) == ["averaged", "averaged.old"]
        assert Checkpoints(mine).steps() == [1, 2]

    def test_never_replaces_foreign_files(self, tmp_path):
        path = tmp_path / "averaged"
        (path / "100").mkdir(parents=True)  # looks like a step
        (path / "100" / "weights.bin").write_text("mine")
        before = sorted(tmp_path.rglob("*"))

        with pytest.raises(UserError, match="move it away"):
            write_single(path, 1, SMALL, metadata={})

        assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_saved_or_read_is_refused(directory, tmp_path):
    with Checkpoints(directory, keep=2) as checkpoints:
        for step in (1, 2, 0):
            with pytest.raises(ValueError, match=f"expected a step after 2 to save: got {step}"):
                checkpoints.save(step, SMALL, metadata={})
        with pytest.raises(TypeError, match="not JSON serializable"):
            checkpoints.save(3, SMALL, metadata={"a": {1}})
        with pytest.raises(UserError, match=r"expected one of the steps \[1, 2\]: got 7"):
            checkpoints.restore(make_state(0), step=7)

        assert checkpoints.newest_good_step() == 2

    with pytest.raises(UserError, match="at least 1 checkpoint to keep: got 0"):
        Checkpoints(tmp_path, keep=0)


def test_checkpoints_in_a_folder_with_brackets_can_only_be_read(directory, tmp_path):
    pattern = tmp_path / "lr[1e-3]"  # as orbax takes it
    with pytest.raises(UserError, match="expected a path without the characters"):
        Checkpoints(pattern, keep=1)

    shutil.copytree(directory, pattern)
    assert Checkpoints(pattern).newest_good_step() == 2


def test_nothing_saved_yet(tmp_path):
    with Checkpoints(tmp_path / "new" / "folder", keep=1) as checkpoints:
        assert checkpoints.restore(SMALL) is None
        assert checkpoints.steps() == []
        assert checkpoints.newest_steps() == []

    reader = Checkpoints(tmp_path / "absent")
    assert reader.restore(SMALL) is None
    with pytest.raises(UserError, match="expected a checkpoint, found none; train first"):
        reader.restore_params(SMALL["params"])
    assert not (tmp_path / "absent").exists()


def test_a_failed_save_is_raised_by_check(directory, monkeypatch):
    def write(manifest, folder):
        raise OSError(28, "No space left on device")

    def step_until_raised():
        for _ in range(1000):
            checkpoints.check()
            time.sleep(0.01)

    monkeypatch.setattr(Manifest, "write", write)
    with Checkpoints(directory, keep=1) as checkpoints:
        checkpoints.save(3, SMALL, metadata={})
        with pytest.raises(OSError, match=r"step 3 could not be saved; the steps \[1, 2\] are"):
            step_until_raised()

        # Old steps are removed only after a commit, and no incomplete step remains.
        assert names_in(directory) == ["1", "2"]

        checkpoints.check()
        monkeypatch.undo()
        checkpoints.save(3, SMALL, metadata={})
    assert Checkpoints(directory).steps() == [1, 3]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("d/extra", 1), (".nfs0001", 2), ("score.json.77.partial", 2)],
)
def test_unlisted_files_are_noticed_unless_nobody_reads_them(directory, name, expected):
    (directory / "2" / name).write_bytes(b"x")
    assert Checkpoints(directory).newest_good_step() == expected


@pytest.mark.parametrize("change", [{"use_zarr3": True}, {"use_ocdbt": False}])
def test_other_formats_are_not_read(directory, change):
    """The sizes of their chunks are not checked. Whoever made the step wrote the right hashes."""
    path = directory / "2" / "_METADATA"
    metadata = json.loads(path.read_bytes()) | change
    path.write_text(json.dumps(metadata))

    manifest = directory / "2" / "manifest.json"
    content = json.loads(manifest.read_bytes())["content"]
    digest = hashlib.sha256(path.read_bytes())
    content["files"]["_METADATA"] = digest.hexdigest()
    text = json.dumps(content, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    manifest.write_text(json.dumps({"sha256": digest, "content": content}))

    with pytest.raises(UserError, match="_METADATA: expected arrays in the formats OC"):
        Checkpoints(directory).restore_params(make_state(0)["params"])
