"""The language modeling task: loss, gradients, evaluation and sharding against references."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer.config import Config, MeshConfig, ModelConfig, StreamConfig, TrainingConfig
from jaxformer.errors import UserError
from jaxformer.experiment import make_optimizer
from jaxformer.models.language_model import LanguageModel
from jaxformer.tasks.language_modeling import LanguageModeling, open_stream
from jaxformer.training.mesh import BatchShards, make_mesh, to_devices
from jaxformer.training.step import init_state, make_train_step
from jaxformer.training.task import Randomness
from jaxformer.workdir import Workdir

TEXT = "".join(map(chr, np.random.default_rng(0).integers(97, 123, 1000)))
CONFIG = Config(
    model=ModelConfig(
        vocab_size=30,
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_layers=1,
        max_length=16,
        attention_dropout_rate=0.1,
        norm_position="pre",
        positions="learned",
        activation="gelu",
    ),
    data=StreamConfig(file="text.txt", length=12, rows=6),
    training=TrainingConfig(steps=4, warmup_steps=2, label_smoothing=0.0),
)


def change(config=CONFIG, **sections):
    return dataclasses.replace(
        config,
        **{
            name: dataclasses.replace(getattr(config, name), **fields)
            for name, fields in sections.items()
        },
    )


@pytest.fixture
def opened(tmp_path):
    """Returns a function that opens the task of a config with the text of this test."""
    (tmp_path / "text.txt").write_text(TEXT)

    def task(config=CONFIG):
        config = change(config, data={"file": str(tmp_path / "text.txt")})
        return LanguageModeling(config, open_stream(config, Workdir(tmp_path / "run")))

    return task


def shards(rows=1):
    return BatchShards(rows, range(rows), rows)


def test_loss_is_cross_entropy_of_the_next_token(opened):
    task = opened()
    params = task.init(jax.random.key(0))
    batch = next(task.batches(0, shards()))
    batch[0, 5:] = 0  # padding
    sums = task.loss(params, jnp.asarray(batch), None)
    logits = LanguageModel(CONFIG.model).apply({"params": params}, jnp.asarray(batch[:, :-1]))
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:])
    real = batch[:, 1:] != 0
    assert int(sums["count"]) == int(sums["tokens"]) == real.sum() == 6 * 12 - 8
    np.testing.assert_allclose(sums["nll"], (nll * real).sum(), rtol=1e-5)
    np.testing.assert_allclose(sums["loss"], sums["nll"], rtol=1e-6)


@pytest.mark.parametrize("biases", [False, True])
def test_gradients_are_finite_and_reach_every_parameter(opened, biases):
    task = opened(change(model={"biases": biases}))
    params = task.init(jax.random.key(0))
    batch = jnp.asarray(next(task.batches(0, shards())))
    randomness = Randomness(jax.random.key(1), jnp.arange(6))
    gradients = jax.grad(lambda params: task.loss(params, batch, randomness)["loss"])(params)
    for path, leaf in jax.tree.leaves_with_path(gradients):
        assert np.isfinite(leaf).all(), path
        # The softmax is invariant to a constant added to every key.
        assert leaf.any() or path[-1].key == "key_bias", path


@pytest.mark.ci
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
@pytest.mark.parametrize("mesh", [MeshConfig(), MeshConfig(fsdp=2, tensor=2)])
def test_eight_devices_equal_one(opened, optimizer, mesh):
    """On eight devices, two empty rows pad the six rows."""
    task = opened(change(training={"optimizer": optimizer, "weight_decay": 0.1}))
    results = []
    for where in (make_mesh(devices=jax.devices()[:1]), make_mesh(mesh)):
        own = BatchShards.of(where)
        state = init_state(task.init, make_optimizer(task.config), where, 0)
        step = make_train_step(task.loss, make_optimizer(task.config), where)
        batches = task.batches(0, own)
        for _ in range(2):
            state, sums = step(state, to_devices(where, next(batches)))
        values = task.evaluate(state.params, where, lambda: None)
        results.append((jax.device_get(state.params), float(sums["loss"]), values))
    for one, many in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(many, one, rtol=2e-4, atol=2e-5)


def test_evaluation_counts_every_character_of_the_last_tenth(opened):
    task = opened()
    params = task.init(jax.random.key(0))
    values = task.evaluate(params, make_mesh(), lambda: None)
    ids = np.asarray([ord(character) - 97 + 4 for character in TEXT])
    model, total = LanguageModel(CONFIG.model), 0.0
    for start in range(900, 1000, 12):
        window = ids[start - 1 : min(start + 12, 1000)]
        logits = model.apply({"params": params}, jnp.asarray(window[None, :-1]))
        nll = optax.softmax_cross_entropy_with_integer_labels(logits[0], window[1:])
        total += float(nll.sum())
    assert values == {
        "loss": pytest.approx(total / 100, rel=1e-5),
        "perplexity": pytest.approx(math.exp(total / 100), rel=1e-5),
        "nats_per_character": pytest.approx(total / 100, rel=1e-5),
        "bits_per_character": pytest.approx(total / 100 / math.log(2), rel=1e-5),
    }


def test_nats_are_per_character_with_byte_pairs(tmp_path):
    text = "All:\nSpeak, speak.\n\nFirst Citizen:\nWe know.\n" * 30
    (tmp_path / "text.txt").write_text(text)
    data = {"file": str(tmp_path / "text.txt"), "tokens": "bpe"}
    config = change(model={"vocab_size": 300}, data=data)
    stream = open_stream(config, Workdir(tmp_path / "run"))
    task = LanguageModeling(config, stream)
    values = task.evaluate(task.init(jax.random.key(0)), make_mesh(), lambda: None)
    ratio = len(stream.valid) / (len(text) - len(text) * 9 // 10)
    assert ratio < 1
    assert values["nats_per_character"] == pytest.approx(values["loss"] * ratio, rel=1e-5)


def test_batches_resume_in_the_middle(opened):
    task = opened()
    every = list(task.batches(0, shards()))
    assert len(every) == 4
    np.testing.assert_array_equal(list(task.batches(2, shards())), every[2:])


def test_sizes_that_do_not_fit_the_text_are_refused(opened):
    with pytest.raises(UserError, match=r"model.vocab_size must be 30, four special tokens and"):
        opened(change(model={"vocab_size": 31}))
    with pytest.raises(UserError, match=r"data\.length must be less than the 900 tokens"):
        opened(change(model={"max_length": 2000}, data={"length": 900}))
    with pytest.raises(UserError, match=r"data\.length must not exceed .*: got 17"):
        change(data={"length": 17})


def test_identity_hashes_text_and_vocabulary(opened, tmp_path):
    identity = opened().identity()
    assert set(identity) == {"tokenizer", "text"}
    (tmp_path / "text.txt").write_text(TEXT[:-1] + ("b" if TEXT[-1] == "a" else "a"))
    config = change(data={"file": str(tmp_path / "text.txt")})
    other = LanguageModeling(config, open_stream(config, Workdir(tmp_path / "run"))).identity()
    assert other["text"] != identity["text"]
    assert other["tokenizer"] == identity["tokenizer"]
