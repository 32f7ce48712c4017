"""The distance between attention maps equals its formula, and teachers that do not fit are refused.

The maps are those that a call of each model records.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import (
    Config,
    DataConfig,
    ModelConfig,
    StudentConfig,
    TrainingConfig,
    save_config,
)
from jaxformer.data.batch import make_batch
from jaxformer.errors import UserError
from jaxformer.kinds.model_parameters import make_init
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.tasks.attention_distillation import AttentionLoss, check_teacher, map_distance
from jaxformer.tasks.language_modeling import NextTokenLoss
from jaxformer.tasks.translation import TranslationLoss
from jaxformer.training.task import Randomness

TEACHER = ModelConfig(vocab_size=11, d_model=8, d_ff=8, num_heads=2, num_layers=2, max_length=8)
MODEL = dataclasses.replace(TEACHER, d_model=4, num_layers=1, dropout_rate=0.3)
STUDENT = StudentConfig(
    vocab_size=11,
    d_model=4,
    d_ff=4,
    num_heads=2,
    num_layers=1,
    num_decoder_layers=1,
)
# The first row has two pairs, and both rows have padding.
FIRST = [([5, 6], [7, 8, 9]), ([4], [3])]
SECOND = [([8, 9, 4], [10])]
BATCH = make_batch([FIRST, SECOND], (2, 6, 7))
SUBLAYERS = [
    ("encoder", "self_attention"),
    ("decoder", "self_attention"),
    ("decoder", "cross_attention"),
]


def distance(own, theirs, weights):
    """Returns the formula for layers that learn the last ones of equal groups."""
    group = len(theirs) // len(own)
    total = 0.0
    for layer, maps in enumerate(own):
        target = theirs[(layer + 1) * group - 1]
        for row, head, query in np.ndindex(*maps.shape[:3]):
            p = target[row, head, query]
            q = maps[row, head, query]
            seen = p > 0
            divergence = (p[seen] * np.log(p[seen] / q[seen])).sum()
            total += weights[row, query] * divergence
    return total / (len(own) * own.shape[2])


def test_the_distance_is_the_divergence_of_the_last_layers_of_equal_groups():
    rng = np.random.default_rng(0)
    own = rng.dirichlet(np.ones(5), (2, 3, 2, 4)).astype(np.float32)
    theirs = rng.dirichlet(np.ones(5), (6, 3, 2, 4)).astype(np.float32)
    theirs[..., 2] = 0.0  # a key that the teacher cannot see
    weights = rng.uniform(size=(3, 4)).astype(np.float32)

    found = jax.jit(map_distance)(own, theirs, weights)
    assert float(found) == pytest.approx(distance(own, theirs, weights), rel=1e-5)


def recorded_maps(model, params, randomness=None):
    """Returns the maps that a model records of the batch, by sub-layer."""

    @jax.jit
    def record(params):
        seen = []
        TranslationLoss(model, 0.1, observe=seen.append)(params, BATCH, randomness)
        return seen[0]["intermediates"]

    intermediates = jax.device_get(record(params))
    maps = {}
    for stack, sublayer in SUBLAYERS:
        [found] = intermediates[stack]["layers"][sublayer]["weights"]
        maps[stack, sublayer] = found
    return maps


@pytest.mark.parametrize(
    ("model", "sublayers"),
    [(MODEL, SUBLAYERS), (STUDENT, [SUBLAYERS[0], SUBLAYERS[2]])],
    ids=["transformer", "recurrent decoder"],
)
def test_the_loss_adds_the_distance_and_its_gradient_does_not_reach_the_teacher(model, sublayers):
    """A recurrent decoder has no maps to compare. Dropout is the student's only."""
    params = jax.jit(make_init(model, TRANSLATION))(jax.random.key(0))
    teacher = jax.jit(make_init(TEACHER, TRANSLATION))(jax.random.key(1))
    randomness = Randomness(jax.random.key(2), jnp.arange(2))

    plain = TranslationLoss(model, 0.1)
    loss = AttentionLoss(plain, TEACHER, weight=3.0)
    expected = jax.jit(plain)(params, BATCH, randomness)

    own = recorded_maps(model, params, randomness)
    theirs = recorded_maps(TEACHER, teacher)
    is_token = {"encoder": BATCH.src_segments > 0, "decoder": BATCH.tgt_segments > 0}
    distances = [distance(own[name], theirs[name], is_token[name[0]]) for name in sublayers]

    @jax.jit
    def value_and_gradients(teacher, params):
        def total(teacher, params):
            sums = loss(teacher, params, BATCH, randomness)
            return sums["loss"], sums

        return jax.grad(total, argnums=(0, 1), has_aux=True)(teacher, params)

    (of_teacher, of_student), sums = jax.device_get(value_and_gradients(teacher, params))
    assert float(sums["attention"]) == pytest.approx(np.mean(distances), rel=1e-4)
    total = float(expected["loss"]) + 3.0 * np.mean(distances)
    assert float(sums["loss"]) == pytest.approx(total, rel=1e-4)

    assert not any(leaf.any() for leaf in jax.tree.leaves(of_teacher))
    query = of_student["encoder"]["layers"]["self_attention"]["query"]
    assert np.isfinite(query).all()
    assert query.any()


@pytest.mark.parametrize(
    ("teacher", "model", "message"),
    [
        ({"num_heads": 4}, {}, r"expected a model of as many heads, 2, got 4; give --config.model"),
        ({}, {"num_layers": 3}, r"at least as many layers as model.num_layers=3, got 2"),
        ({"max_length": 7}, {}, r"a model for 8 tokens, got one for 7; give --config.data.max_"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(teacher, model, message, tmp_path):
    def config_of(model, **training):
        data = DataConfig(max_length=model.max_length)
        return Config(model=model, data=data, training=TrainingConfig(**training))

    source = config_of(dataclasses.replace(TEACHER, **teacher))
    save_config(source, tmp_path / "config.json")
    config = config_of(dataclasses.replace(MODEL, **model), teacher=str(tmp_path))
    with pytest.raises(UserError, match=message):
        check_teacher(config)


def test_other_tasks_have_no_teacher():
    config = Config(training=TrainingConfig(teacher="runs/teacher"))
    with pytest.raises(UserError, match=r"teacher is for translation and classification: got runs"):
        NextTokenLoss.of(config)
