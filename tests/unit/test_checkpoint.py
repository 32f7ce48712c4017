import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import resource
import shutil
import time
from collections.abc import Callable
from typing import Any

import flax.struct
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


class State(flax.struct.PyTreeNode):
    step: jax.Array
    params: dict
    opt_state: tuple


def make_state(seed: int) -> State:
    """Returns a state with every dtype of a run, unusual floats, and an empty optax state."""
    key = jax.random.key(seed)
    params = {
        "embedding": jax.random.normal(key, (16, 8)),
        "layer": {"kernel": jax.random.normal(key, (8, 8)).astype(jnp.bfloat16)},
        "odd": jnp.array([jnp.nan, -0.0, jnp.inf, 1e-42], jnp.float32),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    opt_state = jax.tree.map(lambda leaf: leaf + jnp.ones_like(leaf), optimizer.init(params))
    return State(jnp.int32(seed), params, opt_state)


def assert_same(found, expected) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a folder with steps 1 and 2; tests must copy it, not change it."""
    return save_two(tmp_path_factory.mktemp("saved") / "checkpoints")


def save_two(directory: pathlib.Path) -> pathlib.Path:
    with Checkpoints(directory, keep=5) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, make_state(step), metadata={"name": f"step {step}"})
            checkpoints.attach_score(step, -step)
    return directory


@pytest.fixture
def directory(saved: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(saved, tmp_path / "checkpoints"))


def payload(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns all files that the state consists of."""
    others = {"_CHECKPOINT_METADATA", "commit_success.txt", "score.json"}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in files if path.name not in others]


class TestRoundTrip:
    def test_is_exact(self, saved: pathlib.Path) -> None:
        restored = Checkpoints(saved).restore(make_state(0))
        assert restored is not None
        assert restored.step == 2
        assert restored.metadata == {"name": "step 2"}
        assert_same(restored.state, make_state(2))

    def test_of_a_given_step(self, saved: pathlib.Path) -> None:
        restored = Checkpoints(saved).restore(make_state(0), step=1)
        assert restored is not None
        assert restored.step == 1
        assert_same(restored.state, make_state(1))

    def test_relative_directory(self, saved: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(saved.parent)
        checkpoints = Checkpoints(pathlib.Path(saved.name))
        monkeypatch.chdir("/")
        assert checkpoints.steps() == [1, 2]

    def test_params_alone(self, saved: pathlib.Path) -> None:
        template = jax.eval_shape(lambda: make_state(0).params)
        restored = Checkpoints(saved).restore_params(template, step=1)
        assert (restored.step, restored.metadata) == (1, {"name": "step 1"})
        assert_same(restored.params, make_state(1).params)
        assert {leaf.sharding for leaf in jax.tree.leaves(restored.params)} == {
            jax.sharding.SingleDeviceSharding(jax.devices()[0])
        }

    def test_the_state_may_be_donated_while_it_is_saved(self, tmp_path: pathlib.Path) -> None:
        state = {"params": jax.random.normal(jax.random.key(0), (1000, 1000))}
        expected = np.array(state["params"])
        change = jax.jit(lambda state: jax.tree.map(lambda x: x * 2 + 1, state), donate_argnums=0)
        with Checkpoints(tmp_path, keep=1) as checkpoints:
            checkpoints.save(1, state, metadata={})
            for _ in range(5):
                state = change(state)
            restored = checkpoints.restore(state)
        assert restored is not None
        assert_same(restored.state, {"params": expected})

    def test_plain_orbax_reads_it(self, saved: pathlib.Path) -> None:
        with pytest.warns(UserWarning, match="Sharding info not provided"):
            tree = ocp.PyTreeCheckpointer().restore(saved / "2")
        assert_same(jax.tree.map(np.asarray, tree["params"]), make_state(2).params)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 simulated devices")
@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (8, 1)])
def test_restores_onto_another_mesh(tmp_path: pathlib.Path, shape: tuple[int, int]) -> None:
    values = {"params": {"w": np.arange(64.0, dtype=np.float32).reshape(8, 8)}, "n": np.int32(7)}

    def on_mesh(shape: tuple[int, int]) -> dict:
        mesh = jax.make_mesh(
            shape,
            ("data", "fsdp"),
            axis_types=(AxisType.Auto,) * 2,
            devices=jax.devices()[: shape[0] * shape[1]],
        )
        split = NamedSharding(mesh, PartitionSpec("fsdp", "data"))
        return {"params": {"w": split}, "n": NamedSharding(mesh, PartitionSpec())}

    template = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        values,
        on_mesh(shape),
    )
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, jax.device_put(values, on_mesh((4, 2))), metadata={})
        restored = checkpoints.restore(template)
    assert restored is not None
    assert_same(restored.state, values)
    assert jax.tree.map(lambda leaf: leaf.sharding, restored.state) == on_mesh(shape)


class TestDamage:
    def test_in_any_file_is_detected(
        self, directory: pathlib.Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        checkpoints = Checkpoints(directory)
        files = payload(directory / "2")
        assert len(files) > 8
        for path in files:
            good = path.read_bytes()
            for position in {0, len(good) // 3, len(good) // 2, len(good) - 1}:
                bad = bytearray(good)
                bad[position] ^= 1 << position % 8
                path.write_bytes(bad)
                caplog.clear()
                restored = checkpoints.restore(make_state(0))
                assert restored is not None
                assert restored.step == 1
                assert f"{path} has changed since it was saved" in caplog.text
                assert "going back to step 1" in caplog.text
            path.write_bytes(good)
        assert_same(restored.state, make_state(1))
        assert checkpoints.restore(make_state(0)).step == 2

    @pytest.mark.parametrize("damage", ["truncated", "missing", "empty"])
    def test_to_the_length_of_a_file_is_detected(
        self, directory: pathlib.Path, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        for path in payload(directory / "2"):
            good = path.read_bytes()
            if damage == "missing":
                path.unlink()
            else:
                path.write_bytes(good[:-1] if damage == "truncated" else b"")
            caplog.clear()
            assert Checkpoints(directory).restore(make_state(0)).step == 1
            assert f"damaged checkpoint not used: {path} " in caplog.text
            path.write_bytes(good)

    @pytest.mark.parametrize("name", ["_CHECKPOINT_METADATA", "commit_success.txt"])
    @pytest.mark.parametrize("damage", [pathlib.Path.unlink, lambda path: path.write_bytes(b"{")])
    def test_in_files_outside_the_manifest_changes_nothing(
        self, directory: pathlib.Path, name: str, damage: Callable
    ) -> None:
        # Older orbax does not write commit_success.txt.
        (directory / "2" / name).touch()
        damage(directory / "2" / name)
        restored = Checkpoints(directory).restore(make_state(0))
        assert restored.step == 2
        assert_same(restored.state, make_state(2))

    @pytest.mark.parametrize(
        "edit",
        [
            lambda values: values["content"]["step"].update(metadata={"name": "step 3"}),
            lambda values: values["content"]["step"].update(score=100.0),
            lambda values: values["content"]["files"].popitem(),
            lambda values: values.pop("sha256"),
            lambda values: values.pop("content"),
        ],
    )
    def test_in_an_edited_manifest_is_detected(
        self, directory: pathlib.Path, edit: Callable
    ) -> None:
        path = directory / "2" / "manifest.json"
        values = json.loads(path.read_text())
        edit(values)
        path.write_text(json.dumps(values))
        checkpoints = Checkpoints(directory)
        assert checkpoints.restore(make_state(0)).step == 1
        assert checkpoints.best_step() == 1

    def test_by_renaming_a_step_is_detected(self, directory: pathlib.Path) -> None:
        (directory / "1").rename(directory / "3")
        assert Checkpoints(directory).restore(make_state(0)).step == 2

    def test_of_a_given_step_is_an_error(self, directory: pathlib.Path) -> None:
        (directory / "2" / "_METADATA").unlink()
        checkpoints = Checkpoints(directory)
        with pytest.raises(UserError, match="2/_METADATA cannot be read: No such file"):
            checkpoints.restore(make_state(0), step=2)
        with pytest.raises(UserError, match="2/_METADATA cannot be read: No such file"):
            checkpoints.restore_params(make_state(0).params, step=2)

    def test_of_all_steps_never_starts_from_the_beginning(self, directory: pathlib.Path) -> None:
        (directory / "2" / "_METADATA").unlink()
        (directory / "1" / "manifest.json").unlink()
        expected = "expected a good checkpoint, found none: .*2/_METADATA .*1/manifest.json .*move"
        with Checkpoints(directory, keep=2) as checkpoints:
            with pytest.raises(UserError, match=expected):
                checkpoints.restore(make_state(0))
            assert checkpoints.steps() == [1, 2]

    def test_is_set_aside_by_a_resumed_writer(self, directory: pathlib.Path) -> None:
        (directory / "2" / "_METADATA").write_text("{}")
        Checkpoints(directory).restore(make_state(0))
        assert (directory / "2").exists()
        with Checkpoints(directory, keep=2) as checkpoints:
            assert checkpoints.restore(make_state(0)).step == 1
            checkpoints.save(2, make_state(5), metadata={})
            restored = checkpoints.restore(make_state(0))
        assert restored.step == 2
        assert_same(restored.state, make_state(5))
        assert (directory / "2.damaged" / "_METADATA").read_text() == "{}"


class TestUnreadableDisk:
    """A disk that fails is not damage. Reading /proc/self/mem at 0 gives a real EIO."""

    @pytest.fixture(params=["_METADATA", "manifest.json", "score.json"])
    def fails(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable:
        """Returns a function: the next reads of that file of step 2, up to a number, fail."""
        opened, left = os.open, [0]

        def open_descriptor(path: str, flags: int, *rest: int, **options: int) -> int:
            if str(path).endswith(f"/2/{request.param}") and left[0]:
                left[0] -= 1
                return opened("/proc/self/mem", os.O_RDONLY)
            return opened(path, flags, *rest, **options)

        monkeypatch.setattr(os, "open", open_descriptor)
        return lambda times: left.__setitem__(0, times)

    def test_is_read_a_second_time(self, directory: pathlib.Path, fails: Callable) -> None:
        with Checkpoints(directory, keep=2) as checkpoints:
            fails(1)
            assert checkpoints.best_step() == 1
            fails(1)
            assert_same(checkpoints.restore(make_state(0)).state, make_state(2))

    def test_does_not_make_a_step_damaged(
        self, directory: pathlib.Path, fails: Callable, request: pytest.FixtureRequest
    ) -> None:
        file = request.node.callspec.params["fails"]
        with Checkpoints(directory, keep=2) as checkpoints:
            fails(99)
            read = checkpoints.best_step if file == "score.json" else checkpoints.newest_good_step
            with pytest.raises(UserError, match=r"2/.* cannot be read: Input/output error; the ch"):
                read()
            fails(0)
            assert checkpoints.restore(make_state(0)).step == 2
        assert sorted(path.name for path in directory.iterdir()) == ["1", "2"]

    def test_does_not_remove_the_best_step(
        self, directory: pathlib.Path, fails: Callable, caplog: pytest.LogCaptureFixture
    ) -> None:
        with Checkpoints(directory, keep=1) as checkpoints:
            checkpoints.attach_score(2, 5.0)
            assert checkpoints.steps() == [2]
            fails(99)
            checkpoints.save(3, make_state(3), metadata={})
            checkpoints.wait()
            assert 2 in checkpoints.steps()
            fails(0)
            checkpoints.save(4, make_state(4), metadata={})
            checkpoints.wait()
            assert checkpoints.steps() == [2, 4]


def test_an_old_step_that_cannot_be_removed_is_removed_after_the_next_save(
    directory: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Checkpoints(directory, keep=1) as checkpoints:
        obstacle = directory / f"2{ocp.utils.TMP_DIR_SUFFIX}"
        obstacle.touch()
        checkpoints.save(3, make_state(3), metadata={})
        checkpoints.wait()
        assert "could not remove old checkpoints, and will try again after the" in caplog.text
        assert 2 in checkpoints.steps()
        obstacle.unlink()
        checkpoints.save(4, make_state(4), metadata={})
        checkpoints.wait()
        assert sorted(path.name for path in directory.iterdir()) == ["1", "4"]


class TestBesideATrainer:
    """A run keeps only the newest steps."""

    def test_a_step_that_is_being_read_is_removed_after_the_next_save(
        self, directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        restore = ocp.AsyncCheckpointer.restore
        trainer = Checkpoints(directory, keep=1)

        def save(step: int) -> list[int]:
            trainer.save(step, make_state(step), metadata={})
            trainer.attach_score(step, step)
            return trainer.steps()

        def after_a_save(*arguments: Any, **rest: Any) -> Any:
            assert save(3) == [2, 3]
            return restore(*arguments, **rest)

        monkeypatch.setattr(ocp.AsyncCheckpointer, "restore", after_a_save)
        assert_same(Checkpoints(directory).restore(make_state(0)).state, make_state(2))
        assert save(4) == [4]
        trainer.close()

    @pytest.mark.parametrize("moment", ["verify", "read"])
    def test_the_next_step_is_restored_if_one_disappears(
        self, directory: pathlib.Path, moment: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = {"verify": manifest_module, "read": checkpoints_module}[moment]
        name = {"verify": "_sha256", "read": "describe_leaves"}[moment]
        function = getattr(module, name)

        def after_two_saves(argument: Any) -> Any:
            monkeypatch.undo()
            with Checkpoints(directory, keep=1) as trainer:
                for step in (3, 4):
                    trainer.save(step, make_state(step), metadata={})
                    trainer.attach_score(step, step)
            return function(argument)

        for step in (None, 2):
            reader = Checkpoints(directory)
            monkeypatch.setattr(module, name, after_two_saves)
            if step is None:
                restored = reader.restore(make_state(0))
                assert restored.step == 4
                assert_same(restored.state, make_state(4))
                shutil.rmtree(directory)
                save_two(directory)
            else:
                with pytest.raises(UserError, match="2 was removed while it was read, as a run"):
                    reader.restore(make_state(0), step=step)

    def test_a_step_that_changes_after_it_was_verified_is_not_returned(
        self, directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        describe = checkpoints_module.describe_leaves
        largest = max(payload(directory / "2"), key=lambda path: path.stat().st_size)

        def flip(tree: Any) -> dict[str, str]:
            content = bytearray(largest.read_bytes())
            content[len(content) // 2] ^= 1
            largest.write_bytes(content)
            return describe(tree)

        monkeypatch.setattr(checkpoints_module, "describe_leaves", flip)
        with pytest.raises(UserError, match="2 changed while it was read"):
            Checkpoints(directory).restore(make_state(0))


class TestMismatch:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda s: s | {"params": {"w": jnp.zeros((2, 3), jnp.bfloat16)}},
                r"step 1: expected params/w to be bfloat16\[2,3\], found float32\[2,3\]; use",
            ),
            (
                lambda s: s | {"params": {"w": jnp.zeros((3, 3))}},
                r"expected params/w to be float32\[3,3\], found float32\[2,3\]; use",
            ),
            (
                lambda s: s | {"params": {"v": jnp.zeros((2, 3))}},
                r"expected params/v to be float32\[2,3\], found none \(and 1 more differences\)",
            ),
            (
                lambda s: {"params": s["params"]},
                r"expected n to be absent, found int32\[\]",
            ),
            (
                lambda s: s | {"n": jnp.float32(0)},
                r"expected n to be float32\[\], found int32\[\]",
            ),
        ],
    )
    def test_is_described_in_the_error(
        self, tmp_path: pathlib.Path, change: Callable[[dict], dict], message: str
    ) -> None:
        state = {"params": {"w": jnp.ones((2, 3))}, "n": jnp.int32(1)}
        with Checkpoints(tmp_path, keep=1) as checkpoints:
            checkpoints.save(1, state, metadata={})
            with pytest.raises(UserError, match=message):
                checkpoints.restore(change(state))

    def test_of_params_alone(self, saved: pathlib.Path) -> None:
        params = make_state(0).params | {"embedding": jnp.zeros((17, 8))}
        with pytest.raises(UserError, match=r"params/embedding to be float32\[17,8\], found float"):
            Checkpoints(saved).restore_params(params)
        with pytest.raises(UserError, match=r"params/more to be .* found none"):
            Checkpoints(saved).restore_params({"more": jnp.zeros(3)})


class TestKept:
    def test_are_the_newest_and_the_best(self, tmp_path: pathlib.Path) -> None:
        scores = [float("nan"), 1.0, 5.0, None, 5.0, 2.0, 3.0, 4.0]
        saved: dict[int, float] = {}
        state = {"params": jnp.zeros(2)}
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            for step, score in enumerate(scores):
                checkpoints.save(step, state, metadata={})
                checkpoints.wait()
                if score is not None:
                    checkpoints.attach_score(step, score)
                saved |= {} if score is None or score != score else {step: score}
                best = max(saved, key=lambda step: (saved[step], step), default=None)
                assert checkpoints.steps() == sorted({step - 1, step, best} - {-1, None})
                assert checkpoints.best_step() == best
                assert checkpoints.newest_steps() == [step - 1, step][-(step + 1) :]
        reopened = Checkpoints(tmp_path)
        assert (reopened.best_step(), reopened.steps()) == (4, [4, 6, 7])
        assert reopened.newest_steps() == [6, 7]

    def test_newest_steps_do_not_include_an_older_best_one(self, tmp_path: pathlib.Path) -> None:
        """A run that resumes with more to keep has lost all older steps but the best."""
        state = {"params": jnp.zeros(2)}
        for keep, steps in ((2, [(1, 5.0), (2, 1.0), (3, 1.0), (4, 1.0)]), (5, [(5, 1.0)])):
            with Checkpoints(tmp_path, keep=keep) as checkpoints:
                for step, score in steps:
                    checkpoints.save(step, state, metadata={})
                    checkpoints.attach_score(step, score)
        assert Checkpoints(tmp_path).steps() == [1, 3, 4, 5]
        assert Checkpoints(tmp_path).newest_steps() == [3, 4, 5]
        (tmp_path / "3" / "manifest.json").unlink()  # damage does not hide undamaged steps
        assert Checkpoints(tmp_path).newest_steps()[-2:] == [4, 5]

    def test_without_scores(self, tmp_path: pathlib.Path) -> None:
        with Checkpoints(tmp_path, keep=1) as checkpoints:
            for step in range(3):
                checkpoints.save(step, {"params": jnp.zeros(2)}, metadata={})
        assert checkpoints.steps() == [2]
        assert checkpoints.best_step() is None

    def test_write_single_replaces(self, directory: pathlib.Path) -> None:
        state = {"params": {"w": jnp.arange(3.0)}}
        for averaged in ([1, 2], [2]):
            write_single(directory, 2, state, {"averaged_steps": averaged})
            restored = Checkpoints(directory).restore_params(state["params"])
            assert Checkpoints(directory).steps() == [2]
            assert restored.metadata == {"averaged_steps": averaged}
            assert_same(restored.params, state["params"])
        assert [path.name for path in directory.parent.iterdir()] == [directory.name]


class TestScore:
    def test_is_attached_to_a_step_that_is_being_saved(self, tmp_path: pathlib.Path) -> None:
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            checkpoints.save(1, make_state(1), metadata={})
            assert not checkpoints.is_scored(1)
            checkpoints.attach_score(1, -2.5)
            assert checkpoints.steps() == [1]
            assert checkpoints.is_scored(1)
            checkpoints.save(2, make_state(2), metadata={})
            checkpoints.attach_score(2, float("nan"))  # scored, but never the best
            assert checkpoints.is_scored(2)
        assert Checkpoints(tmp_path).best_step() == 1

    def test_that_is_damaged_does_not_affect_its_step(self, directory: pathlib.Path) -> None:
        path = directory / "1" / "score.json"
        good, checkpoints = path.read_bytes(), Checkpoints(directory)
        assert checkpoints.best_step() == 1
        for position in range(len(good)):
            bad = bytearray(good)
            bad[position] ^= 1 << position % 8
            path.write_bytes(bad)
            assert not checkpoints.is_scored(1)
            assert checkpoints.best_step() == 2
        for content in (b"", good[:-1], b"[]", b"{}", b"null", b"[" * 10_000):
            path.write_bytes(content)
            assert checkpoints.best_step() == 2
        assert_same(checkpoints.restore(make_state(0), step=1).state, make_state(1))

    def test_of_an_earlier_version_is_in_the_manifest(self, directory: pathlib.Path) -> None:
        for step, score in ((1, -1.0), (2, -0.5)):
            folder = directory / str(step)
            manifest = Manifest.read(folder, verify=True)
            (folder / "score.json").unlink()
            (folder / "manifest.json").unlink()
            dataclasses.replace(manifest, score=score).write(folder)
        with Checkpoints(directory, keep=1) as checkpoints:
            assert checkpoints.is_scored(1)
            assert checkpoints.best_step() == 2
            checkpoints.save(3, make_state(3), metadata={})
            checkpoints.attach_score(3, -0.7)
            assert checkpoints.steps() == [2, 3]
            checkpoints.save(4, make_state(4), metadata={})
            checkpoints.attach_score(4, -0.4)
            assert checkpoints.steps() == [4]


def test_every_commit_is_announced_once_it_is_complete(directory: pathlib.Path) -> None:
    announced = []

    def announce(step: int) -> None:
        announced.append((step, Manifest.read(directory / str(step), verify=True).step))

    with Checkpoints(directory, keep=5, on_commit=announce) as checkpoints:
        for step in (3, 4):
            checkpoints.save(step, make_state(step), metadata={})
            checkpoints.check()
    assert announced == [(3, 3), (4, 4)]


class TestSingle:
    @pytest.mark.parametrize("name", ["averaged.old", "averaged.new", "averaged.backup"])
    def test_leaves_other_folders_alone(
        self, directory: pathlib.Path, saved: pathlib.Path, name: str
    ) -> None:
        """Even if they hold copies of our checkpoints."""
        averaged = directory.rename(directory.with_name("averaged"))
        mine = directory.with_name(name)
        shutil.copytree(saved, mine)
        (mine / "thesis.txt").write_text("years of work")
        write_single(averaged, 2, {"params": {"w": jnp.zeros(2)}}, {})
        assert Checkpoints(averaged).steps() == [2]
        assert (mine / "thesis.txt").read_text() == "years of work"
        assert Checkpoints(mine).steps() == [1, 2]

    @pytest.mark.parametrize("name", ["averaged", "averaged.unfinished"])
    @pytest.mark.parametrize("kind", ["folder", "steps of others", "file", "link"])
    def test_never_replaces_foreign_files(
        self, tmp_path: pathlib.Path, name: str, kind: str
    ) -> None:
        path = tmp_path / name
        if kind == "file":
            path.write_text("mine")
        elif kind == "link":  # its target may be on a disk that is not mounted
            path.symlink_to(tmp_path / "nowhere")
        else:
            inner = path / ("100" if kind == "steps of others" else "notes")
            inner.mkdir(parents=True)
            (inner / "weights.bin").write_text("mine")
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UserError, match="move it away"):
            write_single(tmp_path / "averaged", 1, {"params": {"w": jnp.zeros(2)}}, {})
        assert sorted(tmp_path.rglob("*")) == before

    @pytest.mark.parametrize("left", [["lock"], ["lock", "unfinished", "new/2/d"]])
    def test_clears_what_a_killed_process_left(
        self, tmp_path: pathlib.Path, left: list[str]
    ) -> None:
        for name in left:
            path = tmp_path / "averaged.unfinished" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        write_single(tmp_path / "averaged", 1, {"params": {"w": jnp.zeros(2)}}, {})
        assert [path.name for path in tmp_path.iterdir()] == ["averaged"]

    def test_does_not_disturb_another_process(self, tmp_path: pathlib.Path) -> None:
        work, state = tmp_path / "averaged.unfinished", {"params": {"w": jnp.zeros(2)}}
        with lock_folder(work):
            (work / "unfinished").touch()
            (work / "new").mkdir()
            with pytest.raises(UserError, match=r"averaged\.unfinished: another process is"):
                write_single(tmp_path / "averaged", 1, state, {})
            assert (work / "new").is_dir()
        write_single(tmp_path / "averaged", 1, state, {})
        assert Checkpoints(tmp_path / "averaged").steps() == [1]


def test_an_interim_step_is_kept_until_the_next(tmp_path: pathlib.Path) -> None:
    seen = []
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step, interim in [(1, True), (2, False), (3, False), (4, True), (5, True), (6, False)]:
            checkpoints.save(step, make_state(step), metadata={}, interim=interim)
            checkpoints.wait()
            seen.append(checkpoints.steps())
        assert_same(checkpoints.restore(make_state(0)).state, make_state(6))
    assert seen == [[1], [2], [2, 3], [2, 3, 4], [2, 3, 5], [3, 6]]


def test_a_damaged_step_is_kept_as_long_as_others(tmp_path: pathlib.Path) -> None:
    """Somebody may be able to repair it."""
    seen = []
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3, 4):
            checkpoints.save(step, make_state(step), metadata={})
            checkpoints.wait()
            seen.append(checkpoints.steps())
            if step == 2:
                (tmp_path / "2" / "manifest.json").write_text("{}")
    assert seen == [[1], [1, 2], [2, 3], [3, 4]]


class TestRefused:
    def test_steps_that_are_not_newer(self, directory: pathlib.Path) -> None:
        with Checkpoints(directory, keep=2) as checkpoints:
            for step in (1, 2, 0):
                message = f"expected a step after 2 to save: got {step}"
                with pytest.raises(ValueError, match=message):
                    checkpoints.save(step, make_state(0), metadata={})
        assert_same(Checkpoints(directory).restore(make_state(0)).state, make_state(2))

    def test_metadata_that_json_cannot_represent(self, tmp_path: pathlib.Path) -> None:
        with Checkpoints(tmp_path, keep=1) as checkpoints:
            with pytest.raises(TypeError, match="not JSON serializable"):
                checkpoints.save(1, {"params": jnp.zeros(1)}, metadata={"a": {1}})
            assert checkpoints.steps() == []

    def test_unknown_step(self, saved: pathlib.Path) -> None:
        with pytest.raises(UserError, match=r"expected one of the steps \[1, 2\]: got 7"):
            Checkpoints(saved).restore(make_state(0), step=7)

    def test_keeping_none(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(UserError, match="at least 1 checkpoint to keep: got 0"):
            Checkpoints(tmp_path, keep=0)

    def test_params_of_an_empty_folder(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(UserError, match="expected a checkpoint, found none; train first"):
            Checkpoints(tmp_path).restore_params({"w": jnp.zeros(1)})


def test_nothing_saved_yet(tmp_path: pathlib.Path) -> None:
    with Checkpoints(tmp_path / "new" / "folder", keep=1) as checkpoints:
        assert checkpoints.restore(make_state(0)) is None
        assert checkpoints.steps() == checkpoints.newest_steps() == []
    reader = Checkpoints(tmp_path / "absent")
    assert reader.restore(make_state(0)) is None
    assert not (tmp_path / "absent").exists()


def test_the_writer_removes_temporary_folders_and_the_reader_does_not(
    directory: pathlib.Path,
) -> None:
    left = directory / f"3{ocp.utils.TMP_DIR_SUFFIX}"
    shutil.copytree(directory / "2", left)
    reader = Checkpoints(directory)
    assert left.exists()
    assert reader.steps() == [1, 2]
    Checkpoints(directory, keep=2).close()
    assert sorted(path.name for path in directory.iterdir()) == ["1", "2"]


class TestFailure:
    @pytest.fixture
    def full_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def write(manifest: Manifest, folder: pathlib.Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Manifest, "write", write)

    @pytest.mark.usefixtures("full_disk")
    def test_is_raised_by_check(
        self, directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def step_until_raised() -> None:
            for _ in range(1000):
                checkpoints.check()
                time.sleep(0.01)

        with Checkpoints(directory, keep=1) as checkpoints:
            checkpoints.save(3, make_state(3), metadata={})
            with pytest.raises(OSError, match=r"step 3 could not be saved; the steps \[1, 2\] are"):
                step_until_raised()
            # Old steps are removed only after a commit, and no incomplete step remains.
            assert sorted(path.name for path in directory.iterdir()) == ["1", "2"]
            checkpoints.check()
            monkeypatch.undo()
            checkpoints.save(3, make_state(3), metadata={})
        assert Checkpoints(directory).steps() == [1, 3]

    @pytest.mark.usefixtures("full_disk")
    @pytest.mark.parametrize("method", [Checkpoints.wait, Checkpoints.close])
    def test_is_raised_by_wait_and_close(
        self, directory: pathlib.Path, method: Callable[[Checkpoints], None]
    ) -> None:
        checkpoints = Checkpoints(directory, keep=1)
        checkpoints.save(3, make_state(3), metadata={})
        with pytest.raises(OSError, match="No space left on device"):
            method(checkpoints)

    @pytest.mark.usefixtures("full_disk")
    def test_leaves_nothing_of_a_single_checkpoint(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(OSError, match="No space left on device"):
            write_single(tmp_path / "averaged", 1, make_state(1), {})
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["lr[1e-3]", "a*", "b?", "back\\slash"])
def test_paths_that_orbax_takes_for_patterns_are_refused(
    tmp_path: pathlib.Path, name: str, saved: pathlib.Path
) -> None:
    with pytest.raises(UserError, match="expected a path without the characters"):
        Checkpoints(tmp_path / name, keep=1)
    assert not (tmp_path / name).exists()
    shutil.copytree(saved, tmp_path / name)
    assert Checkpoints(tmp_path / name).newest_good_step() == 2


def test_a_step_without_all_files_of_orbax_is_not_committed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in such a path."""
    monkeypatch.setattr(checkpoints_module, "check_directory", lambda _: None)
    with (
        pytest.raises(OSError, match=r"step 1 could not be saved.* not written manifest\.ocdbt"),
        Checkpoints(tmp_path / "a[1]", keep=1) as checkpoints,
    ):
        checkpoints.save(1, make_state(1), metadata={})
    assert not list((tmp_path / "a[1]").iterdir())


def test_other_spellings_of_numbers_are_not_steps(directory: pathlib.Path) -> None:
    shutil.copytree(directory / "2", directory / "003")
    assert Checkpoints(directory).steps() == [1, 2]
    assert Checkpoints(directory).newest_good_step() == 2


def test_the_newest_good_step(directory: pathlib.Path) -> None:
    assert Checkpoints(directory).newest_good_step() == 2
    (directory / "2" / "manifest.json").unlink()
    assert Checkpoints(directory).newest_good_step() == 1


def test_the_manifest_is_there_before_the_step(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    write = Manifest.write

    def spy(manifest: Manifest, folder: pathlib.Path) -> None:
        seen.append([path.name for path in tmp_path.iterdir()])
        write(manifest, folder)
        # The manifest must list all files of the complete step, except two with timestamps.
        seen.append({path.relative_to(folder) for path in payload(folder)})

    monkeypatch.setattr(Manifest, "write", spy)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, make_state(1), metadata={})
    assert seen[0] == [f"1{ocp.utils.TMP_DIR_SUFFIX}"]
    assert seen[1] == {path.relative_to(tmp_path / "1") for path in payload(tmp_path / "1")}


def test_warnings_go_to_the_logger(
    directory: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (directory / "2" / "manifest.json").unlink()
    Checkpoints(directory).restore(make_state(0))
    assert ("jaxformer", logging.WARNING) in [
        (record.name, record.levelno) for record in caplog.records
    ]


def reseal(folder: pathlib.Path, edit: Callable[[dict], object]) -> None:
    """Edits a manifest and writes its hash again, as whoever made it can."""
    content = json.loads((folder / "manifest.json").read_bytes())["content"]
    edit(content)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"sha256": digest, "content": content}))


def reseal_files(step: pathlib.Path) -> None:
    """Writes the hashes of the files of a step into its manifest."""
    others = {"manifest.json", "score.json", "_CHECKPOINT_METADATA", "commit_success.txt"}
    names = [path.relative_to(step).as_posix() for path in step.rglob("*") if path.is_file()]
    files = {
        name: hashlib.sha256((step / name).read_bytes()).hexdigest()
        for name in names
        if name not in others
    }
    reseal(step, lambda content: content.update(files=files))


class TestHostileStep:
    """A step whose author wrote the right hash of whatever it holds."""

    @pytest.mark.parametrize(
        "edit",
        [
            lambda content: content.update(files={}),
            lambda content: content["files"].pop("_METADATA"),
            lambda content: content["files"].update({"../1/_METADATA": "0"}),
            lambda content: content["files"].update({"_METADATA": 0}),
            lambda content: content.update(files=[]),
            lambda content: content["step"].update(metadata=[]),
            lambda content: content["step"].update(leaves={"step": 1}),
            lambda content: content["step"].update(leaves=[]),
            lambda content: content["step"].update(keep="1"),
            lambda content: content["step"].update(interim=1),
            lambda content: content["step"].update(score="best"),
            lambda content: content["step"].update(step=2.0),
            lambda content: content["step"].update(step=True),
            lambda content: content["step"].update(unknown=1),
            lambda content: content.update(step=[]),
        ],
    )
    def test_falls_back(self, directory: pathlib.Path, edit: Callable) -> None:
        reseal(directory / "2", edit)
        checkpoints = Checkpoints(directory)
        assert checkpoints.restore(make_state(0)).step == 1
        assert checkpoints.newest_good_step() == 1

    @pytest.mark.parametrize("name", ["extra", "d/extra", "ocdbt.process_7/manifest.ocdbt"])
    def test_unlisted_file_is_noticed(self, directory: pathlib.Path, name: str) -> None:
        (directory / "2" / name).parent.mkdir(exist_ok=True)
        (directory / "2" / name).write_bytes(b"x")
        assert Checkpoints(directory).restore(make_state(0)).step == 1

    @pytest.mark.parametrize("name", [".nfs0001", ".DS_Store", "score.json.77.partial"])
    def test_files_that_nobody_reads_are_ignored(self, directory: pathlib.Path, name: str) -> None:
        (directory / "2" / name).write_bytes(b"x")
        assert Checkpoints(directory).restore(make_state(0)).step == 2

    @pytest.mark.parametrize("name", [".nfs0001", "d/.DS_Store"])
    def test_hidden_files_may_come_and_go(
        self, directory: pathlib.Path, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While a step is saved, and while it is read."""
        write, restore = Manifest.write, Checkpoints._restore
        path = directory / "3" / name

        def create_and_write(manifest: Manifest, folder: pathlib.Path) -> None:
            (folder / name).write_bytes(b"x")
            write(manifest, folder)

        def remove_and_restore(*arguments: Any) -> Any:
            path.unlink()
            (path.parent / ".nfs0002").write_bytes(b"y")
            return restore(*arguments)

        monkeypatch.setattr(Manifest, "write", create_and_write)
        monkeypatch.setattr(Checkpoints, "_restore", remove_and_restore)
        with Checkpoints(directory, keep=2) as checkpoints:
            checkpoints.save(3, make_state(3), metadata={})
            checkpoints.wait()
            assert path.exists()
            assert_same(checkpoints.restore(make_state(0)).state, make_state(3))

    @pytest.mark.parametrize("kind", ["link", "link to a folder", "FIFO", "loop"])
    @pytest.mark.parametrize("name", ["manifest.json", "_METADATA", "d", "_CHECKPOINT_METADATA"])
    def test_only_regular_files_count(self, directory: pathlib.Path, name: str, kind: str) -> None:
        path = directory / "2" / name
        kept = path.rename(directory.parent / "kept")
        if kind == "FIFO":
            os.mkfifo(path)
        else:
            path.symlink_to({"link": kept, "loop": path}.get(kind, directory.parent))
        assert Checkpoints(directory).restore(make_state(0)).step == 1

    def test_step_that_is_a_link_is_not_used(self, directory: pathlib.Path) -> None:
        (directory / "2").rename(directory.parent / "2")
        (directory / "2").symlink_to(directory.parent / "2")
        assert Checkpoints(directory).restore(make_state(0)).step == 1

    def test_score_of_another_type_is_none(self, directory: pathlib.Path) -> None:
        content = {"score": "1e9"}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        path = directory / "1" / "score.json"
        path.write_text(json.dumps({"sha256": digest, "content": content}))
        assert Checkpoints(directory).best_step() == 2

    @pytest.mark.parametrize(
        "change",
        [
            {"chunks": [10**9, 10**9]},
            {"dtype": "|S1000000000"},
            {"dtype": [["a", "<f4", [10**9]]]},
            {"chunks": "x"},
        ],
    )
    def test_huge_chunks_are_not_read(self, directory: pathlib.Path, change: dict) -> None:
        step = directory / "2"
        database = {"driver": "ocdbt", "base": step.as_uri() + "/"}
        store = tensorstore.KvStore.open(database).result()
        key = "params.embedding/.zarray"
        values = json.loads(store.read(key).result().value)
        store.write(key, json.dumps(values | change).encode()).result()
        reseal_files(step)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(UserError, match=r"2: .*(chunks within|metadata of)"):
            Checkpoints(directory).restore_params(make_state(0).params)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB

    @pytest.mark.parametrize("change", [{"use_zarr3": True}, {"use_ocdbt": False}])
    def test_other_formats_are_not_read(self, directory: pathlib.Path, change: dict) -> None:
        """The sizes of their chunks are not checked."""
        path = directory / "2" / "_METADATA"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
        reseal_files(directory / "2")
        with pytest.raises(UserError, match="_METADATA: expected arrays in the formats OCDBT and"):
            Checkpoints(directory).restore_params(make_state(0).params)

    def test_arrays_are_no_larger_than_their_files_allow(self, directory: pathlib.Path) -> None:
        """The manifest and the config agree on a terabyte, but there are only kilobytes."""

        def grow(content: dict) -> None:
            content["step"]["leaves"]["params/embedding"] = "float32[1000000,250000]"

        reseal(directory / "2", grow)
        params = make_state(0).params
        template = {**params, "embedding": jax.ShapeDtypeStruct((1_000_000, 250_000), jnp.float32)}
        with pytest.raises(UserError, match="expected files for arrays of 1,000,000,000,"):
            Checkpoints(directory).restore_params(template)
