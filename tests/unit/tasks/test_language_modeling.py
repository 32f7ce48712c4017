"""The language modeling task: loss, gradients, evaluation and sharding against references."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import Config, ModelConfig, StreamConfig, TrainingConfig
from jaxformer.errors import UserError
from jaxformer.models.language_model import LanguageModel
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks import language_modeling
from jaxformer.tasks.language_modeling import LanguageModeling, open_stream
from jaxformer.training.mesh import make_mesh
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import Randomness

from ...runs import changed

# Letters from a to z.
CODES = np.random.default_rng(0).integers(97, 123, 1000)
TEXT = "".join(map(chr, CODES))
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
        biases=True,
    ),
    data=StreamConfig(file="text.txt", length=12, rows=6),
    training=TrainingConfig(steps=4, warmup_steps=2, label_smoothing=0.0),
)


@pytest.fixture
def opened(tmp_path):
    """Returns a function that opens the task of a config with the text of this test."""

    def task(config=CONFIG, text=TEXT):
        (tmp_path / "text.txt").write_text(text)
        config = changed(config, data={"file": str(tmp_path / "text.txt")})
        return LanguageModeling(config, open_stream(config, Workdir(tmp_path / "run")))

    return task


def batches(task, start=0):
    return task.batches(start, BatchShards(1, range(1), 1))


@functools.cache
def parameters(init):
    """Returns parameters of the right shapes, without the time that compiling ``init`` takes."""
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(init, jax.random.key(0))

    def draw(shape):
        return random.normal(0, 0.3, shape.shape).astype(shape.dtype)

    return jax.tree.map(draw, shapes)


@jax.jit
def log_probabilities(params, tokens):
    logits = LanguageModel(CONFIG.model).apply({"params": params}, tokens)
    return jax.nn.log_softmax(logits)


def nll(params, rows):
    """Returns the negative log probability of each token but the first, by the whole logits."""
    inputs = rows[:, :-1]
    targets = rows[:, 1:]
    found = np.asarray(log_probabilities(params, inputs))  # [B, T, V]
    places = targets[:, :, None]
    of_targets = np.take_along_axis(found, places, axis=-1)
    return -of_targets[:, :, 0]


def test_loss_is_cross_entropy_of_the_next_token_and_gradients_reach_every_parameter(opened):
    task = opened()
    params = parameters(task.init)
    batch = next(batches(task))
    batch[0, 5:] = 0  # padding

    @jax.jit
    def compute(params, batch):
        randomness = Randomness(jax.random.key(1), jnp.arange(6))

        def loss(params):
            return task.loss(params, batch, randomness)["loss"]

        return task.loss(params, batch, None), jax.grad(loss)(params)

    sums, gradients = jax.device_get(compute(params, batch))

    real = batch[:, 1:] != 0
    assert real.sum() == 6 * 12 - 8
    assert sums["count"] == real.sum()
    assert sums["tokens"] == real.sum()
    expected = nll(params, batch)[real].sum()
    np.testing.assert_allclose(sums["nll"], expected, rtol=1e-5)
    np.testing.assert_allclose(sums["loss"], sums["nll"], rtol=1e-6)

    for path, leaf in jax.tree.leaves_with_path(gradients):
        assert np.isfinite(leaf).all(), path
        # The softmax is invariant to a constant added to every key.
        assert leaf.any() or path[-1].key == "key_bias", path


def test_evaluation_counts_every_character_of_the_last_tenth(opened):
    task = opened()
    params = parameters(task.init)
    values = task.evaluate(params, make_mesh(), lambda: None)

    # The nine windows that begin before the last tenth; the last one has four of its characters.
    codes = np.array(list(map(ord, TEXT)))
    ids = 4 + codes - ord("a")
    windows = np.zeros((12, 13), int)
    for number, start in enumerate(range(899, 999, 12)):
        window = ids[start : start + 13]
        windows[number, : len(window)] = window

    first, second = np.split(windows, 2)
    of_first = nll(params, first)
    of_second = nll(params, second)
    found = np.concatenate([of_first, of_second])
    real = windows[:, 1:] != 0
    mean = found[real].sum() / 100
    bits = mean / math.log(2)
    assert values == {
        "loss": pytest.approx(mean, rel=1e-5),
        "perplexity": pytest.approx(math.exp(mean), rel=1e-5),
        "nats_per_character": pytest.approx(mean, rel=1e-5),
        "bits_per_character": pytest.approx(bits, rel=1e-5),
    }


def test_nats_are_per_character_with_byte_pairs(opened, monkeypatch):
    text = "All:\nSpeak, speak.\n\nFirst Citizen:\nWe know.\n" * 30
    config = changed(CONFIG, model={"vocab_size": 300}, data={"tokens": "bpe"})
    task = opened(config, text)

    valid = text[len(text) * 9 // 10 :]
    tokens = len(task.tokenizer.encode(valid))
    assert tokens < len(valid)

    per_token = {"loss": 2.0, "perplexity": math.exp(2.0)}
    monkeypatch.setattr(language_modeling, "evaluate_loss", lambda *_: per_token)
    values = task.evaluate({}, make_mesh(), lambda: None)
    nats = values["nats_per_character"]
    assert nats == pytest.approx(2 * tokens / len(valid))


def test_sizes_that_do_not_fit_the_text_are_refused(opened):
    with pytest.raises(UserError, match=r"model.vocab_size must be 30, four special tokens and"):
        opened(changed(CONFIG, model={"vocab_size": 31}))
    with pytest.raises(UserError, match=r"data\.length must be less than the 900 tokens"):
        opened(changed(CONFIG, model={"max_length": 2000}, data={"length": 900}))
    with pytest.raises(UserError, match=r"data\.length must not exceed .*: got 17"):
        changed(CONFIG, data={"length": 17})


def test_identity_hashes_text_and_vocabulary(opened):
    identity = opened().identity()
    assert set(identity) == {"tokenizer", "text"}

    last = "b" if TEXT[-1] == "a" else "a"
    other = opened(text=TEXT[:-1] + last).identity()
    assert other["text"] != identity["text"]
    assert other["tokenizer"] == identity["tokenizer"]
