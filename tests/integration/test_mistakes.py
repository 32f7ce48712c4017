"""Mistakes of new users are refused with a clear message, or work.

Most arguments have other types than annotated, which the checks of annotations at night refuse.
"""

import dataclasses
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import (
    BeamSearch,
    Block,
    Config,
    DataConfig,
    FeedForward,
    ModelConfig,
    MultiHeadAttention,
    Parser,
    Tokenizer,
    TrainingConfig,
    Transformer,
    Translator,
    UserError,
    beam_search,
    cross_entropy,
    ensemble,
    fit,
    gnmt_penalty,
    load_model,
    make_mesh,
    make_optimizer,
    make_train_step,
    sample,
)
from jaxformer.config import to_config_dict
from jaxformer.inference.alignment import align
from jaxformer.inference.attention_view import record_attention
from jaxformer.inference.pair_scores import score_pairs
from jaxformer.nn import Stack

from ..profiles import NIGHTLY

pytestmark = pytest.mark.skipif(NIGHTLY, reason="the checks of annotations come first")

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "workdir_8c81d1e" / "run"
MODEL = ModelConfig(vocab_size=300, d_model=8, num_heads=2, max_length=16)
CONFIG = Config(model=MODEL, data=DataConfig(corpus="trees", max_length=16))
IDS = {"bos_id": 0, "eos_id": 1, "pad_id": 0}
X = np.ones((2, 3, 8), np.float32)
ATTENTION, FEED_FORWARD = MultiHeadAttention(2), FeedForward(16)
BLOCK = Block(ATTENTION, FEED_FORWARD)
with np.errstate(divide="ignore"):
    CHAIN = np.log(np.array([[0.0, 0.4, 0.6], [0.0, 0.9, 0.1], [0.0, 0.5, 0.5]], np.float32))


@functools.cache
def tokenizer():
    return Tokenizer.load(FIXTURE / "tokenizer.model")


def translator(config=CONFIG, params=None, tokens=None):
    return Translator(config, params or {}, tokens or tokenizer())


def step(tokens, cache):
    return jnp.asarray(CHAIN)[tokens], cache


def beam(step_fn=step, max_lengths=(6, 6), **changed):
    given = {"capacity": 6, "beam_size": 2, "length_penalty": 0.0, **IDS, **changed}
    return beam_search(step_fn, (), max_lengths=max_lengths, **given)


def draw(keys):
    return sample(step, (), keys=keys, max_lengths=[6, 6], capacity=6, num_samples=1, **IDS)


def init(module, *inputs):
    return jax.eval_shape(module.init, jax.random.key(0), *inputs)


def later(module, x):
    """Initializes a layer, and applies it to other inputs."""
    return jax.eval_shape(module.apply, init(module, X), x)


def transformer(source, target, model=MODEL):
    return Transformer(model).init(jax.random.key(0), source, target)


def ids(*values):
    return np.array([values])


MISTAKES = {
    # Models.
    "got Config; give config.model": lambda: transformer(ids(1, 1), ids(1, 1), CONFIG),
    "ids of shape [batch, length], got list": lambda: transformer([[5, 6]], [[2, 5]]),
    "of shape [batch, length], got shape (2,)": lambda: transformer(ids(5, 6)[0], ids(2, 5)),
    "rows in src as in tgt_in, got 1 and 3": lambda: transformer(ids(1, 1), np.ones((3, 2), int)),
    "src: expected token ids from 0 to 299, the vocabulary's, got ids from 300": lambda: (
        transformer(ids(300), ids(2))
    ),
    "tgt_in: expected token ids from 0 to 299, the vocabulary's, got ids from -1": lambda: (
        transformer(ids(5), ids(-1))
    ),
    # Layers.
    "expected num_heads to be 1 or more, got Mod": lambda: init(MultiHeadAttention(MODEL), X),
    "of shape (6, 2, 3), but it was given one of shape (8, 2, 4)": lambda: later(
        ATTENTION, X[..., :6]
    ),
    "Attention: expected x of shape [batch, length, d_model], got (": lambda: init(ATTENTION, X[0]),
    "[batch, length, d_model=8], got (2, 3, 6)": lambda: init(ATTENTION, X, X[..., :6]),
    "must divide the width of the inputs, 7, unless": lambda: init(ATTENTION, X[..., :7]),
    "mask of booleans, True where a": lambda: init(ATTENTION, X, X, np.ones((2, 1, 3, 3))),
    "keys=3] or 1 in place of a size, got bool": lambda: init(
        ATTENTION, X, X, np.ones((3, 3), bool)
    ),
    "Block: expected x of shape [batch, length, d_model], got (3, 8)": lambda: init(BLOCK, X[0]),
    "expected d_ff to be 1 or more, got ModelConfig": lambda: init(FeedForward(MODEL), X),
    "'relu', 'gelu', 'swish', got 'tanh'": lambda: init(FeedForward(16, activation="tanh"), X),
    "to be 'float32', 'bfloat16', 'int8', got <class": lambda: init(
        FeedForward(16, compute_dtype=jnp.bfloat16), X
    ),
    "'bfloat16', 'int8', got 'bf16'": lambda: init(MultiHeadAttention(2, compute_dtype="bf16"), X),
    "remat to be 'none', 'dots', 'layer', got 'all'": lambda: init(Stack(BLOCK, 1, remat="all"), X),
    "expected features [rows, d_model], embedding": lambda: cross_entropy(
        X, np.ones((9, 8)), [[1]], [[1.0]], 0.1
    ),
    # Training.
    "put it into one: Config(training=...)": lambda: make_optimizer(TrainingConfig()),
    "got ConfigDict; make one of": lambda: make_optimizer(to_config_dict(CONFIG)),
    "Config, which has no batches, best,": lambda: fit(CONFIG, make_optimizer(CONFIG), "run"),
    "batch and randomness, got Config": lambda: make_train_step(
        CONFIG, make_optimizer(CONFIG), make_mesh()
    ),
    "expected a MeshConfig, got Config; give config.mesh or": lambda: make_mesh(Config()),
    # Configs.
    "be a BeamSearch or Sampling: got dict": lambda: dataclasses.replace(
        CONFIG, search={"beam_size": 4}
    ),
    # Inference.
    "got ModelConfig; put it into one: Config(model=...)": lambda: translator(MODEL),
    "expected a Tokenizer, got 'tok": lambda: translator(tokens="tokenizer.model"),
    'hold them; give variables["params"]': lambda: translator(params={"params": {}}),
    "[0]: expected text, got bytes; decode": lambda: translator().translate([b"ten"]),
    "sentences: expected a list of texts, got 10": lambda: translator().translate(10),
    "token ids, got 'ten'; encode": lambda: translator().translate_ids(["ten"]),
    "source of pairs[0]: expected a list": lambda: score_pairs(translator(), [("ten", "zehn")]),
    "source ids and target ids, got [5": lambda: score_pairs(translator(), [[5, 1, 1]]),
    "a text and its token ids, as (": lambda: align(translator(), ["ten"], ["zehn"]),
    "of a training run, but it has no config.json; train": lambda: load_model("nowhere"),
    "sentence: expected text, got ['ten']": lambda: record_attention(translator(), ["ten"]),
    "one string, 'It works'; split it: split": lambda: Parser(translator()).parse(["It works"]),
    "'runs/a.model'; read a file with Tokenizer.load": lambda: Tokenizer("runs/a.model"),
    "text: expected text, got ['ten']": lambda: tokenizer().encode(["ten"]),
    # Search.
    "one number per sentence, of one at least: got shape ()": lambda: beam(max_lengths=6),
    "max_lengths must be integers: got dtype float32": lambda: beam(max_lengths=[6.5]),
    "array of integers, or lists of equal length: got": lambda: beam(prefix=[[2], [2, 2]]),
    "of the vocabulary, 0 to 2, or padding, 0: got 3": lambda: beam(prefix=[[2], [3]]),
    "beam_size must be a whole number: got '2'": lambda: beam(beam_size="2"),
    "return a pair, (logits, cache): got a ": lambda: beam(lambda *_: jnp.zeros(3)),
    "got a single function; put it into a list": lambda: ensemble(step),
    "as of jax.random.split(jax.random.key(0), 2)": lambda: draw(jax.random.PRNGKey(0)),
    "keys must be an array of typed PRNG keys": lambda: draw([jax.random.key(0)] * 2),
    "a tuple of callables, (logits, context) ->": lambda: BeamSearch(constraints=len),
    "a tuple of callables, (logits, context) -> logits: got": lambda: beam(constraints=["ten"]),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistake_is_refused_in_one_line(words):
    with pytest.raises(UserError) as error:
        MISTAKES[words]()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_unannotated_types_work():
    @jax.jit
    def results():
        loss, _ = cross_entropy([[0.0]], [[1.0], [2.0]], [1], [1], 0)
        lists = beam(max_lengths=[6, 1], prefix=[[2], [0]])
        sizes = beam(beam_size=np.int64(1), capacity=np.int32(3))
        return loss, lists.lengths, sizes.tokens, gnmt_penalty([1, 7], 1.0)

    loss, lengths, tokens, penalty = jax.device_get(results())
    assert loss == pytest.approx(np.log(2), abs=1e-6)  # two equal logits
    # With prefix 2: 2 1 (1 is EOS) and 2 2 1. With a limit of one token: 1, and nothing else.
    assert lengths.tolist() == [[2, 3], [1, 0]]
    assert tokens.shape == (2, 1, 3)
    assert penalty.tolist() == [1, 2]
    for layer in (BLOCK, ATTENTION):  # of activations alone, without a mask
        shapes, _ = jax.eval_shape(layer.init_with_output, jax.random.key(0), X)
        assert shapes.shape == (2, 3, 8)
    sizes = {"d_model": np.int64(8), "dropout_rate": np.float32(0.5), "num_heads": 2}
    values = json.dumps(Config(model=ModelConfig(vocab_size=300, **sizes)).to_dict())
    assert json.loads(values)["model"].items() >= {"d_model": 8, "dropout_rate": 0.5}.items()
