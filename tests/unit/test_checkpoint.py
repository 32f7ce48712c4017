"""Checkpoints are exact and verified, and fall back; random damage: test_checkpoint_mutations."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import tensorstore
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxformer.checkpoint import Checkpoints, write_single
from jaxformer.checkpoint import checkpoints as checkpoints_module
from jaxformer.checkpoint import manifest as manifest_module
from jaxformer.checkpoint.manifest import Manifest
from jaxformer.errors import UserError
from jaxformer.files import lock_folder

SMALL = {"params": {"w": np.arange(3, dtype=np.float32)}}


@functools.cache
def make_state(seed):
    """Returns a state with every dtype of a run, unusual floats, and an empty optax state."""
    values = np.random.default_rng(seed).normal(size=(16, 8)).astype(np.float32)
    params = {
        "embedding": values,
        "layer": {"kernel": values[:8].astype(jnp.bfloat16)},
        "odd": np.array([np.nan, -0.0, np.inf, 1e-42], np.float32),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    opt_state = jax.tree.map(
        lambda leaf: np.ones(leaf.shape, leaf.dtype), jax.eval_shape(optimizer.init, params)
    )
    return jax.device_put({"step": np.int32(seed), "params": params, "opt_state": opt_state})


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def save(checkpoints, steps, scores=(), state=SMALL):
    """Saves small states; scores their first ones."""
    for number, step in enumerate(steps):
        checkpoints.save(step, state or make_state(step), metadata={"name": f"step {step}"})
        checkpoints.wait()
        if number < len(scores):
            checkpoints.attach_score(step, scores[number])
    return checkpoints.steps()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a folder with steps 1 and 2, of which 1 is the best; tests must not change it."""
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
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
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
    def test_is_exact(self, saved, monkeypatch):
        monkeypatch.chdir(saved.parent)
        checkpoints = Checkpoints(pathlib.Path(saved.name))
        monkeypatch.chdir("/")  # a relative folder stays the same
        for options, step in (({}, 2), ({"step": 1}, 1)):
            restored = checkpoints.restore(make_state(0), **options)
            assert (restored.step, restored.metadata) == (step, {"name": f"step {step}"})
            assert_same(restored.state, make_state(step))

    def test_of_params_alone(self, saved):
        template = jax.eval_shape(lambda: make_state(0)["params"])
        restored = Checkpoints(saved).restore_params(template, step=1)
        assert (restored.step, restored.metadata) == (1, {"name": "step 1"})
        assert_same(restored.params, make_state(1)["params"])
        assert {leaf.sharding for leaf in jax.tree.leaves(restored.params)} == {
            jax.sharding.SingleDeviceSharding(jax.devices()[0])
        }
        with pytest.warns(UserWarning, match="Sharding info not provided"):
            tree = ocp.PyTreeCheckpointer().restore(saved / "2")  # as any user of orbax does
        assert_same(jax.tree.map(np.asarray, tree["params"]), make_state(2)["params"])

    def test_the_state_may_be_donated_while_it_is_saved(self, tmp_path):
        values = np.random.default_rng(0).random((1000, 1000), np.float32)
        state = {"params": jax.device_put(values, may_alias=False)}
        change = jax.jit(lambda state: jax.tree.map(lambda x: x * 2 + 1, state), donate_argnums=0)
        with Checkpoints(tmp_path, keep=1) as checkpoints:
            checkpoints.save(1, state, metadata={})
            for _ in range(5):
                state = change(state)
            restored = checkpoints.restore(state)
        assert_same(restored.state, {"params": values})

    @pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 simulated devices")
    def test_onto_other_meshes(self, tmp_path):
        values = {"params": {"w": np.arange(64, dtype=np.float32).reshape(8, 8)}, "n": np.int32(7)}

        def on_mesh(*sizes):
            devices = jax.devices()[: sizes[0] * sizes[1]]
            types = (AxisType.Auto,) * 2
            mesh = jax.make_mesh(sizes, ("data", "fsdp"), axis_types=types, devices=devices)
            split = NamedSharding(mesh, PartitionSpec("fsdp", "data"))
            return {"params": {"w": split}, "n": NamedSharding(mesh, PartitionSpec())}

        with Checkpoints(tmp_path, keep=1) as checkpoints:
            checkpoints.save(1, jax.device_put(values, on_mesh(4, 2)), metadata={})
            for shardings in (on_mesh(1, 1), on_mesh(2, 4), on_mesh(8, 1)):
                template = jax.tree.map(
                    lambda leaf, sharding: jax.ShapeDtypeStruct(
                        leaf.shape, leaf.dtype, sharding=sharding
                    ),
                    values,
                    shardings,
                )
                restored = checkpoints.restore(template).state
                assert_same(restored, values)
                assert jax.tree.map(lambda leaf: leaf.sharding, restored) == shardings


class TestDamage:
    def test_of_any_file_is_detected(self, directory, caplog):
        checkpoints, files = Checkpoints(directory), payload(directory / "2")
        assert len(files) > 8

        def assert_detected(reason):
            caplog.clear()
            assert checkpoints.newest_good_step() == 1
            (record,) = caplog.record_tuples
            assert record[:2] == ("jaxformer", logging.WARNING)
            assert f"damaged checkpoint not used: {path} {reason}" in record[2]
            assert "going back to step 1" in record[2]

        for path in files:
            with put_back(path) as good:
                for position in {0, len(good) // 3, len(good) // 2, len(good) - 1}:
                    flip(path, position)
                    assert_detected("has changed since it was saved")
                    flip(path, position)
                for content in (good[:-1], b""):
                    path.write_bytes(content)
                    assert_detected("")
                path.unlink()
                assert_detected("")
                assert_same(checkpoints.restore(make_state(0)).state, make_state(1))
        assert checkpoints.restore(make_state(0)).step == 2

    @pytest.mark.parametrize("name", ["_CHECKPOINT_METADATA", "commit_success.txt"])
    def test_of_files_outside_the_manifest_changes_nothing(self, directory, name):
        path = directory / "2" / name
        for damage in (lambda: path.write_bytes(b"{"), path.unlink):
            path.touch()  # Older orbax does not write commit_success.txt.
            damage()
            assert_same(Checkpoints(directory).restore(make_state(0)).state, make_state(2))

    def test_of_a_manifest_is_detected(self, directory):
        path, checkpoints = directory / "2" / "manifest.json", Checkpoints(directory)
        for edit in (
            lambda values: values["content"]["step"].update(metadata={"name": "step 3"}),
            lambda values: values["content"]["step"].update(score=100.0),
            lambda values: values["content"]["files"].popitem(),
            lambda values: values.pop("sha256"),
            lambda values: values.pop("content"),
        ):
            with put_back(path) as good:
                values = json.loads(good)
                edit(values)
                path.write_text(json.dumps(values))
                assert checkpoints.newest_good_step() == checkpoints.best_step() == 1
        (directory / "1").rename(directory / "3")
        shutil.copytree(directory / "2", directory / "004")  # another spelling is not a step
        assert checkpoints.steps() == [2, 3]
        assert checkpoints.newest_good_step() == 2

    def test_of_what_was_asked_for_is_an_error(self, directory):
        (directory / "2" / "_METADATA").unlink()
        checkpoints = Checkpoints(directory)
        for restore, template in (
            (checkpoints.restore, make_state(0)),
            (checkpoints.restore_params, make_state(0)["params"]),
        ):
            with pytest.raises(UserError, match="2/_METADATA cannot be read: No such file"):
                restore(template, step=2)
        (directory / "1" / "manifest.json").unlink()
        expected = "expected a good checkpoint, found none: .*2/_METADATA .*1/manifest.json .*move"
        with Checkpoints(directory, keep=2) as checkpoints:
            with pytest.raises(UserError, match=expected):
                checkpoints.restore(make_state(0))  # and it never starts from the beginning
            assert checkpoints.steps() == [1, 2]

    def test_is_set_aside_by_a_resumed_writer(self, directory):
        (directory / "2" / "_METADATA").write_text("{}")
        assert Checkpoints(directory).newest_good_step() == 1
        assert (directory / "2").exists()
        with Checkpoints(directory, keep=2) as checkpoints:
            assert checkpoints.restore(make_state(0)).step == 1
            checkpoints.save(2, make_state(5), metadata={})
            assert_same(checkpoints.restore(make_state(0)).state, make_state(5))
        assert (directory / "2.damaged" / "_METADATA").read_text() == "{}"

    def test_does_not_shorten_the_time_for_which_a_step_is_kept(self, tmp_path):
        """Somebody may be able to repair it."""
        seen = []
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            for step in (1, 2, 3, 4):
                seen.append(save(checkpoints, [step]))
                if step == 2:
                    (tmp_path / "2" / "manifest.json").write_text("{}")
        assert seen == [[1], [1, 2], [2, 3], [3, 4]]


@pytest.mark.parametrize("file", ["_METADATA", "manifest.json", "score.json"])
class TestUnreadableDisk:
    """A disk that fails is not damage. Reading /proc/self/mem at 0 gives a real EIO."""

    @pytest.fixture
    def fails(self, file, monkeypatch):
        """Returns a function: the next reads of that file of step 2, up to a number, fail."""
        opened, left = os.open, [0]

        def open_descriptor(path, flags, *rest, **options):
            if str(path).endswith(f"/2/{file}") and left[0]:
                left[0] -= 1
                return opened("/proc/self/mem", os.O_RDONLY)
            return opened(path, flags, *rest, **options)

        monkeypatch.setattr(os, "open", open_descriptor)
        return lambda times: left.__setitem__(0, times)

    def test_is_read_a_second_time_and_is_not_damage(self, directory, fails, file):
        with Checkpoints(directory, keep=2) as checkpoints:
            fails(1)
            assert checkpoints.best_step() == 1
            fails(1)
            assert_same(checkpoints.restore(make_state(0)).state, make_state(2))
            fails(99)
            read = checkpoints.best_step if file == "score.json" else checkpoints.newest_good_step
            with pytest.raises(UserError, match=r"2/.* cannot be read: Input/output error; the ch"):
                read()
            fails(0)
            assert checkpoints.newest_good_step() == 2
        assert names_in(directory) == ["1", "2"]

    def test_does_not_remove_the_best_step(self, directory, fails, file):
        with Checkpoints(directory, keep=1) as checkpoints:
            checkpoints.attach_score(2, 5.0)
            assert checkpoints.steps() == [2]
            for step, times, kept in ((3, 99, [2, 3]), (4, 0, [2, 4])):
                fails(times)
                assert set(kept) <= set(save(checkpoints, [step]))
            assert checkpoints.steps() == [2, 4]


KEEPS_SAVING = """
import sys
import numpy as np
from jaxformer.checkpoint import Checkpoints

with Checkpoints(sys.argv[1], keep=1) as checkpoints:
    for step in range(1, 10**6):
        checkpoints.save(step, {"params": {"w": np.full(10_000, step, np.float32)}}, metadata={})
        if step == 4:
            print("saved 3", flush=True)
"""


class TestBesideATrainer:
    """A run keeps only the newest steps."""

    def test_a_step_that_is_being_read_is_removed_after_the_next_save(self, directory, monkeypatch):
        restore = ocp.AsyncCheckpointer.restore
        with Checkpoints(directory, keep=1) as trainer:

            def after_a_save(*arguments, **rest):
                assert save(trainer, [3], [3]) == [2, 3]
                return restore(*arguments, **rest)

            monkeypatch.setattr(ocp.AsyncCheckpointer, "restore", after_a_save)
            assert_same(Checkpoints(directory).restore(make_state(0)).state, make_state(2))
            assert save(trainer, [4], [4]) == [4]

    @pytest.mark.parametrize("step", [None, 2])
    @pytest.mark.parametrize(
        ("module", "name"),
        [(manifest_module, "_sha256"), (checkpoints_module, "describe_leaves")],
        ids=["verify", "read"],
    )
    def test_the_next_step_is_restored_if_one_disappears(
        self, directory, module, name, step, monkeypatch
    ):
        function, reader = getattr(module, name), Checkpoints(directory)

        def after_two_saves(argument):
            monkeypatch.undo()
            with Checkpoints(directory, keep=1) as trainer:
                save(trainer, [3, 4], [3, 4], state=None)
            return function(argument)

        monkeypatch.setattr(module, name, after_two_saves)
        if step is None:
            assert_same(reader.restore(make_state(0)).state, make_state(4))
        else:
            with pytest.raises(UserError, match="2 was removed while it was read, as a run"):
                reader.restore(make_state(0), step=step)

    @pytest.mark.nightly
    def test_a_checkpoint_is_always_found(self, tmp_path):
        """With keep=1 and no pause between saves, most steps are removed while they are read."""
        command = [sys.executable, "-c", KEEPS_SAVING, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "saved 3\n"
        reader, steps, began = Checkpoints(tmp_path), [], time.monotonic()
        while time.monotonic() - began < 10:
            restored = reader.restore_params({"w": np.zeros(10_000, np.float32)})
            np.testing.assert_array_equal(restored.params["w"], restored.step)
            steps.append(restored.step)
        assert process.poll() is None
        process.kill()
        process.communicate()
        assert steps == sorted(steps)
        assert len(set(steps)) > 5

    def test_a_step_that_changes_after_it_was_verified_is_not_returned(
        self, directory, monkeypatch
    ):
        describe = checkpoints_module.describe_leaves
        largest = max(payload(directory / "2"), key=lambda path: path.stat().st_size)

        def damage(tree):
            flip(largest, largest.stat().st_size // 2)
            return describe(tree)

        monkeypatch.setattr(checkpoints_module, "describe_leaves", damage)
        with pytest.raises(UserError, match="2 changed while it was read"):
            Checkpoints(directory).restore(make_state(0))


def test_a_mismatch_is_described(tmp_path):
    good = {"params": {"w": np.ones((2, 3), np.float32)}, "n": np.int32(1)}
    other = np.ones((2, 3), jnp.bfloat16)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        save(checkpoints, [1], state=good)
        for template, message in (
            (
                good | {"params": {"w": other}},
                r"step 1: .*params/w to be bfloat16\[2,3\], found fl",
            ),
            (
                good | {"params": {"w": other[:1]}},
                r"params/w to be bf.*\[1,3\], found .*\[2,3\]; use",
            ),
            (
                good | {"params": {"v": other}},
                r"expected params/v .*, found none \(and 1 more diff",
            ),
            ({"params": good["params"]}, r"expected n to be absent, found int32\[\]"),
            (good | {"n": np.float32(0)}, r"expected n to be float32\[\], found int32\[\]"),
        ):
            with pytest.raises(UserError, match=message):
                checkpoints.restore(template)
        for params, message in (
            ({"w": other}, r"params/w to be bfloat16\[2,3\], found float32\[2,3\]"),
            ({"more": other}, r"params/more to be .* found none"),
        ):
            with pytest.raises(UserError, match=message):
                checkpoints.restore_params(params)


class TestKept:
    def test_are_the_newest_and_the_best(self, tmp_path):
        scores = [float("nan"), 1.0, 5.0, None, 5.0, 2.0, 3.0, 4.0]
        saved = {}
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            for step, score in enumerate(scores):
                save(checkpoints, [step], [] if score is None else [score])
                saved |= {} if score is None or score != score else {step: score}
                best = max(saved, key=lambda step: (saved[step], step), default=None)
                assert checkpoints.steps() == sorted({step - 1, step, best} - {-1, None})
                assert checkpoints.best_step() == best
                assert checkpoints.newest_steps() == [step - 1, step][-(step + 1) :]
        reopened = Checkpoints(tmp_path)
        assert (reopened.best_step(), reopened.steps()) == (4, [4, 6, 7])
        assert reopened.newest_steps() == [6, 7]

    def test_newest_steps_do_not_include_an_older_best_one(self, tmp_path):
        """A run that resumes with more to keep has lost all older steps but the best."""
        for keep, steps, scores in ((2, [1, 2, 3, 4], [5, 1, 1, 1]), (5, [5], [1])):
            with Checkpoints(tmp_path, keep=keep) as checkpoints:
                save(checkpoints, steps, scores)
        assert Checkpoints(tmp_path).steps() == [1, 3, 4, 5]
        assert Checkpoints(tmp_path).newest_steps() == [3, 4, 5]
        (tmp_path / "3" / "manifest.json").unlink()  # damage does not hide undamaged steps
        assert Checkpoints(tmp_path).newest_steps()[-2:] == [4, 5]

    def test_an_interim_step_until_the_next(self, tmp_path):
        seen = []
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            for step in range(1, 7):
                checkpoints.save(step, SMALL, metadata={}, interim=step in (1, 4, 5))
                checkpoints.wait()
                seen.append(checkpoints.steps())
            assert checkpoints.best_step() is None
        assert seen == [[1], [2], [2, 3], [2, 3, 4], [2, 3, 5], [3, 6]]

    def test_an_old_step_that_cannot_be_removed_until_the_next_save(self, directory, caplog):
        obstacle = directory / f"2{ocp.utils.TMP_DIR_SUFFIX}"
        with Checkpoints(directory, keep=1) as checkpoints:
            obstacle.touch()
            assert 2 in save(checkpoints, [3])
            assert "could not remove old checkpoints, and will try again after the" in caplog.text
            obstacle.unlink()
            save(checkpoints, [4])
        assert names_in(directory) == ["1", "4"]


class TestScore:
    def test_is_attached_to_a_step_that_is_being_saved(self, tmp_path):
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            for step, score in ((1, -2.5), (2, float("nan"))):  # scored, but never the best
                checkpoints.save(step, SMALL, metadata={})
                assert not checkpoints.is_scored(step)
                checkpoints.attach_score(step, score)
                assert checkpoints.is_scored(step)
        assert Checkpoints(tmp_path).best_step() == 1

    def test_that_is_damaged_does_not_affect_its_step(self, directory):
        path, checkpoints = directory / "1" / "score.json", Checkpoints(directory)
        assert checkpoints.best_step() == 1
        good, other = path.read_bytes(), {"score": "1e9"}
        for position in range(len(good)):
            flip(path, position)
            assert not checkpoints.is_scored(1)
            assert checkpoints.best_step() == 2
            flip(path, position)
        other_type = json.dumps({"sha256": sha256(other), "content": other}).encode()
        for content in (b"", good[:-1], b"[]", b"{}", b"null", b"[" * 10_000, other_type):
            path.write_bytes(content)
            assert checkpoints.best_step() == 2
        assert_same(checkpoints.restore(make_state(0), step=1).state, make_state(1))

    def test_of_an_earlier_version_is_in_the_manifest(self, directory):
        for step, score in ((1, -1.0), (2, -0.5)):
            folder = directory / str(step)
            manifest = Manifest.read(folder, verify=True)
            (folder / "score.json").unlink()
            (folder / "manifest.json").unlink()
            dataclasses.replace(manifest, score=score).write(folder)
        with Checkpoints(directory, keep=1) as checkpoints:
            assert checkpoints.is_scored(1)
            assert checkpoints.best_step() == 2
            assert save(checkpoints, [3], [-0.7]) == [2, 3]
            assert save(checkpoints, [4], [-0.4]) == [4]


class TestCommit:
    def test_is_announced_once_it_is_complete(self, directory):
        announced = []

        def announce(step):
            announced.append((step, Manifest.read(directory / str(step), verify=True).step))

        with Checkpoints(directory, keep=5, on_commit=announce) as checkpoints:
            for step in (3, 4):
                checkpoints.save(step, SMALL, metadata={})
                checkpoints.check()
        assert announced == [(3, 3), (4, 4)]

    def test_comes_after_the_manifest(self, tmp_path, monkeypatch):
        seen, write = [], Manifest.write

        def spy(manifest, folder):
            seen.append(names_in(tmp_path))
            write(manifest, folder)
            # The manifest must list all files of the complete step, except two with timestamps.
            seen.append({path.relative_to(folder) for path in payload(folder)})

        monkeypatch.setattr(Manifest, "write", spy)
        with Checkpoints(tmp_path, keep=1) as checkpoints:
            checkpoints.save(1, make_state(1), metadata={})
        assert seen[0] == [f"1{ocp.utils.TMP_DIR_SUFFIX}"]
        assert seen[1] == {path.relative_to(tmp_path / "1") for path in payload(tmp_path / "1")}

    def test_needs_all_files_of_orbax(self, tmp_path, monkeypatch):
        """In such a path, it writes them elsewhere."""
        folder = tmp_path / "a[1]"
        monkeypatch.setattr(checkpoints_module, "check_directory", lambda _: None)
        message = r"step 1 could not be saved.* not written manifest\.ocdbt"
        with Checkpoints(folder, keep=1) as checkpoints, pytest.raises(OSError, match=message):
            save(checkpoints, [1])
        assert names_in(folder) == []


class TestSingle:
    def test_replaces_only_itself(self, directory, saved):
        """Even other folders with copies of our checkpoints are left alone."""
        averaged = directory.rename(directory.with_name("averaged"))
        others = [directory.with_name(f"averaged.{end}") for end in ("old", "new", "backup")]
        for mine in others:
            shutil.copytree(saved, mine)
            (mine / "thesis.txt").write_text("years of work")
        for steps in ([1, 2], [2]):
            write_single(averaged, 2, SMALL, {"averaged_steps": steps})
            restored = Checkpoints(averaged).restore_params(SMALL["params"])
            assert Checkpoints(averaged).steps() == [2]
            assert restored.metadata == {"averaged_steps": steps}
            assert_same(restored.params, SMALL["params"])
        assert len(names_in(directory.parent)) == 4
        for mine in others:
            assert (mine / "thesis.txt").read_text() == "years of work"
            assert Checkpoints(mine).steps() == [1, 2]

    @pytest.mark.parametrize("name", ["averaged", "averaged.unfinished"])
    @pytest.mark.parametrize("kind", ["notes", "100", "file", "link"])
    def test_never_replaces_foreign_files(self, tmp_path, name, kind):
        path = tmp_path / name
        if kind == "file":
            path.write_text("mine")
        elif kind == "link":  # its target may be on a disk that is not mounted
            path.symlink_to(tmp_path / "nowhere")
        else:  # a folder, of which one looks like a step
            (path / kind).mkdir(parents=True)
            (path / kind / "weights.bin").write_text("mine")
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UserError, match="move it away"):
            write_single(tmp_path / "averaged", 1, SMALL, {})
        assert sorted(tmp_path.rglob("*")) == before

    def test_clears_what_a_killed_process_left_but_disturbs_no_other(self, tmp_path):
        work = tmp_path / "averaged.unfinished"
        with lock_folder(work):
            (work / "new" / "2").mkdir(parents=True)
            for name in ("unfinished", "new/2/d"):
                (work / name).touch()
            with pytest.raises(UserError, match=r"averaged\.unfinished: another process is"):
                write_single(tmp_path / "averaged", 1, SMALL, {})
            assert (work / "new" / "2" / "d").exists()
        for step in (1, 2):
            write_single(tmp_path / "averaged", step, SMALL, {})
            assert Checkpoints(tmp_path / "averaged").steps() == [step]
            assert names_in(tmp_path) == ["averaged"]
            work.mkdir()
            (work / "lock").touch()


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
    for name in ("lr[1e-3]", "a*", "b?", "back\\slash"):  # orbax takes them for patterns
        with pytest.raises(UserError, match="expected a path without the characters"):
            Checkpoints(tmp_path / name, keep=1)
        assert not (tmp_path / name).exists()
        shutil.copytree(directory, tmp_path / name)
        assert Checkpoints(tmp_path / name).newest_good_step() == 2


def test_nothing_saved_yet(tmp_path):
    with Checkpoints(tmp_path / "new" / "folder", keep=1) as checkpoints:
        assert checkpoints.restore(SMALL) is None
        assert checkpoints.steps() == checkpoints.newest_steps() == []
    reader = Checkpoints(tmp_path / "absent")
    assert reader.restore(SMALL) is None
    with pytest.raises(UserError, match="expected a checkpoint, found none; train first"):
        reader.restore_params(SMALL["params"])
    assert not (tmp_path / "absent").exists()


def test_the_writer_removes_temporary_folders_and_the_reader_does_not(directory):
    left = shutil.copytree(directory / "2", directory / f"3{ocp.utils.TMP_DIR_SUFFIX}")
    assert Checkpoints(directory).steps() == [1, 2]
    assert left.exists()
    Checkpoints(directory, keep=2).close()
    assert names_in(directory) == ["1", "2"]


class TestFailure:
    @pytest.fixture(autouse=True)
    def full_disk(self, monkeypatch):
        def write(manifest, folder):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Manifest, "write", write)

    def test_is_raised_by_check(self, directory, monkeypatch):
        def step_until_raised():
            for _ in range(1000):
                checkpoints.check()
                time.sleep(0.01)

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

    def test_is_raised_by_all_other_methods(self, tmp_path):
        for method in (Checkpoints.wait, Checkpoints.close):
            checkpoints = Checkpoints(tmp_path / "run", keep=1)
            checkpoints.save(3, SMALL, metadata={})
            with pytest.raises(OSError, match="No space left on device"):
                method(checkpoints)
        (tmp_path / "run").rmdir()
        with pytest.raises(OSError, match="No space left on device"):
            write_single(tmp_path / "averaged", 1, SMALL, {})
        assert names_in(tmp_path) == []


def sha256(content):
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def reseal(folder, change, place=None):
    """Changes values of a manifest and writes its hash again, as whoever made it can."""
    path = folder / "manifest.json"
    content = json.loads(path.read_bytes())["content"]
    values = content if place is None else content[place]
    values.update(change)
    if values.get("_METADATA", 0) is None:
        del values["_METADATA"]
    path.write_text(json.dumps({"sha256": sha256(content), "content": content}))


def reseal_files(step):
    """Writes the hashes of the files of a step into its manifest."""
    files = {
        path.relative_to(step).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in payload(step)
        if path.name != "manifest.json"
    }
    reseal(step, {"files": files})


class TestHostileStep:
    """A step whose author wrote the right hash of whatever it holds."""

    def test_falls_back(self, directory):
        checkpoints = Checkpoints(directory)
        whole = [{"files": {}}, {"files": []}, {"step": []}]
        step = [{"metadata": []}, {"leaves": {"step": 1}}, {"leaves": []}, {"keep": "1"}]
        step += [{"interim": 1}, {"score": "best"}, {"step": 2.0}, {"step": True}, {"unknown": 1}]
        files = [{"_METADATA": None}, {"../1/_METADATA": "0"}, {"_METADATA": 0}]
        for place, changes in ((None, whole), ("step", step), ("files", files)):
            for change in changes:
                with put_back(directory / "2" / "manifest.json"):
                    reseal(directory / "2", change, place)
                    assert checkpoints.newest_good_step() == 1, change

    def test_unlisted_files_are_noticed_unless_nobody_reads_them(self, directory):
        for names, expected in (
            (["extra", "d/extra", "ocdbt.process_7/manifest.ocdbt"], 1),
            ([".nfs0001", ".DS_Store", "score.json.77.partial"], 2),
        ):
            for name in names:
                path = directory / "2" / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(b"x")
                assert Checkpoints(directory).newest_good_step() == expected, name
                path.unlink()
        assert Checkpoints(directory).restore(make_state(0)).step == 2

    @pytest.mark.parametrize("name", [".nfs0001", "d/.DS_Store"])
    def test_hidden_files_may_come_and_go(self, directory, name, monkeypatch):
        """While a step is saved, and while it is read."""
        write, restore = Manifest.write, Checkpoints._restore
        path = directory / "3" / name

        def create_and_write(manifest, folder):
            (folder / name).write_bytes(b"x")
            write(manifest, folder)

        def remove_and_restore(*arguments):
            path.unlink()
            (path.parent / ".nfs0002").write_bytes(b"y")
            return restore(*arguments)

        monkeypatch.setattr(Manifest, "write", create_and_write)
        monkeypatch.setattr(Checkpoints, "_restore", remove_and_restore)
        with Checkpoints(directory, keep=2) as checkpoints:
            checkpoints.save(3, SMALL, metadata={})
            checkpoints.wait()
            assert path.exists()
            assert_same(checkpoints.restore(SMALL).state, SMALL)

    @pytest.mark.parametrize("name", ["manifest.json", "_METADATA", "d", "_CHECKPOINT_METADATA"])
    def test_only_regular_files_count(self, directory, name):
        path, checkpoints = directory / "2" / name, Checkpoints(directory)
        kept = path.rename(directory.parent / "kept")
        for target in (kept, path, directory.parent, None):
            if target is None:
                os.mkfifo(path)
            else:
                path.symlink_to(target)
            assert checkpoints.newest_good_step() == 1
            path.unlink()
        kept.rename(path)
        assert checkpoints.newest_good_step() == 2
        (directory / "2").rename(directory.parent / "2")  # a step that is a link
        (directory / "2").symlink_to(directory.parent / "2")
        assert checkpoints.newest_good_step() == 1

    def test_huge_chunks_are_not_read(self, directory):
        step, key = directory / "2", "params.embedding/.zarray"
        database = {"driver": "ocdbt", "base": step.as_uri() + "/"}
        store = tensorstore.KvStore.open(database).result()
        values = json.loads(store.read(key).result().value)
        for change in (
            {"chunks": [10**9, 10**9]},
            {"dtype": "|S1000000000"},
            {"dtype": [["a", "<f4", [10**9]]]},
            {"chunks": "x"},
        ):
            store.write(key, json.dumps(values | change).encode()).result()
            reseal_files(step)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with pytest.raises(UserError, match=r"2: .*(chunks within|metadata of)"):
                Checkpoints(directory).restore_params(make_state(0)["params"])
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB

    def test_other_formats_are_not_read(self, directory):
        """The sizes of their chunks are not checked."""
        path = directory / "2" / "_METADATA"
        for change in ({"use_zarr3": True}, {"use_ocdbt": False}):
            with put_back(path) as good:
                path.write_text(json.dumps(json.loads(good) | change))
                reseal_files(directory / "2")
                with pytest.raises(UserError, match="_METADATA: expected arrays in the formats OC"):
                    Checkpoints(directory).restore_params(make_state(0)["params"])

    def test_arrays_are_no_larger_than_their_files_allow(self, directory):
        """The manifest and the config agree on a terabyte, but there are only kilobytes."""
        huge = jax.ShapeDtypeStruct((1_000_000, 250_000), np.float32)
        manifest = Manifest.read(directory / "2", verify=False)
        leaves = manifest.leaves | {"params/embedding": "float32[1000000,250000]"}
        reseal(directory / "2", {"leaves": leaves}, "step")
        with pytest.raises(UserError, match="expected files for arrays of 1,000,000,000,"):
            Checkpoints(directory).restore_params(make_state(0)["params"] | {"embedding": huge})
