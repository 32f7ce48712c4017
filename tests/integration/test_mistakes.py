"""Mistakes of new users are refused with a clear message, or work.

Most arguments have other types than annotated. The tests check annotations at run time, users do
not; so the calls are made in a separate process, without the checks.
"""

import inspect
import json
import subprocess
import sys

import pytest


def calls():
    """Runs in the other process; prints what each call raises or returns, by its name."""
    import dataclasses
    import json

    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxformer import (
        BeamSearch,
        Block,
        Config,
        DataConfig,
        FeedForward,
        MeshConfig,
        ModelConfig,
        MultiHeadAttention,
        Parser,
        Tokenizer,
        TrainingConfig,
        Transformer,
        Translator,
        beam_search,
        cross_entropy,
        ensemble,
        fit,
        gnmt_penalty,
        inverse_sqrt_schedule,
        load_model,
        make_mesh,
        make_optimizer,
        make_train_step,
        sample,
    )
    from jaxformer.config import to_config_dict
    from jaxformer.data.numerals import NumeralsCorpus
    from jaxformer.data.tokenizer import train_tokenizer
    from jaxformer.inference.alignment import align
    from jaxformer.inference.attention_view import record_attention
    from jaxformer.inference.pair_scores import score_pairs
    from jaxformer.nn import Stack

    lines = [side for pair in NumeralsCorpus().pairs("held_out") for side in pair]
    tokenizer = train_tokenizer(lines, 300)
    model = ModelConfig(vocab_size=300, d_model=8, num_heads=2, max_length=16)
    config = Config(model=model, data=DataConfig(corpus="trees", max_length=16))
    translator = Translator(config, {}, tokenizer)
    chain = jnp.log(jnp.array([[0.0, 0.4, 0.6], [0.0, 0.9, 0.1], [0.0, 0.5, 0.5]]))

    def step(tokens, cache):
        return chain[tokens], cache

    ids = {"bos_id": 0, "eos_id": 1, "pad_id": 0}

    def beam(step_fn=step, max_lengths=(6, 6), **changed):
        given = {"capacity": 6, "beam_size": 2, "length_penalty": 0.0, **ids, **changed}
        return beam_search(step_fn, (), max_lengths=max_lengths, **given)

    def draw(keys):
        return sample(step, (), keys=keys, max_lengths=[6, 6], capacity=6, num_samples=1, **ids)

    key, x = jax.random.key(0), jnp.ones((2, 3, 8))
    attention, feed_forward = MultiHeadAttention(2), FeedForward(16)
    block = Block(attention, feed_forward)

    def transformer(source, target, model=model):
        return Transformer(model).init(key, source, target)

    cases = {
        "model's config": lambda: transformer(jnp.ones((1, 2), int), jnp.ones((1, 2), int), config),
        "lists of tokens": lambda: transformer([[5, 6]], [[2, 5]]),
        "one sentence": lambda: transformer(jnp.array([5, 6]), jnp.array([[2, 5]])),
        "rows": lambda: transformer(jnp.ones((1, 2), int), jnp.ones((3, 2), int)),
        "too large an id": lambda: transformer(jnp.array([[300]]), jnp.array([[2]])),
        "negative id": lambda: transformer(jnp.array([[5]]), jnp.array([[-1]])),
        "attention's config": lambda: MultiHeadAttention(model).init(key, x),
        "width": lambda: attention.apply(attention.init(key, x), x[..., :6]),
        "rank": lambda: attention.init(key, x[0]),
        "keys' width": lambda: attention.init(key, x, x[..., :6]),
        "odd width": lambda: attention.init(key, x[..., :7]),
        "mask of numbers": lambda: attention.init(key, x, x, jnp.ones((2, 1, 3, 3))),
        "mask of two axes": lambda: attention.init(key, x, x, jnp.ones((3, 3), bool)),
        "block's rank": lambda: block.init(key, x[0]),
        "rows of the loss": lambda: cross_entropy(x, jnp.ones((9, 8)), [[1]], [[1.0]], 0.1),
        "inner width": lambda: feed_forward.apply(feed_forward.init(key, x), x[..., :6]),
        "inner size": lambda: FeedForward(model).init(key, x),
        "activation": lambda: FeedForward(16, activation="tanh").init(key, x),
        "dtype of JAX": lambda: FeedForward(16, compute_dtype=jnp.bfloat16).init(key, x),
        "short dtype": lambda: MultiHeadAttention(2, compute_dtype="bf16").init(key, x),
        "rematerialization": lambda: Stack(block, 1, remat="all").init(key, x),
        "optimizer": lambda: make_optimizer(TrainingConfig()),
        "optimizer of a ConfigDict": lambda: make_optimizer(to_config_dict(config)),
        "task": lambda: fit(config, make_optimizer(config), "run"),
        "loss": lambda: make_train_step(config, make_optimizer(config), make_mesh()),
        "schedule": lambda: inverse_sqrt_schedule(512, 0),
        "mesh": lambda: make_mesh(Config()),
        "config": lambda: Config(model=TrainingConfig()),
        "mesh size": lambda: MeshConfig(data="2"),
        "text for a number": lambda: ModelConfig(d_model="512"),
        "fraction for a number": lambda: ModelConfig(d_model=512.5),
        "dtype": lambda: ModelConfig(compute_dtype=jnp.bfloat16),
        "translator's config": lambda: Translator(model, {}, tokenizer),
        "translator's tokenizer": lambda: Translator(config, {}, "tokenizer.model"),
        "variables": lambda: Translator(config, {"params": {}}, tokenizer),
        "search": lambda: dataclasses.replace(config, search={"beam_size": 4}),
        "bytes": lambda: translator.translate([b"ten"]),
        "number for a text": lambda: translator.translate([10]),
        "no list": lambda: translator.translate(10),
        "text for ids": lambda: translator.translate_ids(["ten"]),
        "ids of one": lambda: translator.translate_ids([5, 1]),
        "texts to score": lambda: score_pairs(translator, [("ten", "zehn")]),
        "no pairs": lambda: score_pairs(translator, [[5, 1, 1]]),
        "texts to align": lambda: align(translator, ["ten"], ["zehn"]),
        "no run": lambda: load_model("nowhere"),
        "sentences to record": lambda: record_attention(translator, ["ten"]),
        "parsed text": lambda: Parser(translator).parse(["It works"]),
        "tokenizer's name": lambda: Tokenizer("runs/tokenizer.model"),
        "tokenizer's text": lambda: tokenizer.encode(["ten"]),
        "limit": lambda: beam(max_lengths=6),
        "limits": lambda: beam(max_lengths=[6.5]),
        "ragged prefix": lambda: beam(prefix=[[2], [2, 2]]),
        "prefix": lambda: beam(prefix=[[2], [3]]),
        "beam": lambda: beam(beam_size="2"),
        "no cache": lambda: beam(lambda tokens, cache: chain[tokens]),
        "ensemble": lambda: ensemble(step),
        "keys": lambda: draw(jax.random.PRNGKey(0)),
        "list of keys": lambda: draw(list(jax.random.split(jax.random.key(0)))),
        "settings": lambda: BeamSearch(beam_size=4.0),
        "constraint": lambda: BeamSearch(constraints=len),
        "constraints": lambda: beam(constraints=["ten"]),
    }

    def numbers():
        size, rate = np.int64(8), np.float32(0.5)
        made = ModelConfig(vocab_size=300, d_model=size, num_heads=2, dropout_rate=rate)
        values = json.loads(json.dumps(Config(model=made).to_dict()))["model"]
        return [values["d_model"], values["dropout_rate"]]

    works = {
        "lists of the loss": lambda: float(cross_entropy([[0.0]], [[1.0], [2.0]], [1], [1], 0)[0]),
        "a layer of activations alone": lambda: block.init_with_output(key, x)[0].shape,
        "attention without a mask": lambda: attention.init_with_output(key, x)[0].shape,
        "lists": lambda: beam(max_lengths=[6, 1], prefix=[[2], [0]]).lengths.tolist(),
        "NumPy's sizes": lambda: beam(beam_size=np.int64(1), capacity=np.int32(3)).tokens.shape,
        "NumPy's numbers": numbers,
        "list of lengths": lambda: gnmt_penalty([1, 7], 1.0).tolist(),
    }
    found = {}
    for name, call in cases.items():
        try:
            call()
            found[name] = "nothing"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    for name, call in works.items():
        found[f"works: {name}"] = call()
    print(json.dumps(found))


EXPECTED = {
    "model's config": "Transformer: expected a ModelConfig, got Config; give config.model",
    "lists of tokens": "src: expected an array of token ids of shape [batch, length], got list",
    "one sentence": "src: expected an array of token ids of shape [batch, length], got shape (2,)",
    "rows": "expected as many rows in src as in tgt_in, got 1 and 3",
    "too large an id": "src: expected token ids from 0 to 299, the vocabulary's, got ids from 300",
    "negative id": "tgt_in: expected token ids from 0 to 299, the vocabulary's, got ids from -1",
    "attention's config": "MultiHeadAttention: expected num_heads to be 1 or more, got ModelConfig",
    "width": "need a parameter 'query' of shape (6, 2, 3), but it was given one of shape (8, 2, 4)",
    "rank": "MultiHeadAttention: expected x of shape [batch, length, d_model], got (3, 8)",
    "keys' width": "expected memory of shape [batch, length, d_model=8], got (2, 3, 6)",
    "odd width": "num_heads=2 must divide the width of the inputs, 7, unless d_k and d_v are given",
    "mask of numbers": "expected mask of booleans, True where a query may attend, of shape",
    "mask of two axes": "[batch=2, 1, queries=3, keys=3] or 1 in place of a size, got bool of",
    "block's rank": "Block: expected x of shape [batch, length, d_model], got (3, 8)",
    "rows of the loss": "cross_entropy: expected features [rows, d_model], embedding [vocabulary,",
    "inner width": "parameter 'inner' of shape (6, 16), but it was given one of shape (8, 16)",
    "inner size": "FeedForward: expected d_ff to be 1 or more, got ModelConfig; layers take sizes",
    "activation": "FeedForward: expected activation to be 'relu', 'gelu', 'swish', got 'tanh'",
    "dtype of JAX": "expected compute_dtype to be 'float32', 'bfloat16', 'int8', got <class",
    "short dtype": "expected compute_dtype to be 'float32', 'bfloat16', 'int8', got 'bf16'",
    "rematerialization": "Stack: expected remat to be 'none', 'dots', 'layer', got 'all'",
    "optimizer": "expected a Config, got TrainingConfig; put it into one: Config(training=...)",
    "optimizer of a ConfigDict": "expected a Config, got ConfigDict; make one of a ConfigDict with",
    "task": "expected a Task, got Config, which has no batches, best, describe,",
    "loss": "loss: expected a function of parameters, batch and randomness, got Config",
    "schedule": "warmup_steps must be at least 1: got 0",
    "mesh": "expected a MeshConfig, got Config; give config.mesh or",
    "config": "model must be a ModelConfig: got TrainingConfig",
    "mesh size": "mesh.data must be of type int: got '2'",
    "text for a number": "model.d_model must be of type int: got '512'",
    "fraction for a number": "model.d_model must be of type int: got 512.5",
    "dtype": "model.compute_dtype must be one of 'float32', 'bfloat16', 'int8': got",
    "translator's config": "expected a Config, got ModelConfig; put it into one: Config(model=...)",
    "translator's tokenizer": "tokenizer: expected a Tokenizer, got 'tokenizer.model'; read one",
    "variables": 'got variables that hold them; give variables["params"]',
    "search": "search must be a BeamSearch or Sampling: got dict",
    "bytes": "sentences[0]: expected text, got bytes; decode them first",
    "number for a text": "sentences[0]: expected text, got 10",
    "no list": "sentences: expected a list of texts, got 10",
    "text for ids": "sources[0]: expected a list of token ids, got 'ten'; encode text first",
    "ids of one": "sources[0]: expected a list of token ids, got 5",
    "texts to score": "source of pairs[0]: expected a list of token ids, got 'ten'",
    "no pairs": "pairs[0]: expected source ids and target ids, got [5, 1, 1]",
    "texts to align": "targets[0]: expected a text and its token ids, as (hypothesis.text,",
    "no run": "nowhere: expected the workdir of a training run, but it has no config.json; train",
    "sentences to record": "sentence: expected text, got ['ten']",
    "parsed text": "expected a list of words, got one string, 'It works'; split it: split_words",
    "tokenizer's name": "got 'runs/tokenizer.model'; read a file with Tokenizer.load",
    "tokenizer's text": "text: expected text, got ['ten']",
    "limit": "max_lengths must hold one number per sentence, of one at least: got shape ()",
    "limits": "max_lengths must be integers: got dtype float32",
    "ragged prefix": "prefix must be an array of integers, or lists of equal length: got",
    "prefix": "prefix[1] must be tokens of the vocabulary, 0 to 2, or padding, 0: got 3",
    "beam": "beam_size must be a whole number: got '2'",
    "no cache": "step_fn must return a pair, (logits, cache): got a ",
    "ensemble": "got a single function; put it into a list",
    "keys": "an array of typed PRNG keys, as of jax.random.split(jax.random.key(0), 2): got",
    "list of keys": "keys must be an array of typed PRNG keys",
    "settings": "beam_size must be a whole number: got 4.0",
    "constraint": "constraints must be a tuple of callables, (logits, context) -> logits: got",
    "constraints": "constraints must be a tuple of callables, (logits, context) -> logits: got",
}
WORKS = {
    "lists of the loss": pytest.approx(0.693147, abs=1e-6),  # log 2, for two equal logits.
    "a layer of activations alone": [2, 3, 8],
    "attention without a mask": [2, 3, 8],
    # With prefix 2: 2 1 (1 is EOS) and 2 2 1. With a limit of one token: 1, and nothing else.
    "lists": [[2, 3], [1, 0]],
    "NumPy's sizes": [2, 1, 3],
    "NumPy's numbers": [8, 0.5],
    "list of lengths": [1.0, 2.0],
}


@pytest.fixture(scope="module")
def found():
    code = f"{inspect.getsource(calls)}\n\ncalls()"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.mark.parametrize(("name", "words"), EXPECTED.items())
def test_mistake_is_refused_in_one_line(found, name, words):
    assert found[name].startswith("UserError: ")
    assert words in found[name]
    assert "\n" not in found[name]


@pytest.mark.parametrize(("name", "value"), WORKS.items())
def test_unannotated_type_works(found, name, value):
    assert found[f"works: {name}"] == value


def test_every_call_has_an_expectation(found):
    assert found.keys() == {*EXPECTED, *(f"works: {name}" for name in WORKS)}
