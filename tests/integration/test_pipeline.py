"""Layers that are split over devices compute what one device does."""

import dataclasses
import functools
import json
import math
import re
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from flax.linen import logical_axis_rules

from jaxformer import StreamConfig, load_model, train
from jaxformer.config import Config, MeshConfig, ModelConfig, TrainingConfig
from jaxformer.data.batch import Batch
from jaxformer.errors import UserError
from jaxformer.experiment import make_optimizer
from jaxformer.kinds.model_parameters import make_init
from jaxformer.memory import memory_savings
from jaxformer.nn import Block, FeedForward, MultiHeadAttention, Stack
from jaxformer.nn.pipeline import idle_fraction, in_micro_batches
from jaxformer.tasks.translation import TranslationLoss
from jaxformer.training.mesh import make_mesh
from jaxformer.training.placement import RULES, BatchShards, batch_sharding, param_shardings
from jaxformer.training.step import make_train_step
from jaxformer.training.train_state import abstract_state, init_state

from ..profiles import by_profile

CONFIG = Config(
    model=ModelConfig(
        vocab_size=40,
        d_model=16,
        d_ff=24,
        num_heads=4,
        num_layers=2,
        dropout_rate=0.3,
    ),
    training=TrainingConfig(warmup_steps=2),
)
ROWS = 8
# With a momentum of zero, the state holds the gradients themselves.
OPTIMIZER = optax.sgd(1.0, momentum=0.0)
ONE = MeshConfig(data=1)


def packed_batch():
    """Rows of one or two sentence pairs and some padding; the last one is empty."""
    rng = np.random.default_rng(0)
    first = np.array([6, 1, 3, 2, 5, 2, 4, 0])
    both = np.array([6, 4, 5, 2, 6, 5, 4, 0])
    index = np.tile(np.arange(6), (ROWS, 1))
    is_second = index >= first[:, None]
    segments = np.where(index < both[:, None], 1 + is_second, 0).astype(np.int32)
    positions = np.where(is_second, index - first[:, None], index).astype(np.int32)

    def tokens():
        return np.where(segments > 0, rng.integers(3, 40, (ROWS, 6)), 0).astype(np.int32)

    return Batch(
        src=tokens(),
        src_segments=segments,
        src_positions=positions,
        tgt_in=tokens(),
        tgt_out=tokens(),
        tgt_segments=segments,
        tgt_positions=positions,
    )


def mesh_of(sizes):
    shape = dataclasses.asdict(sizes).values()
    return make_mesh(sizes, jax.devices()[: math.prod(shape)])


class OneStep(NamedTuple):
    """Metrics and gradients of a step, its parameters, and the text of its program."""

    metrics: dict[str, np.ndarray]
    gradients: Any
    params: Any
    program: str


@functools.cache
def one_step(sizes=ONE, micro_batches=1, remat="none", positions="sinusoidal"):
    model = dataclasses.replace(CONFIG.model, positions=positions)
    training = dataclasses.replace(CONFIG.training, remat=remat)
    config = dataclasses.replace(CONFIG, model=model, training=training)
    mesh = mesh_of(sizes)
    state = init_state(make_init(config.model), OPTIMIZER, mesh)
    step = make_train_step(
        TranslationLoss.of(config),
        OPTIMIZER,
        mesh,
        gradient_accumulation=micro_batches,
    )
    batch = jax.device_put(packed_batch(), batch_sharding(mesh))
    compiled = step.lower(state, batch).compile()
    state, metrics = compiled(state, batch, np.uint32(0))
    gradients = optax.tree.get(state.opt_state, "trace")
    return OneStep(
        metrics=jax.device_get(metrics),
        gradients=jax.device_get(gradients),
        params=state.params,
        program=compiled.as_text() or "",
    )


def assert_same_step(found, expected):
    """Checks the loss, and that no gradient differs by more than a millionth of its norm."""
    np.testing.assert_allclose(found.metrics["loss"], expected.metrics["loss"], rtol=1e-6)
    assert found.metrics["count"] == expected.metrics["count"] > 0

    def distance(actual, expected):
        return np.linalg.norm(actual - expected) / np.linalg.norm(expected)

    distances = jax.tree.map(distance, found.gradients, expected.gradients)
    assert max(jax.tree.leaves(distances)) < 1e-6, distances


MESHES = [
    (MeshConfig(data=2, pipe=2, tensor=2), 4, "none"),
    (MeshConfig(data=1, pipe=2), 1, "none"),
    (MeshConfig(data=1, pipe=2), 8, "dots"),
    (MeshConfig(data=1, pipe=2, fsdp=4), 2, "layer"),
    (MeshConfig(data=2, pipe=2, fsdp=2), 2, "none"),
    (MeshConfig(data=1, pipe=2, fsdp=2, tensor=2), 4, "none"),
]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("sizes", "micro_batches", "remat"),
    by_profile(MESHES[:1], nightly=MESHES),
    ids=str,
)
def test_stages_change_neither_loss_nor_gradients(sizes, micro_batches, remat):
    """With dropout and packed rows."""
    found = one_step(sizes, micro_batches, remat)
    assert_same_step(found, one_step())

    inner = found.params["decoder"]["layers"]["feed_forward"]["inner"]
    shard = inner.addressable_shards[0].data.shape
    assert shard == (1, 16 // sizes.fsdp, 24 // sizes.tensor)


@pytest.mark.nightly
def test_a_bias_that_all_layers_share_has_the_same_gradient():
    """It is computed outside of the layers, and no argument of them."""
    found = one_step(MeshConfig(data=2, pipe=2), 2, positions="relative")
    assert_same_step(found, one_step(positions="relative"))


def test_stages_send_activations_to_their_neighbors_only():
    """Nothing is gathered: no device ever has the layers of another stage."""
    found = one_step(MeshConfig(data=1, pipe=2), 2)
    assert_same_step(found, one_step())

    kinds = "all-gather|all-to-all|reduce-scatter|collective-permute|all-reduce"
    collectives = re.findall(rf" ({kinds})(?:-start)?\(", found.program)
    assert set(collectives) == {"collective-permute", "all-reduce"}


def test_stages_that_do_not_divide_the_layers_are_refused():
    stages = MeshConfig(data=1, pipe=2)
    odd = dataclasses.replace(CONFIG.model, num_layers=3)
    with pytest.raises(UserError, match=r"mesh.pipe=2 must divide .* every stack .* got 3; mesh"):
        init_state(make_init(odd), OPTIMIZER, mesh_of(stages))

    # A task of a user, without a stack.
    params = {"w": jax.ShapeDtypeStruct((4, 4), np.float32)}
    with pytest.raises(UserError, match=r"mesh.pipe=2 must divide .* got none; mesh.fsdp splits"):
        param_shardings(mesh_of(stages), params, {"w": None})


@pytest.mark.parametrize(
    ("repeats", "rows", "message"),
    [
        (2, 4, "mesh.pipe splits neither layers with repeats nor gated blocks"),
        (1, 5, "rows that the 2 micro-batches of gradient_accumulation divide, got 5"),
    ],
)
def test_what_stages_cannot_run_is_refused(repeats, rows, message):
    block = Block(MultiHeadAttention(2), FeedForward(8))
    stack = Stack(block, num_layers=2, repeats=repeats)
    x = np.ones((rows, 3, 4), np.float32)
    variables = jax.eval_shape(stack.init, jax.random.key(0), x)

    rules = tuple(RULES.items())
    mesh = mesh_of(MeshConfig(data=1, pipe=2))
    with (
        jax.set_mesh(mesh),
        logical_axis_rules(rules),
        in_micro_batches(2),
        pytest.raises(UserError, match=message),
    ):
        jax.eval_shape(stack.apply, variables, x)


def test_devices_of_all_stages_read_the_same_rows():
    shards = BatchShards.of(mesh_of(MeshConfig(data=2, pipe=2, fsdp=2)), 3)
    assert shards == BatchShards(row_multiple=12, local_shards=[0, 1, 2, 3], shard_count=4)


def test_the_bubble_is_the_share_of_ticks_without_a_micro_batch():
    for stages, count in [(2, 1), (2, 4), (4, 4), (4, 8), (8, 3)]:
        busy = 0
        ticks = 0
        while busy < stages * count:
            busy += sum(0 <= ticks - stage < count for stage in range(stages))
            ticks += 1
        assert idle_fraction(stages, count) == pytest.approx(1 - busy / (stages * ticks))


ALPHABET = "".join(map(chr, range(97, 123))) + " "


@pytest.mark.ci
@pytest.mark.parametrize("first", by_profile(["split"], nightly=["split", "whole"]))
def test_a_run_goes_on_without_stages_and_with_them(first, tmp_path, capsys):
    """A language model, whose run takes two steps on each of two meshes."""
    text = tmp_path / "text.txt"
    text.write_text(ALPHABET * 40)
    model = dataclasses.replace(CONFIG.model, vocab_size=31, max_length=16, norm_position="pre")
    training = TrainingConfig(
        steps=4,
        warmup_steps=2,
        label_smoothing=0.0,
        optimizer="muon",
        gradient_accumulation=2,
        log_every=1,
        eval_every=2,
        checkpoint_every=2,
    )
    whole = Config(
        model=model,
        data=StreamConfig(file=str(text), length=16, rows=8),
        training=training,
        mesh=MeshConfig(data=4, fsdp=2),
    )
    split = dataclasses.replace(whole, mesh=MeshConfig(data=2, pipe=2, fsdp=2))
    half = dataclasses.replace(training, steps=2)

    train(whole, tmp_path / "whole")
    expected = losses_and_weights(tmp_path / "whole")

    order = [split, whole] if first == "split" else [whole, split]
    train(dataclasses.replace(order[0], training=half), tmp_path / "moved")
    train(order[1], tmp_path / "moved")
    assert "2 stages of layers, 2 micro-batches: 33% idle" in capsys.readouterr().err

    found = losses_and_weights(tmp_path / "moved")
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    same = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-4)
    jax.tree.map(same, found.params, expected.params)


class Results(NamedTuple):
    """Losses of a run, of training and validation, and its last parameters."""

    losses: list[float]
    params: Any


def losses_and_weights(workdir):
    losses = []
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "loss" in entry:
            losses.append(entry["loss"])
    assert len(losses) == 6  # of four steps and two validations
    _, params = load_model(workdir)
    return Results(losses, params)


def test_each_device_has_the_memory_of_its_layers():
    """Parameters and Adam's moments of a deep model, except for the embedding."""
    model = dataclasses.replace(CONFIG.model, num_layers=8)
    config = dataclasses.replace(CONFIG, model=model)
    held = {}
    for pipe in (1, 4):
        mesh = mesh_of(MeshConfig(data=1, pipe=pipe))
        state = abstract_state(make_init(model), make_optimizer(config), mesh)
        shards = [leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves(state)]
        held[pipe] = sum(map(math.prod, shards))

    params = jax.eval_shape(make_init(model), jax.random.key(0))
    layers = [params["encoder"]["layers"], params["decoder"]["layers"]]
    in_layers = 3 * sum(leaf.size for leaf in jax.tree.leaves(layers))
    assert held[1] - held[4] == in_layers * 3 // 4


def test_memory_is_saved_beside_the_stages():
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(data=4, pipe=2))
    settings = list(memory_savings(config, 8))
    assert settings[1] == {"mesh.data": -1, "mesh.fsdp": 4}
