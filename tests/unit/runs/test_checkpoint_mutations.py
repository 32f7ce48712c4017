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
KINDS = ["flip", "zeros", "truncate", "delete", "swap", "mix", "rename step", "other JSON", "add"]
JSON = ["null", "3", "[]", "{}", "[" * 10_000, "NaN"]


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


def mutate(kind, directory, rng):
    """Makes a change, as a disk, an editor or a partial copy of a backup does."""
    paths = sorted(directory.rglob("*"))
    path, other = rng.sample([path for path in paths if path.is_file()], 2)
    step, target = rng.sample([path for path in paths if path.parent == directory], 2)
    content = path.read_bytes()
    at = rng.randrange(len(content))
    match kind:
        case "flip":
            flipped = bytes([content[at] ^ 1 << rng.randrange(8)])
            path.write_bytes(content[:at] + flipped + content[at + 1 :])
        case "zeros":
            path.write_bytes(content[:at] + bytes(len(content) - at))
        case "truncate":
            path.write_bytes(content[:at])
        case "delete":
            path.unlink()
        case "swap":
            path.write_bytes(other.read_bytes())
            other.write_bytes(content)
        case "mix":  # a file of another step
            source = rng.choice([path for path in paths if path.is_file() and step in path.parents])
            shutil.copy(source, target / source.relative_to(step))
        case "rename step":
            step.rename(directory / "between")
            target.rename(step)
            (directory / "between").rename(rng.choice([target, directory / "4", directory / "0"]))
        case "other JSON":
            path.write_text(rng.choice(JSON))
        case "add":
            (path.parent / rng.choice(["x", "7", ".hidden", "2.damaged"])).mkdir()


def check_values(state, step):
    """Checks that these are exactly the values that were saved at that step."""
    for found, expected in zip(*map(jax.tree.leaves, (state, state_of(step))), strict=True):
        assert (found.dtype, np.asarray(found).tobytes()) == (expected.dtype, expected.tobytes())


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
    for case in by_profile(range(20), nightly=range(300)):
        rng, directory = random.Random(case), tmp_path / str(case)
        shutil.copytree(saved, directory)
        kinds = [KINDS[case % len(KINDS)], *rng.choices(KINDS, k=rng.choice([0, 0, 4]))]
        for kind in kinds:
            # Not every change is possible after others: no files are left, or a name is taken.
            with contextlib.suppress(OSError, IndexError, ValueError):
                mutate(kind, directory, rng)
        print(case, kinds)
        outcomes[check(directory, caplog)] += 1
        shutil.rmtree(directory)
    assert min(outcomes.values()) > 0, outcomes
