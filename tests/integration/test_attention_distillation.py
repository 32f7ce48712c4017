"""Runs with a teacher of attention: resumed, on other devices, and refused with another teacher."""

import json
import shutil

import jax
import pytest

from jaxformer import UserError, train
from jaxformer.experiment import make_optimizer
from jaxformer.kinds.model_parameters import make_init
from jaxformer.memory import step_memory
from jaxformer.training.mesh import make_mesh
from jaxformer.training.train_state import abstract_state

from ..runs import changed, reports
from .equal_runs import check_other_mesh, check_resumed


@pytest.fixture
def config_of(tiny_config):
    """Returns a function of a teacher to the config of a narrower student."""

    def config_of(teacher):
        config = tiny_config(
            teacher=None if teacher is None else str(teacher),
            log_every=1,
            steps=3,
            warmup_steps=1,
            checkpoint_every=1,
            eval_every=3,
            eval_sentences=0,
        )
        data = {} if teacher is None else {"tokenizer": str(teacher)}
        return changed(config, data=data, model={"d_model": 8, "d_ff": 8, "dropout_rate": 0.3})

    return config_of


def test_a_run_with_a_teacher_resumes_and_does_not_depend_on_devices(
    config_of, tiny_workdir, tmp_path
):
    teacher = shutil.copytree(tiny_workdir, tmp_path / "teacher")
    config = config_of(teacher)
    whole = tmp_path / "whole"
    state = train(config, whole)

    check_resumed(config, whole, tmp_path, cut=2)
    found, expected = check_other_mesh(config, whole, tmp_path)
    assert found["attention"] == pytest.approx(expected["attention"], rel=1e-4)
    assert expected["attention"] > 0.01

    # Neither the optimizer nor a checkpoint has the teacher's parameters.
    alone = changed(config_of(None), data={"tokenizer": str(teacher)})
    init = make_init(alone.model, alone.kind)
    without = abstract_state(init, make_optimizer(alone), make_mesh(alone.mesh))
    assert jax.tree.structure(state) == jax.tree.structure(without)

    # The validation loss is the plain one: it has no maps.
    [validation] = [each for each in reports(whole, "valid")]
    assert "attention" not in validation
    assert json.loads((whole / "identity.json").read_text()).keys() >= {"teacher", "tokenizer"}
    assert step_memory(config).state > step_memory(alone).state

    # The teacher may be in another folder, but it may not be another one.
    checkpoints = tmp_path / "teacher" / "checkpoints"
    newest = max(checkpoints.iterdir(), key=lambda path: int(path.name))
    shutil.rmtree(newest)
    moved = teacher.rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"began with other data: teacher was \w{64}, now \w{64}"):
        train(changed(config, training={"steps": 4, "teacher": str(moved)}), whole)


def test_a_teacher_with_another_tokenizer_is_refused(config_of, learned_workdir, tmp_path):
    config = config_of(learned_workdir)
    config = changed(config, data={"tokenizer": None}, model={"num_heads": 4, "num_layers": 1})
    with pytest.raises(UserError, match="with the tokenizer of this run, got another; give --conf"):
        train(config, tmp_path / "run")
