"""Mistakes of new users are refused with a clear message, or work.

Most arguments have other types than annotated, which the nightly checks of annotations refuse.
"""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer as jx
from jaxformer import Config, ModelConfig, UserError
from jaxformer.config import to_config_dict
from jaxformer.inference.pair_scores import score_pairs

from ..profiles import CHECKED

pytestmark = pytest.mark.skipif(CHECKED, reason="the checks of annotations come first")

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "workdir_8c81d1e" / "run"
MODEL = ModelConfig(vocab_size=300, d_model=8, num_heads=2, max_length=16)
CONFIG = Config(model=MODEL, data=jx.DataConfig(corpus="trees", max_length=16))
IDS = {"bos_id": 0, "eos_id": 1, "pad_id": 0}
X = np.ones((2, 3, 8), np.float32)
ATTENTION = jx.MultiHeadAttention(2)
BLOCK = jx.Block(ATTENTION, jx.FeedForward(16))
with np.errstate(divide="ignore"):
    CHAIN = np.log(
        np.float32(
            [
                [0.0, 0.4, 0.6],
                [0.0, 0.9, 0.1],
                [0.0, 0.5, 0.5],
            ]
        )
    )


@functools.cache
def tokenizer():
    return jx.Tokenizer.load(FIXTURE / "tokenizer.model")


def translator(config=CONFIG, params=None, tokens=None):
    return jx.Translator(config, params or {}, tokens or tokenizer())


def step(tokens, cache):
    return jnp.asarray(CHAIN)[tokens], cache


def beam(step_fn=step, max_lengths=(6, 6), **changed):
    given = {"capacity": 6, "beam_size": 2, "length_penalty": 0.0} | IDS
    return jx.beam_search(step_fn, (), max_lengths=max_lengths, **given | changed)


def draw(keys):
    return jx.sample(
        step,
        (),
        keys=keys,
        max_lengths=[6, 6],
        capacity=6,
        num_samples=1,
        **IDS,
    )


def shapes_of(module, *inputs):
    key = jax.random.key(0)
    return jax.eval_shape(module.init, key, *inputs)


def transformer(source, target, model=MODEL):
    return jx.Transformer(model).init(jax.random.key(0), source, target)


def ids(*values):
    return np.array([values])


MISTAKES = {
    # Models.
    "got Config; give config.model": lambda: transformer(ids(1, 1), ids(1, 1), CONFIG),
    "ids of shape [batch, length], got list": lambda: transformer([[5, 6]], [[2, 5]]),
    "src: expected token ids from 0 to 299, the vocabulary's, got ids from 300": lambda: (
        transformer(ids(300), ids(2))
    ),
    "GPT2: expected a GPT2Config, got": lambda: shapes_of(jx.GPT2(jx.LlamaConfig()), None),
    # Layers.
    "[batch, length, d_model=8], got (2, 3, 6)": lambda: shapes_of(ATTENTION, X, X[..., :6]),
    "to be 'float32', 'bfloat16', 'float16', 'float8', 'int8', got <class": lambda: shapes_of(
        jx.FeedForward(16, compute_dtype=jnp.bfloat16), X
    ),
    "expected features [rows, d_model], embedding": lambda: jx.cross_entropy(
        X, np.ones((9, 8)), [[1]], [[1.0]], 0.1
    ),
    # Training.
    "got ConfigDict; make one of": lambda: jx.make_optimizer(to_config_dict(CONFIG)),
    "expected a MeshConfig, got Config; give config.mesh or": lambda: jx.make_mesh(Config()),
    # Inference.
    "got ModelConfig; put it into one: Config(model=...)": lambda: translator(MODEL),
    'hold them; give variables["params"]': lambda: translator(params={"params": {}}),
    "[0]: expected text, got bytes; decode": lambda: translator().translate([b"ten"]),
    "source of pairs[0]: expected a list": lambda: score_pairs(translator(), [("ten", "zehn")]),
    "config.json: no such file; give the workdir of a": lambda: jx.load_model("nowhere"),
    "one string, 'It works'; split it: split": lambda: jx.Parser(translator()).parse(["It works"]),
    # Search.
    "max_lengths must be integers: got dtype float32": lambda: beam(max_lengths=[6.5]),
    "return a pair, (logits, cache): got a ": lambda: beam(lambda *_: jnp.zeros(3)),
    "got a single function; put it into a list": lambda: jx.ensemble(step),
    "as of jax.random.split(jax.random.key(0), 2)": lambda: draw(jax.random.PRNGKey(0)),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistake_is_refused_in_one_line(words):
    with pytest.raises(UserError) as error:
        MISTAKES[words]()

    message = str(error.value)
    assert words in message
    assert "\n" not in message


def test_unannotated_types_work():
    @jax.jit
    def results():
        loss, _ = jx.cross_entropy(
            [[0.0]],
            [[1.0], [2.0]],
            [1],
            weights=[1],
            label_smoothing=0,
        )
        lists = beam(max_lengths=[6, 1], prefix=[[2], [0]])
        sizes = beam(beam_size=np.int64(1), capacity=np.int32(3))
        return loss, lists.lengths, sizes.tokens, jx.gnmt_penalty([1, 7], 1.0)

    loss, lengths, tokens, penalty = jax.device_get(results())

    assert loss == pytest.approx(np.log(2), abs=1e-6)  # two equal logits
    # With prefix 2: 2 1 (1 is EOS) and 2 2 1. With a limit of one token: 1, and nothing else.
    assert lengths.tolist() == [[2, 3], [1, 0]]
    assert tokens.shape == (2, 1, 3)
    assert penalty.tolist() == [1, 2]


@pytest.mark.parametrize("layer", [BLOCK, ATTENTION], ids=["block", "attention"])
def test_layers_take_activations_alone(layer):
    """Without keys, which have the mask."""
    output, _ = jax.eval_shape(layer.init_with_output, jax.random.key(0), X)
    assert output.shape == (2, 3, 8)


def test_configs_take_numbers_of_numpy():
    sizes = {"d_model": np.int64(8), "dropout_rate": np.float32(0.5), "num_heads": 2}
    config = Config(model=ModelConfig(vocab_size=300, **sizes))
    values = json.loads(json.dumps(config.to_dict()))
    assert values["model"]["d_model"] == 8
    assert values["model"]["dropout_rate"] == 0.5
