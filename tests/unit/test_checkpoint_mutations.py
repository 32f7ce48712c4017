"""Random damage to a folder of checkpoints: wrong values are never restored."""

import contextlib
import json
import logging
import random
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import UserError

from ..profiles import by_profile

STEPS = (1, 2, 3)


def state_of(step):
    values = np.random.default_rng(step).normal(size=(16, 8)).astype(np.float32)
    return {"params": {"w": values, "b": values[0].astype(jnp.bfloat16)}, "n": np.int32(step)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    with Checkpoints(directory, keep=3) as checkpoints:
        for step in STEPS:
            checkpoints.save(step, state_of(step), metadata={"step": step})
            checkpoints.attach_score(step, -step)
    return directory


def files_of(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


def steps_of(directory):
    return sorted(path for path in directory.iterdir() if path.is_dir())


def flip(directory, rng):
    path = rng.choice(files_of(directory))
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def truncate(directory, rng):
    """Cuts a file off, or ends it with zeros."""
    path = rng.choice(files_of(directory))
    content = path.read_bytes()
    start = rng.randrange(len(content) + 1)
    path.write_bytes(content[:start] + rng.choice([b"", bytes(len(content) - start)]))


def extend(directory, rng):
    with rng.choice(files_of(directory)).open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 100)))


def delete(directory, rng):
    rng.choice(files_of(directory)).unlink()


def delete_folder(directory, rng):
    """Deletes a folder within a step, or all files of a step."""
    folder = rng.choice([path for path in directory.rglob("*") if path.is_dir()])
    shutil.rmtree(folder)
    if folder.parent == directory:
        folder.mkdir()


def swap(directory, rng):
    one, other = rng.sample(files_of(directory), 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def mix(directory, rng):
    """Replaces a file or folder by one of another step, as a partial copy of a backup does."""
    one, other = rng.sample(steps_of(directory), 2)
    source = rng.choice([path for path in one.rglob("*") if path.exists()] or [one])
    target = other / source.relative_to(one)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def rename(directory, rng):
    path = rng.choice(files_of(directory))
    path.rename(path.with_name(rng.choice(["manifest.json", "_METADATA", "d", "a", path.name[1:]])))


def rename_step(directory, rng):
    path = rng.choice(steps_of(directory))
    target = directory / str(rng.choice([0, 1, 2, 3, 4, 10**6]))
    if target.exists() and target != path:
        target.rename(directory / "between")
        path.rename(target)
        (directory / "between").rename(path)
    else:
        path.rename(target)


def wrong_type(directory, rng):
    """Replaces a value somewhere in a JSON file by a value of another type."""
    paths = [path for path in files_of(directory) if path.suffix == ".json"]
    if not paths:
        return
    path = rng.choice(paths)
    try:
        values = parent = json.loads(path.read_bytes())
    except ValueError:
        return
    while isinstance(parent, dict) and parent:
        name = rng.choice(sorted(parent))
        if not isinstance(parent[name], dict) or rng.random() < 0.3:
            parent[name] = rng.choice([None, -1, 1e99, "3", [], {}, True, [[0]], {"a": "b"}])
            break
        parent = parent[name]
    path.write_text(json.dumps(values))


def other_json(directory, rng):
    """Replaces a whole JSON file by other JSON."""
    path = rng.choice(files_of(directory))
    path.write_text(rng.choice(["null", "3", "[]", "{}", '""', "[" * 10_000, "NaN", "1e999"]))


def add(directory, rng):
    folder = rng.choice([path for path in directory.rglob("*") if path.is_dir()])
    path = folder / rng.choice(["x", "7", ".hidden", "1.orbax-checkpoint-tmp", "2.damaged"])
    if rng.random() < 0.5:
        path.mkdir(exist_ok=True)
    elif not path.is_dir():
        path.write_bytes(b"x")


def replace_by_folder(directory, rng):
    path = rng.choice(files_of(directory))
    path.unlink()
    path.mkdir()


MUTATIONS = [
    *(flip, truncate, extend, delete, delete_folder, swap, mix, rename, rename_step),
    *(wrong_type, other_json, add, replace_by_folder),
]


def same(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    return found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


def check_values(state, step):
    """Checks that these are exactly the values that were saved at that step."""
    expected = state_of(step)
    assert same(state["n"], expected["n"])
    for name, values in expected["params"].items():
        assert same(state["params"][name], values)


def check(directory, log):
    """Restores in every way, and returns what the default way did."""
    template, outcome = state_of(0), "error"
    reader = Checkpoints(directory)
    for call in (reader.newest_steps, reader.best_step, reader.newest_good_step):
        with contextlib.suppress(UserError):
            call()
    for step in reader.steps():
        with contextlib.suppress(UserError):
            restored = reader.restore(template, step=step)
            assert restored.step == restored.metadata["step"] == step
            check_values(restored.state, step)
    log.clear()
    with contextlib.suppress(UserError):
        params = reader.restore_params(template["params"])
        check_values({"params": params.params, "n": np.int32(params.step)}, params.step)
        assert (params.step == reader.steps()[-1]) == ("going back to step" not in log.text)
        outcome = "newest" if params.step == STEPS[-1] else "older"
    with Checkpoints(directory, keep=3) as writer:
        if outcome == "error":
            if writer.steps():
                with pytest.raises(UserError, match="expected a good checkpoint, found none"):
                    writer.restore(template)
            return outcome
        restored = writer.restore(template)
        assert restored.step == params.step
        check_values(restored.state, restored.step)
        writer.save(restored.step + 1, state_of(restored.step + 1), metadata={})
        writer.wait()
        check_values(writer.restore(template).state, restored.step + 1)
    return outcome


def test_damage_never_restores_wrong_values(saved, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    outcomes = {"newest": 0, "older": 0, "error": 0}
    for case in by_profile(range(20), nightly=range(1000)):
        rng, directory = random.Random(case), tmp_path / str(case)
        shutil.copytree(saved, directory)
        more = rng.choices(MUTATIONS, k=rng.choice([0, 0, 4]))
        chosen = [MUTATIONS[case % len(MUTATIONS)], *more]
        for mutate in chosen:
            # Not every change is possible after others: no files are left, or a name is taken.
            with contextlib.suppress(OSError, IndexError):
                mutate(directory, rng)
        try:
            outcomes[check(directory, caplog)] += 1
        except BaseException as error:
            error.add_note(f"case {case}: {[mutate.__name__ for mutate in chosen]}")
            raise
        shutil.rmtree(directory)
    print(outcomes)
    assert min(outcomes.values()) > 0, outcomes
