"""Low-rank adapters against the same model with explicit factors, and against linear algebra."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

from jaxformer import with_lora
from jaxformer.cli.config_file import load_config
from jaxformer.config import Config, ModelConfig, TrainingConfig
from jaxformer.errors import UserError
from jaxformer.experiment import make_optimizer, train
from jaxformer.kinds.model_parameters import describe_model, make_init
from jaxformer.nn.parameters import ParameterInfo
from jaxformer.training.paths import path_of

RANK = 2
ALPHA = 3.0
STEPS = 4
RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


# Two layers with a matrix of 4 x 6, and a matrix with two axes of outputs.
PARAMS = {
    "layers": {"inner": draw(2, 4, 6), "bias": draw(2, 6)},
    "query": draw(6, 2, 3),
    "classes": draw(6, 2),
    "table": draw(3, 4),
}
INFO = {
    "layers": {
        "inner": ParameterInfo(("layers", "d_model", "d_ff"), "matrix"),
        "bias": ParameterInfo(("layers", None), "vector"),
    },
    "query": ParameterInfo(("d_ff", "heads", None), "matrix"),
    "classes": ParameterInfo((None, None), "head"),
    "table": None,
}
INPUTS = draw(5, 4)


def named_leaves(tree):
    leaves = jax.tree.leaves_with_path(tree, is_leaf=lambda x: isinstance(x, ParameterInfo))
    return [(path_of(path), leaf) for path, leaf in leaves]


def loss(params):
    x = INPUTS + params["table"].sum(0)
    y = (x @ params["layers"]["inner"] + params["layers"]["bias"][:, None]).sum(0)
    y = jax.numpy.tanh(y @ params["query"].reshape(6, 6))
    return jax.numpy.square(y @ params["classes"] - 1).sum()


def merge(trained):
    """Returns the parameters by Hu et al. 2021, equation 3, with transposed matrices."""
    scale = ALPHA / RANK
    a, b = trained["inner"]
    c, d = trained["query"]
    query = PARAMS["query"] + scale * (c @ d).reshape(6, 2, 3)
    inner = PARAMS["layers"]["inner"] + scale * (a @ b)
    layers = PARAMS["layers"] | {"inner": inner}
    return PARAMS | {"layers": layers, "query": query, "classes": trained["classes"]}


def factors_of(state):
    return {
        "inner": tuple(state.factors["layers"]["inner"]),
        "query": tuple(state.factors["query"]),
    }


def train_on(value, optimizer, start):
    """Returns what gradient descent on a function makes of a start, and the optimizer's states."""

    def step(_, carry):
        params, state = carry
        found, gradients = jax.value_and_grad(value)(params)
        arguments = {"value": found, "grad": gradients, "value_fn": value}
        updates, state = optimizer.update(gradients, state, params, **arguments)
        return optax.apply_updates(params, updates), state

    @jax.jit
    def run(start):
        first = optimizer.init(start)
        params, state = jax.lax.fori_loop(0, STEPS, step, (start, first))
        return params, first, state

    return jax.device_get(run(start))


def adam():
    """Clipping depends on the norm of all gradients that are trained, and on no others."""
    return optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.1, weight_decay=0.1))


def line_search():
    search = optax.scale_by_backtracking_linesearch(max_backtracking_steps=12)
    return optax.chain(optax.sgd(1.0), search)


@pytest.mark.parametrize("make", [adam, line_search])
def test_training_is_the_training_of_explicit_factors(make):
    optimizer = with_lora(make(), INFO, RANK, alpha=ALPHA, seed=1)
    params, first, last = train_on(loss, optimizer, PARAMS)

    start = factors_of(first)
    for a, b in start.values():
        bound = a.shape[-2] ** -0.5
        assert 0.5 * bound < np.abs(a).max() < bound
        assert not b.any()
    assert start["inner"][0].shape == (2, 4, RANK)
    assert start["query"][1].shape == (RANK, 6)

    explicit = start | {"classes": PARAMS["classes"]}
    with_inner = optax.with_extra_args_support(make())
    expected, *_ = train_on(lambda trained: loss(merge(trained)), with_inner, explicit)

    trained = factors_of(last) | {"classes": params["classes"]}
    for name, value in expected.items():
        for found, each in zip(trained[name], value, strict=True):
            np.testing.assert_allclose(found, each, rtol=1e-3, atol=1e-4)

    merged = merge(trained)
    for (name, found), (_, each) in zip(named_leaves(params), named_leaves(merged), strict=True):
        np.testing.assert_allclose(found, each, rtol=1e-5, atol=1e-6, err_msg=name)
    for frozen in (lambda tree: tree["table"], lambda tree: tree["layers"]["bias"]):
        assert frozen(params).tobytes() == frozen(PARAMS).tobytes()


MODEL = ModelConfig(vocab_size=32, d_model=16, d_ff=32, num_heads=2, num_layers=2)


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_matrices_of_a_model_change_by_their_rank(optimizer):
    """Everything else keeps its bits, with weight decay, too, and has no state."""
    training = TrainingConfig(
        optimizer=optimizer,
        lora=3,
        lora_matrices="query, encoder/layers/feed_forward",
        weight_decay=0.1,
        warmup_steps=1,
    )
    transformation = make_optimizer(Config(model=MODEL, training=training))
    init = make_init(MODEL)

    @jax.jit
    def run(key):
        params = init(key)
        state = transformation.init(params)
        new = params
        for _ in range(3):
            gradients = jax.tree.map(lambda x: jax.numpy.sin(99 * x), new)
            updates, state = transformation.update(gradients, state, new)
            new = optax.apply_updates(new, updates)
        return params, new, state

    before, after, state = jax.device_get(run(jax.random.key(0)))

    changes = jax.tree.map(np.subtract, after, before)
    for name, change in named_leaves(changes):
        is_chosen = "encoder/layers/feed_forward/" in name and not name.endswith("bias")
        if not (is_chosen or name.endswith("query")):
            assert not change.any(), name
            continue
        matrix = change.reshape(*change.shape[:2], -1)
        ranks = np.linalg.matrix_rank(matrix, tol=1e-4)
        assert ranks.tolist() == [3, 3], name

    # Adam keeps two moments of each factor, and Muon one.
    sizes = [2 * 3 * (16 + 16)] * 3 + [2 * 3 * (16 + 32)] * 2
    copies = {"adam": 3, "muon": 2}[optimizer]
    state_size = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim > 1)
    assert state_size == copies * sum(sizes)


def test_runs_differ_by_their_seeds_and_wide_ranks_are_as_narrow_as_a_matrix():
    @jax.jit
    def first_queries(key):
        params = make_init(MODEL)(key)
        found = []
        for seed in (0, 1):
            training = TrainingConfig(lora=20, seed=seed)
            state: Any = make_optimizer(Config(model=MODEL, training=training)).init(params)
            found.append(state.factors["encoder"]["layers"]["self_attention"]["query"].a)
        return found

    query, other = jax.device_get(first_queries(jax.random.key(0)))
    assert query.shape == (2, 16, 16)
    assert (query != other).all()


def test_the_heads_of_classes_are_trained_whole():
    config = load_config("sst2:minilm")
    heads = set()
    for path, parameter in named_leaves(describe_model(config.model, config.kind)):
        if parameter.role == "head":
            heads.add(path)
    assert heads == {"classes", "classes_bias"}


def of_config(**training):
    return lambda: make_optimizer(Config(model=MODEL, training=TrainingConfig(**training)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            of_config(lora=2, lora_matrices="query,embedding"),
            "training.lora_matrices: no matrix is called 'embedding'; give names separated by "
            "commas out of decoder, layers, cross_attention, key, output, query, ",
        ),
        (
            of_config(lora_matrices="query"),
            "training.lora_matrices needs low-rank adapters: give their rank, such as "
            "--config.training.lora=8",
        ),
        (
            of_config(lora_alpha=8.0),
            "training.lora_alpha needs low-rank adapters: give their rank, such as "
            "--config.training.lora=8",
        ),
        (
            of_config(attention_weight=2.0),
            "training.attention_weight=2.0 needs training.teacher, the model whose attention maps "
            "are learned",
        ),
        (
            of_config(lora=2, freeze="encoder"),
            "training.freeze=encoder needs training.lora to be left out, with which all but "
            "adapters and heads are frozen; choose adapters with training.lora_matrices",
        ),
        (of_config(lora=0), "training.lora must be greater than 0: got 0"),
        (lambda: with_lora(optax.sgd(1.0), INFO, 0), "with_lora: rank must be at least 1: got 0"),
        (
            lambda: with_lora(optax.sgd(1.0), {"w": None}, 1),
            "training.lora: expected a model with matrices, .* got none among w",
        ),
        (
            lambda: train(
                Config(training=TrainingConfig(lora=1)),
                "nowhere",
                evaluated=lambda state, params: params,
            ),
            "evaluated: expected training.freeze, training.lora and training.ema_decay to be left "
            "out",
        ),
    ],
)
def test_what_adapters_cannot_do_is_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()
