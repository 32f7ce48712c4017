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
KINDS = [
    *("flip", "zeros", "truncate", "extend", "delete", "delete folder", "swap", "mix", "rename"),
    *("rename step", "wrong type", "other JSON", "add file", "add folder", "replace by folder"),
]
VALUES = [None, -1, 1e99, "3", [], {}, True, [[0]], {"a": "b"}]
JSON = ["null", "3", "[]", "{}", '""', "[" * 10_000, "NaN", "1e999"]


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
    folder = rng.choice([path for path in paths if path.is_dir()])
    step, target = rng.sample([path for path in paths if path.parent == directory], 2)
    content = path.read_bytes()
    at = rng.randrange(len(content) + 1)
    match kind:
        case "flip":
            flipped = bytes([content[at] ^ 1 << rng.randrange(8)])
            path.write_bytes(content[:at] + flipped + content[at + 1 :])
        case "zeros":
            path.write_bytes(content[:at] + bytes(len(content) - at))
        case "truncate":
            path.write_bytes(content[:at])
        case "extend":
            path.write_bytes(content + rng.randbytes(rng.randrange(1, 100)))
        case "delete":
            path.unlink()
        case "delete folder":
            shutil.rmtree(folder)
        case "swap":
            path.write_bytes(other.read_bytes())
            other.write_bytes(content)
        case "mix":  # a file or a folder of another step
            source = rng.choice([path for path in paths if step in path.parents] or [step])
            copy = shutil.copytree if source.is_dir() else shutil.copy
            shutil.rmtree(target / source.relative_to(step), ignore_errors=True)
            copy(source, target / source.relative_to(step))
        case "rename":
            names = ["manifest.json", "_METADATA", "d", "a", path.name[1:]]
            path.rename(path.with_name(rng.choice(names)))
        case "rename step":
            step.rename(directory / "between")
            target.rename(step)
            (directory / "between").rename(rng.choice([target, directory / "4", directory / "0"]))
        case "wrong type":
            path = rng.choice([path for path in paths if path.suffix == ".json"])
            values = parent = json.loads(path.read_bytes())
            while isinstance(parent, dict) and parent:
                name = rng.choice(sorted(parent))
                if not isinstance(parent[name], dict) or rng.random() < 0.3:
                    parent[name] = rng.choice(VALUES)
                    break
                parent = parent[name]
            path.write_text(json.dumps(values))
        case "other JSON":
            path.write_text(rng.choice(JSON))
        case "add file":
            (folder / rng.choice(["x", "7", ".hidden", "2.damaged"])).write_bytes(b"x")
        case "add folder":
            (folder / rng.choice(["x", "7", ".hidden", "1.orbax-checkpoint-tmp"])).mkdir()
        case "replace by folder":
            path.unlink()
            path.mkdir()
        case _:
            raise AssertionError(kind)


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
        kinds = [KINDS[case % len(KINDS)], *rng.choices(KINDS, k=rng.choice([0, 0, 4]))]
        for kind in kinds:
            # Not every change is possible after others: no files are left, or a name is taken.
            with contextlib.suppress(OSError, IndexError, ValueError):
                mutate(kind, directory, rng)
        try:
            outcomes[check(directory, caplog)] += 1
        except BaseException as error:
            error.add_note(f"case {case}: {kinds}")
            raise
        shutil.rmtree(directory)
    print(outcomes)
    assert min(outcomes.values()) > 0, outcomes
