"""Random damage to a folder of checkpoints: wrong values are never restored."""

import contextlib
import logging
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.runs.checkpoints import Checkpoints

from ...profiles import by_profile

STEPS = (1, 2, 3)
KINDS = [
    "flip",
    "zeros",
    "truncate",
    "delete",
    "swap",
    "mix",
    "rename step",
    "other JSON",
    "add",
]
JSON = ["null", "3", "[]", "{}", "[" * 10_000, "NaN"]


def state_of(step):
    normal = np.random.default_rng(step).normal(size=(16, 8))
    values = normal.astype(np.float32)
    return {
        "params": {"w": values, "b": values[0].astype(jnp.bfloat16)},
        "n": np.int32(step),
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    with Checkpoints(directory, keep=3) as checkpoints:
        for step in STEPS:
            checkpoints.save(step, state_of(step), metadata={"step": step})
            checkpoints.attach_score(step, -step)
    return directory


def mutate(kind, directory, rng):
    """Makes a change, as a disk, an editor or a partial copy of a backup does."""
    paths = sorted(directory.rglob("*"))
    files = [path for path in paths if path.is_file()]
    steps = [path for path in paths if path.parent == directory]
    path, other = rng.sample(files, 2)
    step, target = rng.sample(steps, 2)
    content = path.read_bytes()
    at = rng.randrange(len(content))

    match kind:
        case "flip":
            flipped = bytearray(content)
            flipped[at] ^= 1 << rng.randrange(8)
            path.write_bytes(flipped)
        case "zeros":
            zeros = bytes(len(content) - at)
            path.write_bytes(content[:at] + zeros)
        case "truncate":
            path.write_bytes(content[:at])
        case "delete":
            path.unlink()
        case "swap":
            path.write_bytes(other.read_bytes())
            other.write_bytes(content)
        case "mix":  # a file of another step
            source = rng.choice([file for file in files if step in file.parents])
            shutil.copy(source, target / source.relative_to(step))
        case "rename step":
            between = directory / "between"
            step.rename(between)
            target.rename(step)
            last = rng.choice([target, directory / "4", directory / "0"])
            between.rename(last)
        case "other JSON":
            path.write_text(rng.choice(JSON))
        case "add":
            name = rng.choice(["x", "7", ".hidden", "2.damaged"])
            (path.parent / name).mkdir()


def check_values(state, step):
    """Checks that these are exactly the values that were saved at that step."""
    leaves = jax.tree.leaves(state)
    saved = jax.tree.leaves(state_of(step))
    for found, expected in zip(leaves, saved, strict=True):
        assert found.dtype == expected.dtype
        assert np.asarray(found).tobytes() == expected.tobytes()


def check_every_step(reader):
    """Asks for all steps by their numbers: each is as it was saved, or refused."""
    for ask in (reader.newest_steps, reader.best_step, reader.newest_good_step):
        with contextlib.suppress(UserError):
            ask()

    for step in reader.steps():
        with contextlib.suppress(UserError):
            restored = reader.restore(state_of(0), step=step)
            assert restored.step == step
            assert restored.metadata["step"] == step
            check_values(restored.state, step)


def restored_params(reader, log):
    """Returns the step that is restored when none is asked for, or None after an error."""
    log.clear()
    try:
        found = reader.restore_params(state_of(0)["params"])
    except UserError:
        return None

    check_values({"params": found.params, "n": np.int32(found.step)}, found.step)
    is_newest = found.step == reader.steps()[-1]
    assert is_newest == ("going back to step" not in log.text)
    return found.step


def check(directory, log):
    """Restores in every way, and returns what the default way did."""
    reader = Checkpoints(directory)
    check_every_step(reader)
    step = restored_params(reader, log)

    with Checkpoints(directory, keep=3) as writer:
        if step is None:
            if writer.steps():
                with pytest.raises(UserError, match="expected a good checkpoint, found none"):
                    writer.restore(state_of(0))
            return "error"

        restored = writer.restore(state_of(0))
        assert restored.step == step
        check_values(restored.state, step)

        # The next step is saved and restored.
        writer.save(step + 1, state_of(step + 1), metadata={})
        writer.wait()
        check_values(writer.restore(state_of(0)).state, step + 1)

    return "newest" if step == STEPS[-1] else "older"


def test_damage_never_restores_wrong_values(saved, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    outcomes = {"newest": 0, "older": 0, "error": 0}

    for case in by_profile(range(20), nightly=range(300)):
        rng = random.Random(case)
        directory = shutil.copytree(saved, tmp_path / str(case))

        kinds = [KINDS[case % len(KINDS)]]
        kinds += rng.choices(KINDS, k=rng.choice([0, 0, 4]))
        for kind in kinds:
            # Not every change is possible after others: no files are left, or a name is taken.
            with contextlib.suppress(OSError, IndexError, ValueError):
                mutate(kind, directory, rng)
        print(case, kinds)

        outcomes[check(directory, caplog)] += 1
        shutil.rmtree(directory)

    assert min(outcomes.values()) > 0, outcomes
