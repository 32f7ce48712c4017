"""Models whose layers compute in float16 or float8: on meshes, in runs, and after training."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxformer import Translator, UserError, load_config, train

from ..profiles import by_profile
from ..runs import Killed
from .test_step import changed, one_step, relative_distance

# The largest relative differences of gradients from float32.
ROUNDING = {"float16": 2**-6, "float8": 2**-2}
MESHES = [(2, 2, 1), (1, 2, 2), (4, 1, 2)]


@pytest.mark.parametrize("dtype", ROUNDING)
def test_gradients_are_near_float32_and_equal_on_meshes(dtype):
    exact = one_step(changed(compute_dtype="float32"))
    config = changed(compute_dtype=dtype)
    alone = one_step(config)
    assert (
        ROUNDING[dtype] / 16 < relative_distance(alone.gradients, exact.gradients) < ROUNDING[dtype]
    )

    for sizes in by_profile(MESHES[:1], nightly=MESHES):
        split = one_step(config, sizes=sizes, gradient_accumulation=2)
        assert relative_distance(split.gradients, alone.gradients) < 1e-4


def test_a_model_in_float8_is_used_in_bfloat16():
    """The scales of float8 depend on a whole batch; a translation must not."""
    with pytest.raises(UserError, match=r"^compute_dtype=float8 is for training only: expected f"):
        Translator.load(compute_dtype="float8")

    whole = Translator.load()
    model = dataclasses.replace(whole.config.model, compute_dtype="float8")
    config = dataclasses.replace(whole.config, model=model)
    used = Translator(config, whole.params, whole.tokenizer)
    assert used.config.model.compute_dtype == "bfloat16"


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ROUNDING)
def test_runs_resume_exactly_and_decode(dtype, tmp_path):
    config = load_config("numerals:smoke", [f"--config.model.compute_dtype={dtype}"])

    def kill(step, state, sums):
        if step == 3:
            raise Killed

    whole = train(config, tmp_path / "whole")
    assert (whole.loss_scale is not None) == (dtype == "float16")
    with pytest.raises(Killed):
        train(config, tmp_path / "cut", hooks=[kill])
    resumed = train(config, tmp_path / "cut")
    jax.tree.map(np.testing.assert_array_equal, *jax.device_get((resumed, whole)))

    manifest = tmp_path / "whole" / "checkpoints" / "4" / "manifest.json"
    step = json.loads(manifest.read_text())["content"]["step"]
    assert ("loss_scale" in step["metadata"]) == (dtype == "float16")
    assert not any("loss_scale" in name for name in step["leaves"])

    translator = Translator.load(tmp_path / "whole")
    assert len(translator.translate(["two hundred and seven"])) == 1
